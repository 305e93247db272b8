//! The binary's stages on the shipped guest: artifacts, proof files, metrics, interruption.

mod cli_common;

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use cli_common::{binary, directory, expected, file, names, run, verify, Said};
use openvm_apc::{
    pipeline::{proof_file, PipelineError},
    trace::Substage,
};
use p3_field::PrimeCharacteristicRing;

/// Fast: the blocks are few and short without a keccak.
const SELECT: &str = "select-apcs guest-keccak --autoprecompiles 3 --input 0";
const PROVE: &str = "prove guest-keccak --autoprecompiles 3 --input 0 --security toy";

fn artifact(directory: &Path, stage: &str) -> std::path::PathBuf {
    let of_stage: Vec<String> = names(directory)
        .into_iter()
        .filter(|name| name.starts_with(stage))
        .collect();
    assert_eq!(of_stage.len(), 1, "{of_stage:?}");
    directory.join(&of_stage[0])
}

fn were_built(said: &Said) -> bool {
    said.errors.contains("Building APCs")
}

#[test]
fn later_stages_reuse_what_earlier_ones_made() {
    let artifacts = directory();
    let first = run(SELECT, artifacts.path()).succeeded();
    assert!(were_built(&first), "{first:#?}");
    let apcs = artifact(artifacts.path(), "apcs");
    let bytes = std::fs::read(&apcs).expect("the artifact is there");

    let second = run(SELECT, artifacts.path()).succeeded();
    assert!(!were_built(&second), "{second:#?}");
    assert_eq!(first.output, second.output);
    // Flags of later stages: nothing is built anew.
    for later in [
        "--security toy --mock",
        "--security toy --bus-kernel dag --segment-memory 900",
    ] {
        let start = Instant::now();
        let said = run(
            &format!("prove guest-keccak --autoprecompiles 3 --input 0 {later}"),
            artifacts.path(),
        )
        .succeeded();
        assert!(!were_built(&said), "{said:#?} in {:?}", start.elapsed());
    }
    // Flags of this one: another artifact.
    let other = run(&format!("{SELECT} --skip 1"), artifacts.path()).succeeded();
    assert!(were_built(&other), "{other:#?}");
    let of_apcs = names(artifacts.path())
        .into_iter()
        .filter(|name| name.starts_with("apcs"));
    assert_eq!(of_apcs.count(), 2);
    assert_eq!(std::fs::read(&apcs).expect("it stays"), bytes);

    // Another ELF: all anew. A byte of padding at the end is another ELF, if not another program.
    let place = directory();
    let mut changed = cli_common::elf();
    changed.push(0);
    let changed = file(&place, "changed.elf", &changed);
    let said = run(
        &SELECT.replace("guest-keccak", &changed.display().to_string()),
        artifacts.path(),
    )
    .succeeded();
    assert!(were_built(&said), "{said:#?}");
}

#[test]
fn damaged_artifacts_are_rebuilt() {
    let artifacts = directory();
    let first = run(SELECT, artifacts.path()).succeeded();
    let path = artifact(artifacts.path(), "apcs");
    let whole = std::fs::read(&path).expect("the artifact is there");
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x10;
    for damaged in [&whole[..whole.len() / 2], &flipped] {
        std::fs::write(&path, damaged).expect("our own artifact can be damaged");
        let said = run(SELECT, artifacts.path()).succeeded();
        assert!(
            said.errors.contains("is damaged: building it anew"),
            "{said:#?}"
        );
        assert!(were_built(&said), "{said:#?}");
        assert_eq!(said.output, first.output);
    }
    let said = run(SELECT, artifacts.path()).succeeded();
    assert!(!were_built(&said), "{said:#?}");
}

#[test]
fn candidates_are_written_for_inspection() {
    let place = directory();
    let candidates = place.path().join("candidates");
    run(
        &format!("{SELECT} --apc-candidates-dir {}", candidates.display()),
        &place.path().join("artifacts"),
    )
    .succeeded();
    assert!(!names(&candidates).is_empty());
}

#[test]
fn metrics_contain_every_substage() {
    let place = directory();
    let metrics = place.path().join("metrics.json");
    run(
        &format!("{PROVE} --metrics {}", metrics.display()),
        &place.path().join("artifacts"),
    )
    .succeeded();
    let text = std::fs::read_to_string(&metrics).expect("the metrics are there");
    let _: serde_json::Value = serde_json::from_str(&text).expect("the metrics are JSON");
    for substage in Substage::ALL {
        for suffix in ["time_ms", "us"] {
            let name = format!("\"{}_{suffix}\"", substage.name());
            assert!(text.contains(&name), "no {name}");
        }
    }
    assert!(text.contains("Autoprecompile_0x"));
}

#[test]
fn default_output_is_a_page() {
    let artifacts = directory();
    let said = run(PROVE, artifacts.path()).succeeded();
    let lines = said.output.lines().count() + said.errors.lines().count();
    assert!(lines < 50, "{lines} lines: {said:#?}");
    let logged: Said = binary()
        .args(PROVE.split(' '))
        .arg("--artifacts-dir")
        .arg(artifacts.path())
        .env("RUST_LOG", "info")
        .output()
        .expect("the binary starts")
        .into();
    let logged = logged.succeeded();
    assert!(logged.errors.lines().count() > said.errors.lines().count());
    assert!(said.output.contains("saved"), "{said:#?}");
}

#[test]
fn proof_files() {
    let place = directory();
    let artifacts = place.path().join("artifacts");
    let path = place.path().join("proof.bin");
    let said = run(&format!("{PROVE} --proof {}", path.display()), &artifacts).succeeded();
    let verified = verify(&path).succeeded();
    let setup = run(&PROVE.replace("prove", "setup"), &artifacts).succeeded();
    for label in ["exe commitment", "verifying key"] {
        assert_eq!(verified.value(label), said.value(label));
        assert_eq!(verified.value(label), setup.value(label));
    }
    assert_eq!(
        verified.value("public_values_commit"),
        said.value("public_values_commit")
    );
    assert_eq!(verified.value("public_values_commit").split(' ').count(), 8);
    assert!(verified.errors.contains("can be forged"), "{verified:#?}");

    // Only for what was proven.
    let expecting = |flag: &str, value: &str| -> Said {
        binary()
            .arg("verify")
            .arg(&path)
            .args([flag, value])
            .output()
            .expect("the binary starts")
            .into()
    };
    let (exe, key) = (setup.value("exe commitment"), setup.value("verifying key"));
    expecting("--exe-commitment", exe).succeeded();
    expecting("--exe-commitment", "1 2 3 4 5 6 7 8").failed_with(&["another program"]);
    expecting("--verifying-key", key).succeeded();
    expecting("--verifying-key", "00").failed_with(&["another VM"]);

    // Damaged files.
    let whole = std::fs::read(&path).expect("the proof is there");
    let spoilt = place.path().join("spoilt.bin");
    let reject = |bytes: &[u8]| {
        std::fs::write(&spoilt, bytes).expect("a temporary file can be written");
        verify(&spoilt).failed_with(&["is no proof", "spoilt.bin"]);
    };
    for length in [0, 5, 16, 17, 40, whole.len() / 2, whole.len() - 1] {
        reject(&whole[..length]);
    }
    for position in [3, 16, 20, 60, whole.len() / 2, whole.len() - 1] {
        let mut flipped = whole.clone();
        flipped[position] ^= 4;
        reject(&flipped);
    }
    reject(&[&whole[..], b"more"].concat());
    verify(&place.path().join("missing.bin")).failed_with(&["missing.bin cannot be read"]);
    verify(place.path()).failed_with(&["cannot be read"]);

    // Forged files: their checksum is right.
    let mut rejected = 0;
    for step in 0..24 {
        let mut forged = whole.clone();
        let position = HEADER + (forged.len() - HEADER) * step / 24;
        forged[position] ^= 1;
        seal(&mut forged);
        std::fs::write(&spoilt, &forged).expect("a temporary file can be written");
        let said = verify(&spoilt);
        match said.code {
            // A verifying key may be changed in what does not matter, its names; then it is another.
            Some(0) => assert_ne!(said.value("verifying key"), key, "{said:#?}"),
            _ => {
                said.failed_with(&[]);
                rejected += 1;
            }
        }
    }
    assert!(rejected >= 12, "{rejected}");

    let read = || proof_file::read(&path).expect("the proof is whole");
    assert!(read().verify().is_ok());
    let forge = |change: &dyn Fn(&mut openvm_apc::pipeline::ProvenGuest)| {
        let mut forged = read();
        change(&mut forged);
        forged.verify()
    };
    type F = openvm_apc::bus::F;
    let invalid = |result: Result<_, PipelineError>| {
        assert!(matches!(result, Err(PipelineError::Verify(_))));
    };
    invalid(forge(&|forged| {
        forged.proof.user_public_values.public_values[0] += F::ONE;
    }));
    invalid(forge(&|forged| {
        forged.proof.user_public_values.public_values_commit[3] += F::ONE;
    }));
    invalid(forge(&|forged| {
        forged.proof.user_public_values.public_values.clear();
    }));
    invalid(forge(&|forged| forged.proof.per_segment.clear()));
    invalid(forge(&|forged| {
        let first = forged.proof.per_segment[0].clone();
        forged.proof.per_segment.push(first);
    }));
    invalid(forge(&|forged| {
        forged.proof.per_segment[0].common_main_commit[0] += F::ONE;
    }));
    invalid(forge(&|forged| {
        forged.memory_dimensions.address_height = 200;
    }));
    invalid(forge(&|forged| {
        forged.vk.inner.per_air.pop();
    }));
    assert!(matches!(
        forge(&|forged| forged.exe_commit[0] ^= 1),
        Err(PipelineError::OtherProgram { .. })
    ));
}

/// Bytes before the body of a proof file: magic, version, checksum.
const HEADER: usize = 16 + 1 + 32;

fn seal(file: &mut [u8]) {
    use sha2::{Digest, Sha256};

    let (header, body) = file.split_at_mut(HEADER);
    header[17..].copy_from_slice(&Sha256::digest(body));
}

#[test]
fn public_values_are_the_guests() {
    let artifacts = directory();
    for n in [0, 1, 10] {
        let said = run(
            &format!("execute guest-keccak --input {n} --security toy"),
            artifacts.path(),
        )
        .succeeded();
        let values = hex::decode(said.value("public values")).expect("they are hexadecimal");
        assert_eq!(values[..4], [expected(n), 0, 0, 0]);
        assert!(values[4..].iter().all(|&value| value == 0));
    }
}

/// Starts the binary, sends Ctrl-C's signal once it says `step`, and waits for its end.
#[cfg(unix)]
fn interrupt(arguments: &str, artifacts: &Path, step: &str) {
    let mut process = binary()
        .args(arguments.split(' '))
        .arg("--artifacts-dir")
        .arg(artifacts)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut errors = BufReader::new(process.stderr.take().expect("it is piped")).lines();
    let said = errors.find(|line| line.as_ref().is_ok_and(|line| line.contains(step)));
    assert!(said.is_some(), "it never said `{step}`");
    // Into the step, not at its door.
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    let killed = std::process::Command::new("kill")
        .args(["-INT", &process.id().to_string()])
        .status()
        .expect("there is a kill command");
    assert!(killed.success());
    let rest: Vec<String> = errors.map_while(Result::ok).collect();
    let status = process.wait().expect("it ends");
    assert_eq!(status.code(), Some(130), "{step}: {rest:?}");
    assert!(rest.iter().any(|line| line == "interrupted"), "{rest:?}");
    assert!(start.elapsed() < Duration::from_secs(10), "{step}");
    let left: Vec<String> = names(artifacts)
        .into_iter()
        .filter(|name| !name.ends_with(".json"))
        .collect();
    assert_eq!(left, [""; 0], "half-written files");
}

#[cfg(unix)]
#[test]
fn interrupts_end_any_step() {
    let place = directory();
    let job = "prove guest-keccak --autoprecompiles 10 --input 1";
    let artifacts = place.path().join("first");
    interrupt(job, &artifacts, "Building APCs");
    assert_eq!(names(&artifacts), [""; 0]);

    let artifacts = place.path().join("second");
    let proof = place.path().join("proof.bin");
    let job = format!("prove guest-keccak --input 1 --proof {}", proof.display());
    interrupt(&job, &artifacts, "Proving segments");
    assert!(!proof.exists());
}

#[test]
fn statistics_of_bus_programs() {
    let artifacts = directory();
    let stats = SELECT.replace("select-apcs", "stats");
    let table = run(&stats, artifacts.path()).succeeded();
    assert!(table.output.contains("maxima"), "{table:#?}");
    let json = run(&format!("{stats} --json"), artifacts.path()).succeeded();
    let json: serde_json::Value = serde_json::from_str(&json.output).expect("it is JSON");
    let rows = json.as_array().expect("one object an APC");
    assert_eq!(rows.len(), 4, "three APCs and the maxima");
    assert!(rows.iter().all(|row| row["columns"].as_u64() > Some(0)));
    // During a proof, too.
    let said: Said = binary()
        .args(format!("{PROVE} --mock --artifacts-dir").split(' '))
        .arg(artifacts.path())
        .env("POWDR_DUMP_BUS_DAG", "1")
        .output()
        .expect("the binary starts")
        .into();
    let said = said.succeeded();
    assert!(said.errors.contains("maxima"), "{said:#?}");

    // A machine from a file.
    let place = directory();
    let machine = br#"{"constraints": [], "derived_columns": [], "bus_interactions": [
        {"id": 3, "mult": "is_valid@2", "args": [["a@0", "+", [256, "*", "b@1"]], 17]},
        {"id": 6, "mult": 1, "args": ["a@0", "b@1", 0, 0]}]}"#;
    let machine = file(&place, "machine.json", machine);
    let of_machine = |path: &Path| {
        run(
            &format!("stats {} --json", path.display()),
            artifacts.path(),
        )
    };
    let said = of_machine(&machine).succeeded();
    let rows: serde_json::Value = serde_json::from_str(&said.output).expect("it is JSON");
    assert_eq!(rows[0]["columns"], 3);
    assert_eq!(rows[0]["updates_per_row"], 2);
    let broken = file(&place, "broken.json", b"{\"constraints\": 1}");
    of_machine(&broken).failed_with(&["is no machine", "broken.json"]);
    of_machine(&place.path().join("none.json")).failed_with(&["none.json cannot be read"]);
}
