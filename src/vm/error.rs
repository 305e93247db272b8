//! What can go wrong while a VM with APCs is set up.

use openvm_circuit::arch::{AirInventoryError, ExecutorInventoryError};
use thiserror::Error;

use super::binding::BindingError;
use crate::{bus::BusError, trace::TraceError};

/// An error of the floor `vm`.
#[derive(Debug, Error)]
pub enum ApcVmError {
    /// An APC's trace cannot be planned.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The AIRs of the wrapped VM cannot be created.
    #[error("the VM to extend has no AIRs: {0}")]
    Airs(#[from] AirInventoryError),
    /// The executors of the wrapped VM cannot be created.
    #[error("the VM to extend has no executors: {0}")]
    Executors(#[from] ExecutorInventoryError),
    /// An APC has an instruction that the wrapped VM cannot execute.
    #[error(
        "APC {apc} is of another VM: none of this one's executors knows its instruction {instruction}; build it anew"
    )]
    UnknownInstruction {
        /// The APC.
        apc: String,
        /// The instruction: opcode and operands.
        instruction: String,
    },
    /// An APC refers to an AIR that the wrapped VM does not have.
    #[error(
        "APC {apc} is of another VM: it refers to extension AIR {air}, and this one has {airs}; build it anew"
    )]
    OtherVm {
        /// The APC.
        apc: String,
        /// The AIR's position among the extension AIRs.
        air: usize,
        /// How many there are.
        airs: usize,
    },
    /// An APC's bus interactions cannot be compiled.
    #[error("APC {apc}: {source}")]
    Bus {
        /// The APC.
        apc: String,
        /// What is wrong.
        source: BusError,
    },
    /// An APC's rows are not bound to the calls of its block.
    #[error("APC {apc} is not sound: {source}; build it anew")]
    Unbound {
        /// The APC.
        apc: String,
        /// What is missing.
        source: BindingError,
    },
}
