//! APC trace generation, substage by substage.
//!
//! As data: execution records → dummy traces of the original AIRs → substitution into the APC trace → derived
//! columns → bus interactions. [`plan`] is the part that depends on the APC alone, [`cpu`] carries it out on the
//! host.

pub mod cpu;
pub mod error;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod plan;
pub mod substage;

pub use error::TraceError;
pub use plan::TracePlan;
pub use substage::Substage;
