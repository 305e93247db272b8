//! Bad input of every kind: the binary says what is wrong in the user's words, exits with a code other than 0, leaves
//! nothing half-written, and never panics.

mod cli_common;

use std::path::Path;

use cli_common::{binary, directory, elf, file, names, run, Said, ELF};

/// Byte offsets in an ELF file's header.
const E_TYPE: usize = 16;
const E_MACHINE: usize = 18;
const E_SHOFF: usize = 32;
const E_SHNUM: usize = 48;

fn execute(guest: &Path, more: &str) -> Said {
    let artifacts = directory();
    binary()
        .arg("execute")
        .arg(guest)
        .args("--security toy --input 0".split(' '))
        .args(more.split_whitespace())
        .arg("--artifacts-dir")
        .arg(artifacts.path())
        .output()
        .expect("the binary starts")
        .into()
}

#[test]
fn unknown_guests_and_missing_files() {
    let artifacts = directory();
    run("execute guest-nothing", artifacts.path())
        .failed_with(&["unknown guest `guest-nothing`", "guest-keccak"]);
    run("execute no/such/guest.elf", artifacts.path())
        .failed_with(&["no/such/guest.elf cannot be read", "No such file"]);
    let empty = directory();
    execute(empty.path(), "").failed_with(&["Cargo.toml cannot be read"]);
    file(
        &empty,
        "Cargo.toml",
        b"[package]\nname = \"guest-unbuilt\"\n",
    );
    execute(empty.path(), "").failed_with(&["no built ELF", "guest-unbuilt"]);
    file(&empty, "Cargo.toml", b"this is no manifest");
    execute(empty.path(), "").failed_with(&["package.name"]);
}

#[test]
fn files_that_are_no_guests() {
    let place = directory();
    let text = file(&place, "text.elf", b"This is a text, not a program.\n");
    execute(&text, "").failed_with(&["the ELF cannot be read"]);
    let empty = file(&place, "empty.elf", b"");
    execute(&empty, "").failed_with(&["the ELF cannot be read"]);

    execute(Path::new(env!("CARGO_BIN_EXE_cli-openvm")), "").failed_with(&["32-bit ELF"]);
    let mut other_machine = elf();
    other_machine[E_MACHINE] = 40; // Arm
    let other_machine = file(&place, "arm.elf", &other_machine);
    execute(&other_machine, "").failed_with(&["must be RISC-V"]);
    let mut library = elf();
    library[E_TYPE] = 3; // a shared object
    let library = file(&place, "library.elf", &library);
    execute(&library, "").failed_with(&["must be executable"]);

    let whole = elf();
    for length in [10, 52, 100, 300, 5_000, 30_000] {
        let truncated = file(&place, "truncated.elf", &whole[..length]);
        execute(&truncated, "").failed_with(&["the ELF cannot be read"]);
    }
}

#[test]
fn instructions_that_the_vm_lacks_are_named() {
    let place = directory();
    let mut bytes = elf();
    let parsed = goblin::elf::Elf::parse(&bytes).expect("the shipped guest is an ELF");
    let text = parsed
        .program_headers
        .iter()
        .find(|header| header.p_flags & goblin::elf::program_header::PF_X != 0)
        .expect("it has code");
    let (offset, address) = (text.p_offset as usize + 400, text.p_vaddr + 400);
    // fadd.s fa0, fa0, fa1
    let float: u32 = 0x00b5_7553;
    bytes[offset..offset + 4].copy_from_slice(&float.to_le_bytes());
    let path = file(&place, "float.elf", &bytes);
    let pc = format!("pc {address:#010x}");
    execute(&path, "").failed_with(&["0x00b57553", &pc, "not supported by the configured VM"]);
    // The same with APCs.
    execute(&path, "--autoprecompiles 1").failed_with(&["0x00b57553", &pc]);
}

#[test]
fn apcs_need_relocations() {
    let place = directory();
    let mut stripped = elf();
    stripped[E_SHOFF..E_SHOFF + 4].fill(0);
    stripped[E_SHNUM..E_SHNUM + 4].fill(0); // and the index of the names' section
    let stripped = file(&place, "stripped.elf", &stripped);
    execute(&stripped, "").succeeded();
    execute(&stripped, "--autoprecompiles 1").failed_with(&["--emit-relocs"]);
}

#[test]
fn broken_vm_configurations() {
    let place = directory();
    let guest = file(&place, "guest.elf", &elf());
    file(&place, "openvm.toml", b"[app_vm_config.system\n");
    execute(&guest, "").failed_with(&["openvm.toml cannot be read"]);
    file(&place, "openvm.toml", b"\xff\xfe");
    execute(&guest, "").failed_with(&["openvm.toml cannot be read"]);
    // A VM without multiplication does not run this guest.
    file(
        &place,
        "openvm.toml",
        b"[app_vm_config.rv32i]\n[app_vm_config.io]\n",
    );
    execute(&guest, "").failed_with(&["not supported by the configured VM", "pc 0x"]);
}

#[test]
fn missing_input() {
    let artifacts = directory();
    for stage in ["execute", "prove", "prove --mock"] {
        let mut words = stage.split(' ');
        let stage = words.next().expect("a stage");
        let rest = words.next().unwrap_or("");
        run(
            &format!("{stage} guest-keccak --security toy {rest}"),
            artifacts.path(),
        )
        .failed_with(&["--input"]);
    }
    run(
        "select-apcs guest-keccak --autoprecompiles 1",
        artifacts.path(),
    )
    .failed_with(&["--input"]);
    assert_eq!(names(artifacts.path()), [""; 0]);
}

#[test]
fn unusable_flags() {
    let artifacts = directory();
    let refused = |arguments: &str, word: &str| {
        let said = run(arguments, artifacts.path());
        assert_eq!(said.code, Some(2), "{said:#?}");
        assert!(said.errors.contains(word), "{said:#?}");
    };
    refused("execute guest-keccak --input many", "--input");
    refused("execute guest-keccak --input 4294967296", "--input");
    refused("execute guest-keccak --pgo speed", "cell");
    refused(
        "prove guest-keccak --mock --proof proof.bin",
        "cannot be used with",
    );
    refused(
        "execute guest-keccak --segment-memory 0",
        "--segment-memory",
    );

    for value in ["0", "16G", "4294967296"] {
        refused(
            &format!("prove guest-keccak --device-memory {value}"),
            "--device-memory",
        );
    }
    // A limit of the GPU's memory, where none is used.
    for stage in ["setup", "execute", "prove"] {
        run(
            &format!("{stage} guest-keccak --input 0 --device-memory 16384"),
            artifacts.path(),
        )
        .failed_with(&["--device-memory", "--device cuda"]);
    }

    run(
        "execute guest-keccak --input 0 --bus-kernel warp",
        artifacts.path(),
    )
    .failed_with(&["warp", "vm", "dag"]);
    let said: Said = binary()
        .args("execute guest-keccak --input 0 --artifacts-dir".split(' '))
        .arg(artifacts.path())
        .env("POWDR_BUS_KERNEL", "warp")
        .output()
        .expect("the binary starts")
        .into();
    said.failed_with(&["warp", "vm", "dag"]);
    // The flag wins over the variable.
    let said: Said = binary()
        .args(
            "execute guest-keccak --input 0 --security toy --bus-kernel dag --artifacts-dir"
                .split(' '),
        )
        .arg(artifacts.path())
        .env("POWDR_BUS_KERNEL", "warp")
        .output()
        .expect("the binary starts")
        .into();
    said.succeeded();
}

#[test]
fn a_gpu_that_is_not_there() {
    let artifacts = directory();
    for stage in ["setup", "execute", "prove"] {
        let said: Said = binary()
            .args([stage, "guest-keccak", "--input", "0"])
            // Nothing is built first, which would take a minute for nothing.
            .args(["--autoprecompiles", "1"])
            .args(["--device", "cuda", "--artifacts-dir"])
            .arg(artifacts.path())
            .env("CUDA_VISIBLE_DEVICES", "")
            .output()
            .expect("the binary starts")
            .into();
        let words: &[&str] = if cfg!(feature = "cuda") {
            &["no usable NVIDIA GPU", "--device cpu"]
        } else {
            &["built without CUDA", "--features cuda", "--device cpu"]
        };
        said.failed_with(words);
    }
    assert_eq!(names(artifacts.path()), [""; 0]);
}

#[test]
fn more_apcs_than_blocks() {
    let artifacts = directory();
    let said = run(
        "select-apcs guest-keccak --autoprecompiles 100000 --input 0 --pgo instruction",
        artifacts.path(),
    )
    .succeeded();
    let apcs = said
        .output
        .lines()
        .filter(|line| line.contains("Autoprecompile_0x"))
        .count();
    assert!(apcs > 0);
    let expected = format!("only {apcs} blocks are eligible");
    assert!(said.errors.contains(&expected), "{said:#?}");
}

#[test]
fn output_files_that_cannot_be_written() {
    let place = directory();
    let guest = "prove guest-keccak --input 0 --security toy";
    // Said before the work, not after it.
    let nowhere = place.path().join("no/such/proof.bin");
    let said = run(
        &format!("{guest} --proof {}", nowhere.display()),
        place.path(),
    )
    .failed_with(&["the proof", "no/such/proof.bin cannot be written"]);
    assert!(!said.errors.contains("Setting up"), "{said:#?}");
    let said = run(
        &format!("{guest} --metrics {}", place.path().display()),
        place.path(),
    )
    .failed_with(&["the metrics", "directory"]);
    assert!(!said.errors.contains("Setting up"), "{said:#?}");
}

#[test]
fn artifacts_directories_that_cannot_be_used() {
    let place = directory();
    let not_a_directory = file(&place, "file", b"");
    let stage = "select-apcs guest-keccak --autoprecompiles 1 --input 0 --pgo instruction";
    run(stage, &not_a_directory).failed_with(&["the artifacts directory", "cannot be written"]);
    run(stage, &not_a_directory.join("below"))
        .failed_with(&["the artifacts directory", "cannot be written"]);
}

/// The user may write to `directory` whatever its permissions say.
#[cfg(unix)]
fn permissions_do_not_hold(directory: &Path) -> bool {
    let probe = directory.join("probe");
    let written = std::fs::write(&probe, b"").is_ok();
    let _ = std::fs::remove_file(&probe);
    written
}

#[cfg(unix)]
#[test]
fn read_only_artifacts_directories() {
    use std::os::unix::fs::PermissionsExt;

    let place = directory();
    let artifacts = place.path().join("artifacts");
    std::fs::create_dir(&artifacts).expect("a directory can be made");
    let set_mode = |mode| {
        std::fs::set_permissions(&artifacts, std::fs::Permissions::from_mode(mode))
            .expect("our own directory's permissions can be set");
    };
    set_mode(0o500);
    let stage = "select-apcs guest-keccak --autoprecompiles 1 --input 0 --pgo instruction";
    let said = run(stage, &artifacts);
    if permissions_do_not_hold(&artifacts) {
        // Root writes anywhere.
        said.succeeded();
    } else {
        said.failed_with(&["the artifact", "cannot be written"]);
        assert_eq!(names(&artifacts), [""; 0]);
        set_mode(0o700);
        run(stage, &artifacts).succeeded();
        set_mode(0o500);
        // What is there can be used.
        run(stage, &artifacts).succeeded();
    }
    set_mode(0o700);
}

/// A limit on the size of files acts as a full disk does: a write fails in the middle of a file.
#[cfg(unix)]
#[test]
fn full_artifacts_directories() {
    let artifacts = directory();
    let said: Said = std::process::Command::new("sh")
        .arg("-c")
        .arg("trap '' XFSZ; ulimit -f 4; exec \"$@\"")
        .arg("sh")
        .arg(env!("CARGO_BIN_EXE_cli-openvm"))
        .args("select-apcs guest-keccak --autoprecompiles 1 --input 0 --pgo instruction".split(' '))
        .arg("--artifacts-dir")
        .arg(artifacts.path())
        .output()
        .expect("a shell starts")
        .into();
    said.failed_with(&["the artifact", "cannot be written"]);
    assert_eq!(names(artifacts.path()), [""; 0]);
}

#[test]
fn guests_by_path() {
    // The ELF, and the crate, are the shipped guest.
    let artifacts = directory();
    let by_name = run("setup guest-keccak --security toy", artifacts.path()).succeeded();
    let by_elf = run(&format!("setup {ELF} --security toy"), artifacts.path()).succeeded();
    let crate_path = Path::new(ELF).parent().expect("it lies in its crate");
    let by_crate = run(
        &format!("setup {} --security toy", crate_path.display()),
        artifacts.path(),
    )
    .succeeded();
    for other in [by_elf, by_crate] {
        assert_eq!(by_name.output, other.output);
    }
}
