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
/// Magic, version, checksum.
const HEADER_BYTES: u64 = 16 + 1 + 32;

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
    let mut file = std::fs::File::open(path).map_err(unreadable)?;
    let mut header = Vec::new();
    (&mut file)
        .take(HEADER_BYTES)
        .read_to_end(&mut header)
        .map_err(unreadable)?;
    let checksum = header
        .strip_prefix(MAGIC)
        .ok_or_else(|| damaged("it does not begin like one".to_string()))?
        .strip_prefix(&[VERSION])
        .ok_or_else(|| damaged(format!("its format is not version {VERSION}")))?;
    let mut body = Vec::new();
    file.take(MAX_BYTES)
        .read_to_end(&mut body)
        .map_err(unreadable)?;
    if *Sha256::digest(&body) != *checksum {
        return Err(damaged(
            "its checksum is wrong, it is changed or cut off".to_string(),
        ));
    }
    std::panic::catch_unwind(|| bitcode::deserialize(&body))
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
