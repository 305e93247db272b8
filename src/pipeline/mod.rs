//! guest → profile → select APCs → setup → execute | prove → verify, with artifacts on disk.

pub mod apc_traces;
pub mod artifacts;
#[cfg(feature = "cuda")]
pub mod bench;
pub mod device;
pub mod device_memory;
pub mod error;
pub mod fault;
pub mod folder;
pub mod guest;
pub mod progress;
pub mod proof_file;
pub mod security;
pub mod stages;
pub mod stats;
pub mod trace_digests;

pub use apc_traces::{ApcTracesError, ApcTracesReport};
pub use artifacts::{check_writable, pause_writes, write_atomically, ArtifactStore};
pub use device::{Device, DeviceSetup};
pub use device_memory::DeviceMemoryError;
pub use error::PipelineError;
pub use fault::{Cause, Fault, Stage};
pub use folder::{check_new_folder, remove_unfinished_folders};
pub use guest::{Guest, GuestInput};
pub use progress::{Progress, Silent};
pub use security::{security_bits, Security};
pub use stages::{
    execute_plain, ExecutionReport, Identity, Pipeline, ProveSettings, ProvenGuest, SelectedApcs,
    Setup, Verified,
};
pub use trace_digests::{TraceComparison, TraceDigests, TracesDiffer};
