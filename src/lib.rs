//! Autoprecompiles (APCs) for OpenVM 2.0, on stock crates.io crates.
//!
//! The floors, top to bottom; each may use only what lies below it:
//! `pipeline` → `vm` → `trace` → `apc` → `gpu` (feature `cuda`) → `bus`.

pub mod apc;
pub mod bus;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod pipeline;
pub mod trace;
mod units;
pub mod vm;
