//! Shipped guests: the committed ELF is the one whose digest is committed. (`guests/check.sh` also rebuilds it, where
//! the toolchain is present.)

use openvm_apc::pipeline::Guest;

#[test]
fn shipped_guests_have_their_digests() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("guests");
    let mut shipped = 0;
    for name in Guest::shipped() {
        let guest = Guest::find(name).expect("a shipped guest is found");
        let short = name.strip_prefix("guest-").expect("names begin so");
        let digest = folder.join(short).join(format!("{name}.elf.sha256"));
        let digest = std::fs::read_to_string(&digest).expect("its digest is committed");
        assert_eq!(digest.split_whitespace().next(), Some(&*guest.digest()));
        shipped += 1;
    }
    assert!(shipped > 0);
}
