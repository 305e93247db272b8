//! What of `benches/gpu_kernels` needs no GPU: its made-up cases give what they expect on every program's interpreter, and
//! drive what they are for; its readers are right.

#[allow(dead_code)]
#[path = "../benches/gpu_kernels/case.rs"]
mod case;
mod cli_common;
#[path = "../benches/gpu_kernels/contention_case.rs"]
mod contention_case;
#[path = "../benches/gpu_kernels/edge_case.rs"]
mod edge_case;
#[allow(dead_code)]
#[path = "../benches/gpu_kernels/files.rs"]
mod files;
#[path = "../benches/gpu_kernels/programs.rs"]
mod programs;
#[path = "../benches/gpu_kernels/random_case.rs"]
mod random_case;
#[path = "../benches/gpu_kernels/repeated.rs"]
mod repeated;

use std::path::Path;

use case::Case;
use cli_common::{directory, file};
use files::{TraceFiles, TraceName};
use openvm_apc::bus::{
    reference, table::TableKind, terms::launch::DeviceLimits, Histograms, OutOfTable, TraceView,
};
use programs::{compile, PROGRAMS, TABLES};
use random_case::{random_case, Random, Values};
use repeated::ExpectedCounts;

/// An H200, counting in shared memory from the first addition on.
const H200: DeviceLimits = DeviceLimits {
    multiprocessors: 132,
    shared_memory: 227 << 10,
    global_warps: 8,
    private_warps: 28,
    private_from_additions: 0,
};

/// What each program's interpreter counts is what the case expects.
#[track_caller]
fn check(what: &str, case: &Case) {
    let interactions = case.counting_interactions().expect("they are well-formed");
    let trace = &case.trace;
    let view = TraceView::new(&trace.values, trace.width, trace.height);
    for name in PROGRAMS {
        let program = compile(name, &interactions).expect("it fits");
        let mut counts = Histograms::zeros(&TABLES);
        program
            .replay(view, trace.live_rows, &mut counts, OutOfTable::Report)
            .expect("all lookups are in their tables");
        assert!(counts == case.expected, "{name}, {what}");
    }
}

#[test]
fn random_cases_count_what_they_expect() {
    let mut random = Random(7);
    for height in [1, 2, 8, 64] {
        for values in [Values::Random, Values::Edges, Values::Equal] {
            for live_rows in [0, 1, height] {
                let case = random_case(&mut random, 60, height, live_rows, values);
                let what = format!("{values:?} values, height {height}, {live_rows} live rows");
                check(&what, &case);
            }
        }
    }
}

#[test]
fn every_edge_is_met() {
    let edges = edge_case::edge_bins();
    let expected: usize = 2 * 18 + 4 + 2 * 4;
    assert_eq!(edges.len(), expected);
    for (height, live_rows) in [(64, edge_case::ROWS), (1024, 1001)] {
        let case = edge_case::edge_case(height, live_rows);
        check(&format!("height {height}"), &case);
        edge_case::ensure_edges(&case.expected).expect("all are met");
    }
    // Each is asked for.
    let case = edge_case::edge_case(64, edge_case::ROWS);
    for (table, bin) in edges {
        let mut without = case.expected.clone();
        let count = without.of(table)[bin];
        without.add(table, bin, count.wrapping_neg());
        let missed = edge_case::ensure_edges(&without).map_err(|error| error.to_string());
        let said = missed.expect_err("an edge is missing");
        assert!(
            said.contains(&format!("bin {bin} of the {table}")),
            "{said}"
        );
    }
}

#[test]
fn contention_drives_what_it_is_for() {
    let case = contention_case::contention_case();
    check("contention", &case);
    let counted: u64 = (case.expected.variable_range_checker.iter())
        .map(|&count| u64::from(count))
        .sum();
    assert_eq!(counted, 32 * contention_case::LIVE_ROWS as u64);

    let interactions = case.counting_interactions().expect("they are well-formed");
    let driven = |limits: DeviceLimits| contention_case::ensure_driven(&interactions, &limits);
    driven(H200).expect("it is made for it");
    // Less shared memory, fewer and more multiprocessors.
    for (multiprocessors, shared_memory) in [(108, 163 << 10), (128, 99 << 10), (160, 227 << 10)] {
        driven(DeviceLimits {
            multiprocessors,
            shared_memory,
            ..H200
        })
        .expect("it leaves room");
    }
    // And where it would not, it says so.
    for limits in [
        DeviceLimits {
            multiprocessors: 300,
            ..H200
        },
        DeviceLimits {
            shared_memory: 1 << 10,
            ..H200
        },
        DeviceLimits {
            private_from_additions: 5 << 17,
            ..H200
        },
    ] {
        assert!(driven(limits).is_err(), "{limits:?}");
    }
}

#[test]
fn repeated_rows_count_as_the_reference_says() {
    let case = random_case(&mut Random(3), 20, 64, 37, Values::Random);
    let interactions = case.counting_interactions().expect("they are well-formed");
    let expected = ExpectedCounts::new(&interactions, &case.trace).expect("the trace is right");
    for rows in [1, 36, 37, 38, 74, 100, 1000] {
        let repeated = case.trace.repeated(rows);
        assert_eq!(repeated.height, rows.next_power_of_two());
        let mut counts = Histograms::zeros(&TABLES);
        let view = TraceView::new(&repeated.values, repeated.width, repeated.height);
        reference::replay(&interactions, view, rows, &mut counts).expect("the trace is right");
        let found = expected.of_rows(rows).expect("the trace is right");
        assert!(found == counts, "{rows} rows");
    }
    let once = expected.of_rows(37).expect("the trace is right");
    assert!(once == case.expected);
}

#[test]
fn names_of_traces_are_taken_apart() {
    let name = TraceName::of(Path::new("x/cpu_pc0x206080_calls240_h256_w2022.u32"));
    let expected = TraceName {
        pc: "0x206080".to_string(),
        calls: 240,
        height: 256,
        width: 2022,
    };
    assert_eq!(name.expect("it is one"), expected);
    for other in [
        "trace.u32",
        "cpu_pc0x1_callsmany_h1_w1.u32",
        "cpu_pc0x1_calls1_h1.u32",
    ] {
        assert!(TraceName::of(Path::new(other)).is_err(), "{other}");
    }
}

/// A program that looks its one column up, with two live rows of two; then everything that can be wrong with the files.
#[test]
fn damaged_data_is_refused() {
    const APC: &str = r#"{"columns": [{"poly_id": 5}], "machine": {"bus_interactions": [
        {"id": 3, "mult": 1, "args": ["value@5", 4]}]}}"#;
    let place = directory();
    let traces = place.path().join("traces_segment_0");
    std::fs::create_dir(&traces).expect("it can be made");
    let write = |name: &str, content: &[u8]| {
        std::fs::write(traces.join(name), content).expect("it can be written");
    };
    let all = || TraceFiles::all(place.path());
    let read = || all().and_then(|files| files[0].read());
    let refused = |words: &str| {
        let error = format!("{:?}", read().err().expect("something is wrong"));
        assert!(error.contains(words), "no `{words}` in {error}");
    };
    const TRACE: &str = "cpu_pc0x100_calls2_h2_w1.u32";
    const HISTOGRAMS: &str = "hist_pc0x100_calls2.json";
    let good_trace: Vec<u8> = [3u32, 15].into_iter().flat_map(u32::to_le_bytes).collect();

    refused("nothing would be checked");
    write(TRACE, &good_trace);
    refused("no APC file");
    file(&place, "apc_00_pc0x100.json", b"{}");
    refused("is no APC file");
    file(&place, "apc_00_pc0x100.json", APC.as_bytes());
    refused(HISTOGRAMS);
    write(HISTOGRAMS, br#"{"3": {"18": 1, "30": 1}}"#);
    let real = read().expect("all is well");
    assert_eq!(real.expected.of(TableKind::VariableRangeChecker)[18], 1);
    let interactions = real.apc.interactions().expect("they are well-formed");
    let expected = ExpectedCounts::new(&interactions, &real.trace).expect("the trace is right");
    assert!(expected.of_rows(2).expect("the trace is right") == real.expected);

    write(HISTOGRAMS, br#"{"9": {"18": 1}}"#);
    refused("bus 9");
    write(HISTOGRAMS, br#"{"3": {"262144": 1}}"#);
    refused("no bin 262144");
    write(TRACE, &good_trace[..7]);
    refused("does not hold 1 columns");
    write(TRACE, &[&good_trace[..], &good_trace].concat());
    refused("not what its name says");
    write(TRACE, &good_trace[..4]);
    refused("cannot be live");
    write(TRACE, &[0xff; 8]);
    refused("no canonical field element");
}
