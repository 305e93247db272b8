//! Building APCs: from a VM configuration's AIRs and a program to selected, bound machines.

mod build;
mod bus_interaction_handler;
#[allow(dead_code)]
#[path = "../common/mod.rs"]
mod common;
mod keccak;
mod original_airs;
