//! Proof files: a proof with all that is needed to check it.
//!
//! `magic ‖ sha256(body) ‖ body`, the body being `bitcode` of a [`ProvenGuest`]. The checksum tells damage from forgery:
//! a forged file with a right checksum fails verification.

use std::{io::Read, path::Path};

use openvm_circuit::system::memory::dimensions::MemoryDimensions;
use openvm_stark_backend::keygen::types::MultiStarkVerifyingKey;
use openvm_stark_sdk::config::baby_bear_poseidon2::BabyBearPoseidon2Config;
use sha2::{Digest, Sha256};

use super::{artifacts::write_atomically, error::PipelineError, stages::ProvenGuest};

const MAGIC: &[u8; 16] = b"openvm-apc proof";
const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 32;

/// The largest file that is read: a proof of a segment is under 2 MB.
const MAX_BYTES: u64 = 1 << 30;

/// Writes a proof file.
pub fn write(path: &Path, proven: &ProvenGuest) -> Result<(), PipelineError> {
    let body = bitcode::serialize(proven)
        .map_err(|error| PipelineError::Vm(format!("the proof cannot be encoded: {error}")))?;
    let mut bytes = MAGIC.to_vec();
    bytes.push(VERSION);
    bytes.extend(Sha256::digest(&body));
    bytes.extend(body);
    write_atomically("the proof", path, &bytes)
}

/// Reads a proof file. What it holds is still to be verified.
pub fn read(path: &Path) -> Result<ProvenGuest, PipelineError> {
    let damaged = |message: String| PipelineError::ProofFile {
        path: path.to_path_buf(),
        message,
    };
    let unreadable = |source| PipelineError::Read {
        what: "the proof",
        path: path.to_path_buf(),
        source,
    };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .map_err(unreadable)?
        .take(MAX_BYTES)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    let body = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| damaged("it does not begin like one".to_string()))?;
    let body = body
        .strip_prefix(&[VERSION])
        .ok_or_else(|| damaged(format!("its format is not version {VERSION}")))?;
    let (checksum, body) = body
        .split_at_checked(CHECKSUM_BYTES)
        .ok_or_else(|| damaged("it is too short".to_string()))?;
    if *Sha256::digest(body) != *checksum {
        return Err(damaged("its checksum is wrong".to_string()));
    }
    std::panic::catch_unwind(|| bitcode::deserialize(body))
        .map_err(|_| damaged("its body cannot be decoded".to_string()))?
        .map_err(|error| damaged(error.to_string()))
}

/// SHA-256 of a verifying key and of the memory's dimensions.
///
/// The dimensions tell where the public values stand in the final memory: with others, a forger could show other
/// parts of the memory for public values, so that they belong to what a reader compares.
pub fn verifying_key_digest(
    vk: &MultiStarkVerifyingKey<BabyBearPoseidon2Config>,
    memory_dimensions: &MemoryDimensions,
) -> Result<String, PipelineError> {
    let bytes = bitcode::serialize(&(vk, memory_dimensions))
        .map_err(|error| PipelineError::Vm(format!("the verifying key: {error}")))?;
    Ok(hex::encode(Sha256::digest(bytes)))
}
