//! Digests of traces: what `--trace-digests` writes and `compare-traces` compares, on the CPU.

mod cli_common;

use std::path::{Path, PathBuf};

use cli_common::{binary, directory, file, run, Said};
use openvm_apc::pipeline::TraceDigests;

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
