//! The GPU floor (feature `cuda`): FFI, device structures, checked launches. The only place with `extern "C"`.
//!
//! Everything runs on the prover's stream, given by a [`GpuDeviceCtx`]. Nothing here synchronises unless its
//! documentation says so.
//!
//! [`GpuDeviceCtx`]: openvm_cuda_common::stream::GpuDeviceCtx

pub mod derived;
pub mod device;
pub mod error;
pub mod event;
mod ffi;
pub mod histograms;
pub mod launch;
pub mod limit;
pub mod memory;
pub mod profiler;
pub mod program;
pub mod provenance;
pub mod structs;

pub use derived::DeviceDerivedColumns;
pub use device::{open_device, GpuInfo};
pub use error::GpuError;
pub use event::{LaunchTiming, Stopwatch};
pub use histograms::DeviceHistograms;
pub use limit::DeviceMemoryLimit;
pub use program::{program_uploads, BusScratch, DeviceBusProgram, GpuSettings};
pub use provenance::Provenance;
pub use structs::{BusTrace, OriginalCell, OriginalTrace, PeripheryCounts, Substitution};
