//! The companion changes to the prover backend: each applies to the published source, and gives the rules we build.

use std::{fs, path::Path, process::Command};

const PATCHES: [&str; 3] = [
    "0001-make-rules-public.patch",
    "0002-hold-output-slots.patch",
    "0003-export-include-folder.patch",
];

fn published() -> &'static Path {
    Path::new(env!("OPENVM_CUDA_BACKEND_PACKAGE"))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::write(target, fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

fn git(directory: &Path, arguments: &[&str]) {
    let output = Command::new("git")
        .current_dir(directory)
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "git {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn patches_apply_to_the_published_source() {
    let patches = Path::new(env!("CARGO_MANIFEST_DIR")).join("patches");
    let folder = tempfile::tempdir().unwrap();
    let all = folder.path().join("all");
    copy(published(), &all);
    git(&all, &["init", "-q"]);
    for name in PATCHES {
        let patch = patches.join(name);
        let alone = folder.path().join(name);
        copy(published(), &alone);
        git(&alone, &["init", "-q"]);
        for directory in [&alone, &all] {
            git(directory, &["apply", patch.to_str().unwrap()]);
        }
    }
    let read = |path: &str| fs::read_to_string(all.join(path)).unwrap();
    assert!(read("src/logup_zerocheck/mod.rs").contains("\npub mod rules;"));
    assert!(read("Cargo.toml").contains("links = \"cuda-backend\""));
    assert!(read("build.rs").contains("cargo:include="));
    // `build/rules.rs` applies the second patch by another program: what it built from is this very text.
    let built = Path::new(env!("OUT_DIR")).join("rules");
    for name in ["mod.rs", "codec.rs"] {
        assert_eq!(
            fs::read_to_string(built.join(name)).unwrap(),
            read(&format!("src/logup_zerocheck/rules/{name}")),
            "{name}"
        );
    }
}
