//! The closed list of bus kernels, and the programs they run.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    dag,
    error::BusError,
    interaction::CountingInteractions,
    table::{Histograms, PeripheryTables, TableKind},
    terms,
    trace::TraceView,
    vm,
};

/// The environment variable that names the kernel where no flag does.
pub const BUS_KERNEL_VARIABLE: &str = "POWDR_BUS_KERNEL";

/// Which kernel applies an APC's bus interactions. The one place where a kernel is registered.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum BusKernel {
    /// Stack-machine bytecode, one thread a row.
    #[default]
    Vm,
    /// The backend's 128-bit rules over a directed acyclic graph.
    Dag,
    /// Flat sums; the interactions split over warps and blocks as well as the rows, counted in shared memory.
    Terms,
}

impl BusKernel {
    /// All kernels.
    pub const ALL: [BusKernel; 3] = [BusKernel::Vm, BusKernel::Dag, BusKernel::Terms];

    /// The name in flags and in the environment.
    pub fn name(self) -> &'static str {
        match self {
            BusKernel::Vm => "vm",
            BusKernel::Dag => "dag",
            BusKernel::Terms => "terms",
        }
    }

    /// The kernel that a flag names, else the one that [`BUS_KERNEL_VARIABLE`] names, else the default.
    pub fn resolve(flag: Option<&str>) -> Result<Self, BusError> {
        match flag {
            Some(name) => name.parse(),
            None => match std::env::var(BUS_KERNEL_VARIABLE) {
                Ok(name) => name.parse(),
                Err(std::env::VarError::NotPresent) => Ok(Self::default()),
                Err(std::env::VarError::NotUnicode(name)) => name.to_string_lossy().parse(),
            },
        }
    }

    /// Compiles an APC's counting interactions. A pure function of them.
    pub fn compile(self, interactions: &CountingInteractions) -> Result<Arc<BusProgram>, BusError> {
        Ok(Arc::new(match self {
            BusKernel::Vm => BusProgram::Vm(vm::Program::compile(interactions)?),
            BusKernel::Dag => BusProgram::Dag(dag::Program::compile(
                interactions,
                dag::Schedule::FEWEST_SLOTS,
            )?),
            BusKernel::Terms => BusProgram::Terms(terms::Program::compile(interactions)?),
        }))
    }
}

impl fmt::Display for BusKernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for BusKernel {
    type Err = BusError;

    fn from_str(name: &str) -> Result<Self, BusError> {
        Self::ALL
            .into_iter()
            .find(|kernel| kernel.name() == name)
            .ok_or_else(|| {
                BusError::UnknownKernel(name.to_string(), Self::ALL.map(BusKernel::name).join(", "))
            })
    }
}

/// What to do with a lookup that its table has no row for: a broken trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfTable {
    /// Report it: checking mode.
    Report,
    /// Count nothing, as the device does: counting mode.
    Drop,
}

/// An APC's bus interactions, compiled for one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusProgram {
    /// For [`BusKernel::Vm`].
    Vm(vm::Program),
    /// For [`BusKernel::Dag`].
    Dag(dag::Program),
    /// For [`BusKernel::Terms`].
    Terms(terms::Program),
}

impl BusProgram {
    /// The tables that it was compiled for.
    pub fn tables(&self) -> &PeripheryTables {
        match self {
            BusProgram::Vm(program) => program.tables(),
            BusProgram::Dag(program) => program.tables(),
            BusProgram::Terms(program) => program.tables(),
        }
    }

    /// Counts the interactions of the first `live_rows` rows of the trace, interpreting the words that the device reads.
    pub fn replay(
        &self,
        trace: TraceView<'_>,
        live_rows: usize,
        histograms: &mut Histograms,
        out_of_table: OutOfTable,
    ) -> Result<(), BusError> {
        match self {
            BusProgram::Vm(program) => program.replay(trace, live_rows, histograms, out_of_table),
            BusProgram::Dag(program) => program.replay(trace, live_rows, histograms, out_of_table),
            BusProgram::Terms(program) => {
                program.replay(trace, live_rows, histograms, out_of_table)
            }
        }
    }
}

/// One evaluated interaction of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup {
    pub(super) interaction: usize,
    pub(super) table: TableKind,
    pub(super) row: usize,
    pub(super) arguments: [u32; 2],
    pub(super) selector: Option<u32>,
    pub(super) multiplicity: u32,
}

/// Counts a lookup.
pub(super) fn count(
    tables: &PeripheryTables,
    lookup: Lookup,
    histograms: &mut Histograms,
    out_of_table: OutOfTable,
) -> Result<(), BusError> {
    match tables.bin(lookup.table, lookup.arguments, lookup.selector.unwrap_or(0)) {
        Some(bin) => histograms.add(lookup.table, bin, lookup.multiplicity),
        None if out_of_table == OutOfTable::Report => {
            return Err(BusError::OutOfTable {
                interaction: lookup.interaction,
                table: lookup.table,
                row: lookup.row,
                arguments: lookup
                    .arguments
                    .into_iter()
                    .chain(lookup.selector)
                    .collect(),
                multiplicity: lookup.multiplicity,
            })
        }
        None => {}
    }
    Ok(())
}
