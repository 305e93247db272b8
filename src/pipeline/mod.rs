//! guest → profile → select APCs → setup → execute | prove → verify, with artifacts on disk.

pub mod artifacts;
pub mod error;
pub mod guest;
pub mod progress;
pub mod proof_file;
pub mod security;
pub mod stages;

pub use artifacts::{write_atomically, ArtifactStore};
pub use error::PipelineError;
pub use guest::{Guest, GuestInput};
pub use progress::{Progress, Silent};
pub use security::{security_bits, Security};
pub use stages::{
    execute_plain, ExecutionReport, Pipeline, ProveSettings, ProvenGuest, SelectedApcs, Setup,
    Verified,
};
