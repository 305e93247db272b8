//! Compiles one APC's bus interactions for every kernel and prints what the programs cost.
//!
//! `cargo run --release --example compile_bus -- machine.json`: a `SymbolicMachine` in powdr's form. Without a file, a
//! machine of two lookups.

use openvm_apc::bus::{
    stats::{BusStats, StatsTable},
    BusKernel, ColumnOrder, CountingInteractions, PeripheryTables,
};
use powdr_autoprecompiles::symbolic_machine::SymbolicMachine;
use powdr_number::BabyBearField;

const TWO_LOOKUPS: &str = r#"{"constraints": [], "derived_columns": [], "bus_interactions": [
    {"id": 3, "mult": "is_valid@2", "args": [["a@0", "+", [256, "*", "b@1"]], 17]},
    {"id": 6, "mult": 1, "args": ["a@0", "b@1", 0, 0]}]}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let json = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(path)?,
        None => TWO_LOOKUPS.to_string(),
    };
    let machine: SymbolicMachine<BabyBearField> = serde_json::from_str(&json)?;
    let tables = PeripheryTables::OPENVM_DEFAULT;
    let columns = ColumnOrder::new(machine.main_columns().map(|column| column.id));
    let is_valid = machine
        .main_columns()
        .find(|column| *column.name == "is_valid");
    let is_valid = is_valid.map(|column| column.id);
    let interactions =
        CountingInteractions::new(&machine.bus_interactions, &columns, is_valid, &tables)?;
    for kernel in BusKernel::ALL {
        let start = std::time::Instant::now();
        kernel.compile(&interactions)?;
        println!("{kernel}: compiled in {:?}", start.elapsed());
    }
    println!("{}", StatsTable(&[BusStats::of("machine", &interactions)?]));
    Ok(())
}
