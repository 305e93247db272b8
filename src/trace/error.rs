//! What can go wrong while an APC trace is generated.

use thiserror::Error;

use crate::bus::BusError;

/// An error of the floor `trace`.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The records of an original AIR make a trace of another size than the calls need.
    #[error(
        "APC {apc}: the records of {air} make {rows} rows of {width} columns, but {calls} calls need {expected} rows: \
         the executor and the chip disagree"
    )]
    DummyTrace {
        /// The APC.
        apc: String,
        /// The original AIR.
        air: String,
        /// Rows of the dummy trace.
        rows: usize,
        /// Columns of the dummy trace.
        width: usize,
        /// Calls of the APC.
        calls: usize,
        /// Rows needed.
        expected: usize,
    },
    /// A substitution refers to something that the APC does not have.
    #[error("APC {apc}: {what}: the APC artifact is inconsistent, build it anew")]
    Plan {
        /// The APC.
        apc: String,
        /// What is inconsistent.
        what: String,
    },
    /// A bus interaction of the trace is broken.
    #[error("APC {apc}: {source}")]
    Bus {
        /// The APC.
        apc: String,
        /// What is wrong.
        source: BusError,
    },
    /// The records of a segment are gone.
    #[error(
        "APC {apc}: the records of these calls were dropped before their trace was generated (more than {limit} \
         executions were pending)"
    )]
    RecordsGone {
        /// The APC.
        apc: String,
        /// How many executions may wait for their trace.
        limit: usize,
    },
    /// The GPU failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Gpu(#[from] crate::gpu::GpuError),
}
