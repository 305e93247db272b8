//! Building APCs: ISA, AIR extraction, bus map, bus interaction handler, adapter, program rewriting.
//!
//! The way: an ELF becomes a [`GuestProgram`]; a run of it an execution profile; the VM configuration's own AIRs
//! become [`OriginalAirs`]; powdr merges and optimizes blocks over them; the best become [`Autoprecompile`]s, and the
//! program is rewritten to call them.

pub mod adapter;
pub mod air;
pub mod autoprecompile;
pub mod build;
pub mod bus_interaction_handler;
pub mod error;
pub mod instruction;
pub mod isa;
pub mod memory;
pub mod profile;
pub mod program;

pub use air::{AirIndex, OriginalAir, OriginalAirs, VmBuses};
pub use autoprecompile::{Autoprecompile, Column, APC_OPCODE_OFFSET};
pub use build::{build_apcs, ApcSettings, Pgo};
pub use error::ApcError;
pub use instruction::ApcInstruction;
pub use profile::execution_profile;
pub use program::{rewrite_program, GuestProgram};

/// Bytes from one instruction to the next.
pub(crate) const PC_STEP: u32 = openvm_instructions::program::DEFAULT_PC_STEP;

/// What a caught panic said.
pub fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it gave no reason".to_string())
}
