//! What can go wrong while a VM with APCs is set up.

use thiserror::Error;

use super::binding::BindingError;
use crate::{bus::BusError, trace::TraceError};

/// An error of the floor `vm`.
#[derive(Debug, Error)]
pub enum ApcVmError {
    /// An APC's trace cannot be planned.
    #[error(transparent)]
    Trace(#[from] TraceError),
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
