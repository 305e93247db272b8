//! Bus interactions → programs → histograms. Host only; knows no VM.

pub mod dag;
pub mod error;
pub mod field;
pub mod interaction;
pub mod kernel;
pub mod reference;
pub mod stats;
pub mod table;
pub mod terms;
pub mod trace;
pub mod vm;

pub use error::BusError;
pub use interaction::{ColumnOrder, CountingInteractions};
pub use kernel::{BusKernel, BusProgram, OutOfTable};
pub use table::{Histograms, PeripheryTables};
pub use trace::TraceView;

/// The field of traces: BabyBear, as OpenVM uses it.
pub use openvm_stark_sdk::config::baby_bear_poseidon2::F;
