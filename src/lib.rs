//! Autoprecompiles (APCs) for OpenVM 2.0, on stock crates.io crates.
//!
//! The floors, top to bottom; each may use only what lies below it:
//! `pipeline` → `vm` → `trace` → `apc` → `gpu` (feature `cuda`) → `bus`.
#![warn(missing_docs)]

/// The commit that the target which uses this is built from, as `scripts/cuda-cargo` tells it in `OPENVM_APC_COMMIT`, or
/// `unknown`. A macro, so that only the targets that name their commit are rebuilt with a new one, not the library.
#[macro_export]
macro_rules! commit {
    () => {
        match option_env!("OPENVM_APC_COMMIT") {
            Some(commit) => commit,
            None => "unknown",
        }
    };
}

pub mod apc;
pub mod bus;
#[cfg(feature = "cuda")]
pub mod gpu;
mod layout;
pub mod pipeline;
pub mod times;
pub mod trace;
mod units;
pub mod vm;
