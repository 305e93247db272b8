//! What can go wrong while APCs are built.

use openvm_circuit::arch::{
    AirInventoryError, ChipInventoryError, ExecutionError, ExecutorInventoryError,
    StaticProgramError,
};
use thiserror::Error;

/// An error of the floor `apc`.
#[derive(Debug, Error)]
pub enum ApcError {
    /// The ELF could not be read as a RISC-V executable.
    #[error("the ELF cannot be read: {0}")]
    Elf(String),
    /// The ELF holds an instruction that no extension of the VM configuration knows.
    #[error(
        "the instruction {word:#010x} at pc {pc:#010x} is not supported by the configured VM: \
         enable the extension that it belongs to (openvm.toml), or build the guest without it"
    )]
    UnsupportedInstruction {
        /// Address of the instruction.
        pc: u32,
        /// Its 32-bit encoding.
        word: u32,
    },
    /// The program could not be transpiled.
    #[error("the program cannot be transpiled: {0}")]
    Transpile(String),
    /// Block boundaries are found through relocations, which this ELF lacks.
    #[error(
        "jump targets cannot be read off the ELF ({0}): link the guest with `-C link-arg=--emit-relocs`, \
         or run with `--autoprecompiles 0`"
    )]
    JumpTargets(String),
    /// The profiled execution failed.
    #[error("profiling failed at pc {pc:#010x}: {source}")]
    Profile {
        /// Address of the instruction that failed.
        pc: u32,
        /// The VM's error.
        source: ExecutionError,
    },
    /// The program cannot be loaded into the VM.
    #[error("the program does not fit the VM: {0}")]
    Program(#[from] StaticProgramError),
    /// The VM configuration's executors could not be created.
    #[error("the VM's executors cannot be created: {0}")]
    Executors(#[from] ExecutorInventoryError),
    /// The VM configuration's AIRs could not be created.
    #[error("the VM's AIRs cannot be created: {0}")]
    Airs(#[from] AirInventoryError),
    /// The VM configuration's chips could not be created.
    #[error("the VM's chips cannot be created: {0}")]
    Chips(#[from] ChipInventoryError),
    /// The optimizer stopped in the middle of its work.
    #[error(
        "building APCs stopped inside powdr-autoprecompiles: {0}; \
         try fewer blocks or `--pgo instruction`, and report the guest"
    )]
    Optimizer(String),
    /// An optimized machine lacks what binds it to the execution.
    #[error(
        "the APC of the block at pc {pc:#010x} has no execution-bus send with multiplicity \
         `is_valid`: it cannot be bound to the program"
    )]
    Unbound {
        /// First pc of the block.
        pc: u32,
    },
    /// A profile-guided ranking was asked for, but no profile given.
    #[error("ranking blocks by what they cost in an execution needs an execution profile: pass one, or rank with `--pgo none`")]
    MissingProfile,
    /// An APC was built for another program.
    #[error(
        "{name} was not built for this program: at pc {pc:#010x} the program has other instructions. \
         Build the APCs again"
    )]
    ForeignApc {
        /// The APC's name.
        name: String,
        /// Where the program first differs.
        pc: u32,
    },
    /// The APC candidates directory cannot be used.
    #[error("the APC candidates directory {path} cannot be used: {source}")]
    CandidatesDirectory {
        /// The directory.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
