//! Bus interactions → programs → histograms. Host only; knows no VM.

pub mod field;
pub mod table;

/// The field of traces: BabyBear, as OpenVM uses it.
pub use openvm_stark_sdk::config::baby_bear_poseidon2::F;
