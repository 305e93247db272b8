//! What is checked and timed: every bus kernel, and `dag` with the seed's schedule, on the tables of OpenVM's default.

use std::sync::Arc;

use eyre::Result;
use openvm_apc::bus::{dag, BusKernel, BusProgram, CountingInteractions, PeripheryTables};

/// The names of the programs.
pub const PROGRAMS: [&str; 4] = ["vm", "dag", "dag-seed", "terms"];

/// The tables of OpenVM's default configuration.
pub const TABLES: PeripheryTables = PeripheryTables::OPENVM_DEFAULT;

/// Compiles one of [`PROGRAMS`].
pub fn compile(name: &str, interactions: &CountingInteractions) -> Result<Arc<BusProgram>> {
    Ok(match name {
        "dag-seed" => Arc::new(BusProgram::Dag(dag::Program::compile(
            interactions,
            dag::Schedule::SEED,
        )?)),
        name => name.parse::<BusKernel>()?.compile(interactions)?,
    })
}
