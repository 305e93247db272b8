//! The OpenVM extension: config, executor, AIR, chips, periphery.

pub mod air;
pub mod arena;
pub mod binding;
pub mod chip;
pub mod config;
pub mod digest;
pub mod error;
pub mod executor;
pub mod extension;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod labels;
pub mod mock;
pub mod records;
pub mod shared;

pub use air::ApcAir;
pub use config::ApcVmConfig;
pub use error::ApcVmError;
pub use extension::{ApcExtension, ApcVmBuilder};
pub use labels::Labels;
pub use shared::SharedApc;
