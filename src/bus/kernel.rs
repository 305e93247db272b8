//! The closed list of bus kernels, and the programs they run.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    error::BusError, interaction::CountingInteractions, reference, table::Histograms,
    trace::TraceView,
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
}

impl BusKernel {
    /// All kernels.
    pub const ALL: [BusKernel; 2] = [BusKernel::Vm, BusKernel::Dag];

    /// The name in flags and in the environment.
    pub fn name(self) -> &'static str {
        match self {
            BusKernel::Vm => "vm",
            BusKernel::Dag => "dag",
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
        Ok(Arc::new(BusProgram {
            interactions: interactions.clone(),
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

/// An APC's bus interactions, compiled for one kernel.
#[derive(Debug)]
pub struct BusProgram {
    interactions: CountingInteractions,
}

impl BusProgram {
    /// Counts the interactions of the first `live_rows` rows of the trace.
    pub fn replay(
        &self,
        trace: TraceView<'_>,
        live_rows: usize,
        histograms: &mut Histograms,
    ) -> Result<(), BusError> {
        reference::replay(&self.interactions, trace, live_rows, histograms)
    }
}
