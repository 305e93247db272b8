//! The prover backend's own rules and their encoding, made available by `build/rules.rs`.

#[allow(clippy::all, dead_code, missing_docs, unused_imports)]
mod included {
    include!(concat!(env!("OUT_DIR"), "/rules/mod.rs"));
}

pub use included::{codec::Codec, Rule, RuleWithFlag, Source, SymbolicRulesBuilder};
