//! What the bus programs of a guest's APCs, or of one machine in a file, cost.

use std::path::Path;

use openvm_circuit::arch::VmCircuitConfig;
use openvm_sdk_config::SdkVmConfig;
use openvm_stark_sdk::config::baby_bear_poseidon2::BabyBearPoseidon2Config;
use powdr_autoprecompiles::symbolic_machine::SymbolicMachine;
use powdr_number::BabyBearField;

use super::{error::PipelineError, stages::SelectedApcs};
use crate::{
    apc::{ApcError, VmBuses},
    bus::{stats::BusStats, ColumnOrder, CountingInteractions},
    vm::SharedApc,
};

/// Set: a proof prints what [`of_apcs`] gives.
pub const DUMP_BUS_DAG_VARIABLE: &str = "POWDR_DUMP_BUS_DAG";

/// Name of the column that is one on live rows, in machines as powdr writes them.
const IS_VALID: &str = "is_valid";

/// The costs of the selected APCs' bus programs, in their order.
pub fn of_apcs(selected: &SelectedApcs) -> Result<Vec<BusStats>, PipelineError> {
    selected
        .apcs
        .iter()
        .map(|apc| {
            let shared = SharedApc::new(apc.clone().into(), &selected.buses)?;
            Ok(BusStats::of(&apc.name, shared.interactions())?)
        })
        .collect()
}

/// The costs of the bus programs of a machine in powdr's JSON form, on the buses of OpenVM's RV32IM.
pub fn of_machine(path: &Path) -> Result<BusStats, PipelineError> {
    let airs = VmCircuitConfig::<BabyBearPoseidon2Config>::create_airs(&SdkVmConfig::riscv32())
        .map_err(ApcError::from)?;
    let buses = VmBuses::from_inventory(&airs);
    let json = std::fs::read(path).map_err(|source| PipelineError::Read {
        what: "the machine",
        path: path.to_path_buf(),
        source,
    })?;
    let machine: SymbolicMachine<BabyBearField> =
        serde_json::from_slice(&json).map_err(|error| PipelineError::Machine {
            path: path.to_path_buf(),
            message: error.to_string(),
        })?;
    let columns = ColumnOrder::new(machine.main_columns().map(|column| column.id));
    let is_valid = machine
        .main_columns()
        .find(|column| *column.name == IS_VALID)
        .map(|column| column.id);
    let interactions =
        CountingInteractions::new(&machine.bus_interactions, &columns, is_valid, &buses.tables)?;
    Ok(BusStats::of(&path.display().to_string(), &interactions)?)
}
