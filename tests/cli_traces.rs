//! Traces of a run on the CPU: the digests that `--trace-digests` writes and `compare-traces` compares, and the APCs' traces
//! that `--apc-traces` writes, as the kernel bench reads them.

mod cli_common;
#[allow(dead_code)]
#[path = "../benches/gpu_kernels/files.rs"]
mod files;
#[allow(dead_code)]
#[path = "../benches/gpu_kernels/programs.rs"]
mod programs;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use cli_common::{binary, directory, file, names, run, Said};
use files::TraceFiles;
use openvm_apc::{
    apc::Autoprecompile,
    bus::{BusKernel, Histograms, OutOfTable, TraceView},
    pipeline::TraceDigests,
    vm::digest::{MatrixDigest, TracePart},
};
use openvm_stark_backend::prover::ColMajorMatrix;
use p3_field::PrimeField32;
use programs::TABLES;

const POSEIDON2: &str = "Poseidon2Periphery";

fn compare(first: &Path, second: &Path) -> Said {
    binary()
        .arg("compare-traces")
        .args([first, second])
        .output()
        .expect("the binary starts")
        .into()
}

/// A keccak with two APCs, in several segments.
fn digests(place: &Path, name: &str, stage: &str) -> PathBuf {
    let path = place.join(name);
    run(
        &format!(
            "{stage} guest-keccak --autoprecompiles 2 --profile-input 1 --security toy \
             --segment-memory 500 --trace-digests {}",
            path.display()
        ),
        &place.join("artifacts"),
    )
    .succeeded();
    path
}

/// How many traces were equal value by value, and which AIRs' had the same rows in another order.
fn equal(said: Said) -> (usize, Vec<String>) {
    let said = said.succeeded();
    let mut lines = said.output.lines();
    let in_order = lines
        .next()
        .and_then(|line| line.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("no number of traces in {said:#?}"));
    let reordered = lines.filter_map(|line| Some(line.split_once(" of ")?.1.to_string()));
    (in_order, reordered.collect())
}

#[test]
fn kernels_and_runs_make_the_same_traces() {
    let place = directory();
    let place = place.path();
    let vm = digests(place, "vm", "execute --input 10 --bus-kernel vm");
    let dag = digests(place, "dag", "execute --input 10 --bus-kernel dag");
    let again = digests(place, "again", "execute --input 10 --bus-kernel vm");
    let proven = digests(place, "proven", "prove --input 10 --bus-kernel dag");

    let read = TraceDigests::read(&vm).expect("the digests are there");
    assert!(read.segments.len() > 1, "{} segment", read.segments.len());
    let airs = || read.segments.iter().flat_map(|segment| &segment.airs);
    let apcs = airs()
        .filter(|air| air.air.starts_with("Autoprecompile"))
        .count();
    assert!(apcs >= 2, "{apcs} traces of APCs");
    for table in [
        "VariableRangeChecker",
        "RangeTuple",
        "BitwiseOperationLookup",
    ] {
        assert!(airs().any(|air| air.air.contains(table)), "no {table}");
    }
    let traces: usize = airs().map(|air| air.matrices.len()).sum();

    for other in [&dag, &again, &proven] {
        let (in_order, reordered) = equal(compare(&vm, other));
        // Only Poseidon2's rows stand in the order of a hash map, once a segment, unless by chance in the same one.
        assert!(
            in_order >= traces - read.segments.len(),
            "{in_order} of {traces}"
        );
        assert!(
            reordered.iter().all(|air| air.starts_with(POSEIDON2)),
            "{reordered:?}"
        );
    }
    assert_eq!(equal(compare(&vm, &vm)), (traces, vec![]));

    // Another input: other traces.
    let other = digests(place, "other", "execute --input 9 --bus-kernel vm");
    compare(&vm, &other).failed_with(&["the traces differ"]);
}

#[test]
fn files_that_hold_no_digests_are_refused() {
    let place = directory();
    let empty = file(&place, "empty", b"{}");
    let missing = place.path().join("missing");
    compare(&empty, &empty).failed_with(&["empty", "--trace-digests"]);
    compare(&missing, &empty).failed_with(&["missing", "cannot be read"]);
}

/// A keccak with two APCs, in several segments, whose traces are written to `folder` and digested to `digests`.
fn apc_traces(place: &Path) -> (String, PathBuf, PathBuf) {
    let (folder, digests) = (place.join("apc-traces"), place.join("digests.json"));
    let command = format!(
        "execute guest-keccak --autoprecompiles 2 --input 10 --security toy --segment-memory 500 --apc-traces {} \
         --trace-digests {}",
        folder.display(),
        digests.display()
    );
    (command, folder, digests)
}

#[test]
fn apc_traces_are_what_the_kernel_bench_reads() {
    let place = directory();
    let place = place.path();
    let artifacts = place.join("artifacts");
    let (command, folder, digests) = apc_traces(place);
    let said = run(&command, &artifacts).succeeded();
    let digests = TraceDigests::read(&digests).expect("the digests are there");
    assert!(digests.segments.len() > 1, "several segments");

    let all = TraceFiles::all(&folder).expect("there are traces");
    let mut calls: BTreeMap<&Path, usize> = BTreeMap::new();
    for files in &all {
        let what = files.trace.display();
        let json = std::fs::read(&files.apc).expect("it can be read");
        let apc: Autoprecompile = serde_json::from_slice(&json).expect("it is an APC");
        let real = files.read().unwrap_or_else(|error| panic!("{error:?}"));
        let trace = &real.trace;

        // The shape.
        let bytes = std::fs::metadata(&files.trace).expect("it is there").len();
        assert_eq!(bytes, 4 * (trace.height * trace.width) as u64, "{what}");
        assert_eq!(trace.width, apc.width(), "{what}");
        assert_eq!(trace.height, trace.live_rows.next_power_of_two(), "{what}");

        // The live rows.
        let flag = apc.column_indices()[&apc.is_valid];
        let flags = &trace.values[flag * trace.height..][..trace.height];
        for (row, flag) in flags.iter().enumerate() {
            let live = u32::from(row < trace.live_rows);
            assert_eq!(flag.as_canonical_u32(), live, "{what}, row {row}");
        }
        *calls.entry(&files.apc).or_default() += trace.live_rows;

        // The values: those that a proof would be of.
        let segment = (0..digests.segments.len())
            .find(|segment| {
                let folder = format!("traces_segment_{segment}");
                (files.trace.parent()).is_some_and(|parent| parent.ends_with(folder))
            })
            .expect("it lies in the folder of a segment");
        let digest = MatrixDigest::of(
            TracePart::Common,
            &ColMajorMatrix::new(trace.values.clone(), trace.width),
        );
        let air = (digests.segments[segment].airs.iter()).find(|air| air.air == apc.name);
        let air = air.expect("the segment has a trace of the APC");
        assert_eq!(air.matrices, [digest], "{what}");

        // What every kernel counts on them.
        let interactions = real.apc.interactions().expect("they are well-formed");
        assert!(!interactions.interactions().is_empty(), "{what}");
        for kernel in BusKernel::ALL {
            let program = kernel.compile(&interactions).expect("it fits");
            let mut counts = Histograms::zeros(&TABLES);
            let view = TraceView::new(&trace.values, trace.width, trace.height);
            program
                .replay(view, trace.live_rows, &mut counts, OutOfTable::Report)
                .expect("the trace is right");
            assert!(counts == real.expected, "{kernel} on {what}");
        }
    }

    // All of them: every call of the profiled run, which was the same one.
    assert_eq!(calls.len(), 2, "{all:?}", all = names(&folder));
    let mut total = 0;
    for (path, calls) in calls {
        let json = std::fs::read(path).expect("it can be read");
        let apc: Autoprecompile = serde_json::from_slice(&json).expect("it is an APC");
        assert_eq!(calls, apc.profile_executions as usize, "{}", apc.name);
        total += calls;
    }
    let line = format!("{} trace(s) of 2 APC(s), {total} calls", all.len());
    assert!(said.output.contains(&line), "no `{line}` in {said:#?}");
    let digested = digests.segments.iter().flat_map(|segment| &segment.airs);
    let digested = digested.filter(|air| air.air.starts_with("Autoprecompile"));
    assert_eq!(digested.count(), all.len());

    // Never overwritten, and refused before any work.
    let before = names(&folder);
    let again = run(&command, &place.join("other artifacts"));
    again.failed_with(&["apc-traces exists already", "remove it"]);
    assert_eq!(names(&folder), before);
    assert!(!place.join("other artifacts").exists());

    #[cfg(unix)]
    an_interrupt_leaves_no_folder(place, &artifacts);
}

/// With the APCs among the artifacts. Whatever has been written by then, in a folder of another name, is gone.
#[cfg(unix)]
fn an_interrupt_leaves_no_folder(place: &Path, artifacts: &Path) {
    use std::time::{Duration, Instant};

    let inner = place.join("interrupted");
    std::fs::create_dir(&inner).expect("it can be made");
    let (command, folder, digests) = apc_traces(&inner);
    // The digests would be there first.
    let command = command.replace(&format!("--trace-digests {}", digests.display()), "");
    let mut process = binary()
        .args(command.split_whitespace())
        .arg("--artifacts-dir")
        .arg(artifacts)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary starts");
    let start = Instant::now();
    // Not before the first file: an APC.
    while !names(&inner)
        .iter()
        .any(|name| !names(&inner.join(name)).is_empty())
    {
        assert!(start.elapsed() < Duration::from_secs(120), "nothing comes");
        assert_eq!(process.try_wait().expect("it runs"), None, "ended too soon");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!folder.exists(), "there before it is whole");
    let killed = std::process::Command::new("kill")
        .args(["-INT", &process.id().to_string()])
        .status()
        .expect("there is a kill command");
    assert!(killed.success());
    let status = process.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    assert_eq!(names(&inner), [""; 0], "half-written files");
}

#[test]
fn apc_traces_need_apcs_and_a_place() {
    let place = directory();
    let place = place.path();
    let folder = place.join("traces");
    let execute = |more: &str, folder: &Path| {
        run(
            &format!(
                "execute guest-keccak --input 1 --security toy {more} --apc-traces {}",
                folder.display()
            ),
            &place.join("artifacts"),
        )
    };
    let said = execute("", &folder);
    assert_eq!(said.code, Some(2), "{said:#?}");
    assert!(said.errors.contains("--autoprecompiles"), "{said:#?}");
    execute("--autoprecompiles 0", &folder).failed_with(&["no APCs", "--autoprecompiles"]);
    let nowhere = place.join("missing/traces");
    execute("--autoprecompiles 1", &nowhere).failed_with(&["missing/traces cannot be written"]);
    assert_eq!(names(place), ["artifacts"]);
}
