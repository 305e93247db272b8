//! The bus programs of real machines: those that `powdr-autoprecompiles` carries for its own tests.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use openvm_apc::bus::{
    dag, reference,
    stats::{BusStats, StatsTable},
    BusKernel, ColumnOrder, CountingInteractions, Histograms, OutOfTable, PeripheryTables,
    TraceView, F,
};
use p3_field::PrimeCharacteristicRing;
use powdr_autoprecompiles::symbolic_machine::{SymbolicBusInteraction, SymbolicMachine};
use powdr_number::BabyBearField;

fn tables() -> PeripheryTables {
    PeripheryTables::OPENVM_DEFAULT
}

fn test_data() -> PathBuf {
    Path::new(env!("POWDR_AUTOPRECOMPILES_PACKAGE")).join("tests")
}

fn machine(file: &str) -> SymbolicMachine<BabyBearField> {
    let file = std::fs::File::open(test_data().join(file)).unwrap();
    let mut json = String::new();
    libflate::gzip::Decoder::new(file)
        .unwrap()
        .read_to_string(&mut json)
        .unwrap();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let machine = value.get("machine").unwrap_or(&value);
    // Some of the files wrap the machine in an APC.
    serde_json::from_value(machine.clone()).unwrap()
}

/// A row of small values, so that many lookups hit their tables, in a trace of two rows.
fn values(width: usize) -> Vec<F> {
    (0..2 * width)
        .map(|index| F::from_u32((index as u32).wrapping_mul(2654435761) >> 29))
        .collect()
}

fn check(name: &str, machine: &SymbolicMachine<BabyBearField>) -> BusStats {
    let columns = ColumnOrder::new(machine.main_columns().map(|column| column.id));
    let all: &[SymbolicBusInteraction<BabyBearField>] = &machine.bus_interactions;
    let everything = CountingInteractions::new(all, &columns, None, &tables()).unwrap();
    let values = values(columns.width());
    let trace = TraceView::new(&values, columns.width(), 2);

    // One interaction at a time, so that a broken lookup (the values are no real trace) hides no other.
    let mut valid = Vec::new();
    for interaction in all {
        let one = std::slice::from_ref(interaction);
        let counting = CountingInteractions::new(one, &columns, None, &tables()).unwrap();
        let mut scratch = Histograms::zeros(&PeripheryTables::default());
        scratch.variable_range_checker = vec![0; 1 << 18];
        scratch.range_tuple_checker = vec![0; 256 * 2048];
        scratch.bitwise_lookup = vec![0; 1 << 17];
        if valid.len() < 300
            && !counting.interactions().is_empty()
            && reference::replay(&counting, trace, 2, &mut scratch).is_ok()
        {
            valid.push(interaction.clone());
        }
    }
    assert!(!valid.is_empty(), "{name}: no lookup to compare");
    let counting = CountingInteractions::new(&valid, &columns, None, &tables()).unwrap();
    let mut expected = Histograms::zeros(&tables());
    reference::replay(&counting, trace, 2, &mut expected).unwrap();
    for kernel in BusKernel::ALL {
        let mut histograms = Histograms::zeros(&tables());
        kernel
            .compile(&counting)
            .unwrap()
            .replay(trace, 2, &mut histograms, OutOfTable::Report)
            .unwrap();
        assert_eq!(histograms, expected, "{name}, {kernel}");
    }
    // All of them compile, and agree on what to drop.
    let mut first: Option<Histograms> = None;
    for schedule in dag::Schedule::ALL {
        let mut histograms = Histograms::zeros(&tables());
        dag::Program::compile(&everything, schedule)
            .unwrap()
            .replay(trace, 2, &mut histograms, OutOfTable::Drop)
            .unwrap();
        assert_eq!(*first.get_or_insert_with(|| histograms.clone()), histograms);
    }
    BusStats::of(name, &everything).unwrap()
}

#[test]
fn machines_of_powdr_autoprecompiles() {
    let stats: Vec<BusStats> = [
        "single_div_nondet.json.gz",
        "wasm_register_reuse.json.gz",
        "wasm_reth_apc_pre_opt.json.gz",
        "apc_reth_op_bug.json.gz",
        "keccak_apc_pre_opt.json.gz",
        "ecrecover_apc_pre_opt.json.gz",
    ]
    .into_iter()
    .filter_map(|file| {
        let machine = machine(file);
        // The smallest machine has no lookups on these buses.
        let counts = machine
            .bus_interactions
            .iter()
            .any(|interaction| tables().table_of_bus(interaction.id).is_some());
        counts.then(|| check(file, &machine))
    })
    .collect();
    assert!(stats.len() >= 4, "{} machines with lookups", stats.len());
    let table = StatsTable(&stats).to_string();
    assert_eq!(table.lines().count(), stats.len() + 3);
    for stats in &stats {
        assert!(stats.early_read_again.slots <= stats.pinned_buffered.slots);
        assert!(stats.early_read_again.live_maximum <= stats.early_read_again.slots);
        assert!(stats.shared_nodes <= stats.nodes);
    }
}
