//! What can go wrong on the GPU, with what to do about it.

use openvm_cuda_common::error::{CudaError, MemCopyError, MemoryError};
use thiserror::Error;

use crate::{bus::table::TableSizes, units::size};

/// A failure of the GPU or of its use.
#[derive(Debug, Error)]
pub enum GpuError {
    /// There is no driver, or no GPU that it can use.
    #[error(
        "no usable NVIDIA GPU: {reason}. Install the driver (580 or newer for CUDA 13), check `nvidia-smi` and \
         CUDA_VISIBLE_DEVICES, or prove on the CPU with --device cpu"
    )]
    NoDevice {
        /// What the CUDA runtime said.
        reason: String,
    },

    /// The GPU cannot run the code that this binary contains.
    #[error(
        "{name} has compute capability {capability}, but this binary holds code for {built_for}. {}use --device cpu",
        rebuild(*capability)
    )]
    Unsupported {
        /// Name of the GPU.
        name: String,
        /// Its compute capability, for example 86.
        capability: u32,
        /// The architectures compiled in, for example `80,90`.
        built_for: String,
    },

    /// The device's memory does not suffice.
    #[error(
        "out of device memory: {buffer} needs {}; {} of the GPU's {} are free{}. \
         Lower --segment-memory (more, smaller segments) or --bus-scratch, raise --device-memory if it is given, or \
         close other programs on the GPU",
        size(*bytes as u64), size(*free as u64), size(*total as u64), unless_full(reason)
    )]
    OutOfMemory {
        /// What the memory was for.
        buffer: String,
        /// How much was asked for.
        bytes: usize,
        /// Free bytes of the device, as the driver reports them.
        free: usize,
        /// All bytes of the device.
        total: usize,
        /// What the allocator said.
        reason: MemoryError,
    },

    /// The limit of device memory cannot be kept.
    #[error(
        "device memory cannot be limited to {} MiB: {reason}", limit >> 20
    )]
    Limit {
        /// The limit, in bytes.
        limit: usize,
        /// Why.
        reason: String,
    },

    /// An earlier failure took the CUDA context with it.
    #[error(
        "the CUDA context of this process is lost: {source}. No call will work any more: start a new process"
    )]
    ContextLost {
        /// What the CUDA runtime says to every call.
        source: CudaError,
    },

    /// A copy between host and device failed.
    #[error("copying {what}: {source}")]
    Copy {
        /// What was copied.
        what: String,
        /// What the CUDA runtime said.
        source: MemCopyError,
    },

    /// A kernel could not be launched, or an earlier one failed.
    #[error("kernel {kernel} of {apc}: {source}. An earlier kernel may be to blame: CUDA_LAUNCH_BLOCKING=1 tells")]
    Launch {
        /// The kernel.
        kernel: &'static str,
        /// The APC it ran for.
        apc: String,
        /// What the CUDA runtime said.
        source: CudaError,
    },

    /// A call of the CUDA runtime other than a copy or a launch failed.
    #[error("{call}: {source}")]
    Runtime {
        /// The call.
        call: &'static str,
        /// What the CUDA runtime said.
        source: CudaError,
    },

    /// A program was compiled for other periphery tables than the VM has.
    #[error(
        "the bus program of {apc} is for these tables: {program}; but the VM's chips are: {chips}; build the APC for this VM \
         configuration"
    )]
    OtherTables {
        /// The APC.
        apc: String,
        /// The tables that the program was compiled for.
        program: TableSizes,
        /// The chips' tables.
        chips: TableSizes,
    },

    /// A program or a trace exceeds what the kernels can address.
    #[error("{apc}: {what}")]
    TooLarge {
        /// The APC.
        apc: String,
        /// The limit, and what exceeds it.
        what: String,
    },
}

/// The least compute capability that the kernels compile for.
const LEAST_CAPABILITY: u32 = 80;

/// What the owner of a GPU that this binary cannot use may do, besides using the CPU.
fn rebuild(capability: u32) -> String {
    if capability < LEAST_CAPABILITY {
        return format!("The kernels need {LEAST_CAPABILITY} or more: ");
    }
    format!(
        "Rebuild with CUDA_ARCH={capability} scripts/cuda-cargo build --release --features cuda, or "
    )
}

/// What the allocator said, unless it is that there is no room, which is said already.
fn unless_full(reason: &MemoryError) -> String {
    match reason {
        MemoryError::OutOfMemory { .. } | MemoryError::InvalidMemorySize { .. } => String::new(),
        MemoryError::Cuda(error) if error.is_out_of_memory() => String::new(),
        other => format!(" ({other})"),
    }
}

impl GpuError {
    /// The CUDA runtime's number for the failure, where it was the runtime's.
    pub fn code(&self) -> Option<i32> {
        match self {
            GpuError::Launch { source, .. }
            | GpuError::Runtime { source, .. }
            | GpuError::ContextLost { source }
            | GpuError::Copy {
                source: MemCopyError::Cuda(source),
                ..
            }
            | GpuError::OutOfMemory {
                reason: MemoryError::Cuda(source),
                ..
            } => Some(source.code),
            _ => None,
        }
    }
}
