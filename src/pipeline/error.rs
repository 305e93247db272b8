//! What can go wrong between a guest and a verified proof, in a user's words.

use std::path::PathBuf;

use thiserror::Error;

use super::{device_memory::DeviceMemoryError, fault::Fault};
use crate::{
    apc::ApcError,
    bus::BusError,
    trace::TraceError,
    vm::{mock::MockError, ApcVmError},
};

/// An error of the floor `pipeline`.
#[derive(Debug, Error)]
pub enum PipelineError {
    /// The guest is neither a shipped one nor a file.
    #[error("unknown guest `{name}`: use a shipped guest ({shipped}), the path of an ELF, or the path of a guest crate")]
    UnknownGuest {
        /// What was asked for.
        name: String,
        /// The shipped guests.
        shipped: String,
    },
    /// A guest crate without a built ELF.
    #[error(
        "the guest crate {path} has no built ELF (looked for {looked_for}): build it first, e.g. with guests/build.sh"
    )]
    GuestNotBuilt {
        /// The crate.
        path: PathBuf,
        /// Where its ELF would be.
        looked_for: PathBuf,
    },
    /// A file cannot be read.
    #[error("{what} {path} cannot be read: {source}")]
    Read {
        /// What it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("{what} {path} cannot be written: {source}")]
    Write {
        /// What it is.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A result would overwrite something.
    #[error("{what} {path} exists already, and is not overwritten: remove it, or name another")]
    Exists {
        /// What it is.
        what: &'static str,
        /// What is there already.
        path: PathBuf,
    },
    /// There is no cache directory to fall back on.
    #[error(
        "there is no default artifacts directory on this machine: name one with --artifacts-dir"
    )]
    NoArtifactsDirectory,
    /// The VM configuration of a guest cannot be parsed.
    #[error("the VM configuration {path} cannot be read: {message}")]
    VmConfig {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// The guest reads more input than it was given.
    #[error("the guest reads input that was not given: pass it with --input (pc {pc:#010x})")]
    InputMissing {
        /// Where it reads.
        pc: u32,
    },
    /// The guest failed.
    #[error("the guest failed: {0}")]
    Guest(String),
    /// The guest exited with an error.
    #[error("the guest exited with code {0}")]
    ExitCode(u32),
    /// Building APCs failed.
    #[error(transparent)]
    Apc(#[from] ApcError),
    /// The APC extension could not be set up.
    #[error(transparent)]
    Extension(#[from] ApcVmError),
    /// An APC trace could not be generated.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A stage of the prover failed.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// An earlier proof failed on the same setup.
    #[error(
        "an earlier proof on this setup failed in the middle, which left records and counts behind: set up anew \
         (the old setup has to be dropped first if memory is short)"
    )]
    SetupFailed,
    /// The GPU's memory does not suffice, or there is no GPU for a limit.
    #[error(transparent)]
    DeviceMemory(#[from] DeviceMemoryError),
    /// A bus program could not be compiled, or named.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The VM could not be set up, or its trace not be generated.
    #[error("the VM failed: {0}")]
    Vm(String),
    /// A constraint or a bus does not hold.
    #[error("the traces of segment {segment} are wrong: {source}")]
    Mock {
        /// The segment.
        segment: usize,
        /// Which.
        source: MockError,
    },
    /// The proof does not verify.
    #[error("the proof is not valid: {0}")]
    Verify(String),
    /// The proof is of another program.
    #[error(
        "the proof is of another program: it commits to {found}, but {expected} was expected \
         (another guest, other APCs, or other flags)"
    )]
    OtherProgram {
        /// The commitment in the proof.
        found: String,
        /// The expected commitment.
        expected: String,
    },
    /// The proof was made with another verifying key.
    #[error(
        "the proof is for another VM: its verifying key is {found}, but {expected} was expected \
         (other APCs, another VM configuration, or other security parameters)"
    )]
    OtherVerifyingKey {
        /// SHA-256 of the key in the proof.
        found: String,
        /// SHA-256 of the expected key.
        expected: String,
    },
    /// The proof file is damaged.
    #[error("{path} is no proof of this program version, or is damaged: {message}")]
    ProofFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The file is no machine in powdr's form.
    #[error("{path} is no machine in powdr's JSON form: {message}")]
    Machine {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The file holds no trace digests.
    #[error("{path} is no file of `--trace-digests`: {message}")]
    TraceDigests {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Two runs did not make the same traces.
    #[error(transparent)]
    TracesDiffer(#[from] super::trace_digests::TracesDiffer),
    /// The traces of APCs cannot be written.
    #[error(transparent)]
    ApcTraces(#[from] super::apc_traces::ApcTracesError),
    /// The GPU is not there, or cannot be used.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Gpu(#[from] crate::gpu::GpuError),
    /// What does not depend on the segment was not uploaded once per called APC.
    #[cfg(feature = "cuda")]
    #[error(
        "proof {proof} with kernel {kernel} uploaded {uploads} {what}, {expected} were expected: what does not \
         depend on the segment has to be uploaded once per called APC and VM. This is a defect: please report it"
    )]
    Uploads {
        /// The kernel.
        kernel: crate::bus::BusKernel,
        /// Which proof with it, from 1.
        proof: usize,
        /// What was uploaded.
        what: &'static str,
        /// How often.
        uploads: u64,
        /// How often it has to be.
        expected: u64,
    },
    /// A GPU was asked of a binary that cannot use one.
    #[error(
        "this binary was built without CUDA: build with scripts/cuda-cargo build --release --features cuda, or use \
         --device cpu"
    )]
    NoCuda,
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}
