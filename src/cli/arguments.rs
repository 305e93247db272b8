//! The arguments.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};
use openvm_apc::{
    apc::Pgo,
    pipeline::{apc_traces, Device, Security},
};

/// Autoprecompiles for OpenVM: profile, build, execute, prove, verify.
#[derive(Debug, Parser)]
#[command(name = "cli-openvm", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

/// A stage.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Profile the guest, build and select APCs.
    SelectApcs(Common),
    /// Set up the VM with the APCs, and print what identifies it and the program.
    Setup(SetupArguments),
    /// Run the guest without proving: public values, segments, trace sizes.
    Execute(ExecuteArguments),
    /// Prove the guest's run, verify the proof, print what it says.
    Prove(ProveArguments),
    /// Print what the bus programs of the guest's APCs cost, for every kernel and schedule.
    Stats(StatsArguments),
    /// Prove on the GPU with each of several bus kernels in turn, and compare their times.
    Bench(BenchArguments),
    /// Verify a proof file.
    Verify {
        /// A file that `prove --proof` wrote.
        file: PathBuf,
        /// Reject the proof of any program but this: the `exe commitment` that `setup` prints.
        #[arg(long, value_name = "8 NUMBERS", value_parser = commitment)]
        exe_commitment: Option<[u32; 8]>,
        /// Reject the proof of any VM but this: the `verifying key` that `setup` prints.
        #[arg(long, value_name = "HEX")]
        verifying_key: Option<String>,
    },
    /// Compare the traces of two runs by what `--trace-digests` wrote of them; exit code 1 if they differ.
    CompareTraces {
        /// Digests of the traces of one run.
        first: PathBuf,
        /// And of another.
        second: PathBuf,
    },
}

/// What every stage needs.
#[derive(Debug, Args)]
pub struct Common {
    /// A shipped guest (guest-keccak), the path of an ELF, or the path of a guest crate.
    pub guest: String,
    /// How many APCs to use; 0 is plain OpenVM.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub autoprecompiles: u32,
    /// Pass over this many of the best-ranked APCs first.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub skip: u32,
    /// The guest's input: one u32.
    #[arg(long, value_name = "M")]
    pub input: Option<u32>,
    /// The input to profile with, if not --input.
    #[arg(long, value_name = "M")]
    pub profile_input: Option<u32>,
    /// How blocks are ranked.
    #[arg(long, value_enum, default_value_t)]
    pub pgo: Pgo,
    /// The most columns that all APCs may have together (with --pgo cell).
    #[arg(long, value_name = "N")]
    pub max_columns: Option<usize>,
    /// Write every APC candidate there, for inspection; builds them anew.
    #[arg(long, value_name = "DIR")]
    pub apc_candidates_dir: Option<PathBuf>,
    /// Where results of stages are kept [default: the platform's cache directory].
    #[arg(long, value_name = "DIR")]
    pub artifacts_dir: Option<PathBuf>,
    /// Write OpenVM's metrics there, as JSON.
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
}

/// What to print statistics of.
#[derive(Debug, Args)]
pub struct StatsArguments {
    /// The guest may also be the path of a machine in powdr's form (.json), on OpenVM's default buses.
    #[command(flatten)]
    pub common: Common,
    /// JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// What setting up the VM needs.
#[derive(Debug, Args)]
pub struct SetupArguments {
    #[command(flatten)]
    pub common: Common,
    /// The kernel for the APCs' bus interactions: vm, dag or terms [env: POWDR_BUS_KERNEL] [default: vm].
    #[arg(long, value_name = "KERNEL")]
    pub bus_kernel: Option<String>,
    /// Where the prover runs.
    #[arg(long, value_enum, default_value_t)]
    pub device: Device,
    /// Device memory for the intermediates of a bus kernel, in MiB (GPU only).
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub bus_scratch: u32,
    /// Bits of security; `toy` is fast and worth nothing.
    #[arg(long, value_enum, default_value_t)]
    pub security: Security,
    /// Memory that the proof of one segment may take, in MiB [default: OpenVM's, 15 GiB, or less to suit the GPU].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub segment_memory: Option<u32>,
    /// The most device memory that this process may have, in MiB (GPU only): holds back the rest of the GPU's memory.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub device_memory: Option<u32>,
}

/// What execution needs.
#[derive(Debug, Args)]
pub struct ExecuteArguments {
    #[command(flatten)]
    pub setup: SetupArguments,
    /// Generate the traces as well, and write digests of every AIR's trace in every segment there, as JSON.
    #[arg(long, value_name = "FILE")]
    pub trace_digests: Option<PathBuf>,
    /// Generate the traces as well, and write those of the APCs, each with the APC and with what its bus interactions
    /// have to count, into a new folder: inputs for `gpu_kernels check --data DIR` (docs/profiling.md).
    #[arg(long, value_name = "DIR", requires = "autoprecompiles")]
    pub apc_traces: Option<PathBuf>,
}

/// What proving needs.
#[derive(Debug, Args)]
pub struct ProveArguments {
    #[command(flatten)]
    pub setup: SetupArguments,
    /// Write the proof there, with all that is needed to check it.
    #[arg(long, value_name = "FILE")]
    pub proof: Option<PathBuf>,
    /// Check every constraint and every bus on the full traces instead of proving.
    #[arg(long, conflicts_with = "proof")]
    pub mock: bool,
    /// Write digests of every AIR's trace in every segment there, as JSON; they take time of the proof.
    #[arg(long, value_name = "FILE", conflicts_with = "mock")]
    pub trace_digests: Option<PathBuf>,
}

/// What the benchmark needs. Only a binary with CUDA can run it.
#[derive(Debug, Args)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub struct BenchArguments {
    #[command(flatten)]
    pub common: Common,
    /// The kernels, in the order of their runs; the others are compared with the first.
    #[arg(
        long,
        value_name = "KERNELS",
        value_delimiter = ',',
        default_value = "vm,dag,terms"
    )]
    pub bus_kernels: Vec<String>,
    /// How often to prove with each; the first proof also compiles and uploads.
    #[arg(long, value_name = "K", default_value_t = 3)]
    pub runs: usize,
    /// Bits of security; `toy` is fast and worth nothing.
    #[arg(long, value_enum, default_value_t)]
    pub security: Security,
    /// Memory that the proof of one segment may take, in MiB [default: OpenVM's, 15 GiB, or less to suit the GPU].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub segment_memory: Option<u32>,
    /// The most device memory that this process may have, in MiB (GPU only): holds back the rest of the GPU's memory.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub device_memory: Option<u32>,
    /// Device memory for the intermediates of a bus kernel, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub bus_scratch: u32,
    /// Write the results there, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn commitment(text: &str) -> Result<[u32; 8], String> {
    let elements: Result<Vec<u32>, _> = text
        .split([' ', ','])
        .filter(|element| !element.is_empty())
        .map(str::parse)
        .collect();
    elements
        .ok()
        .and_then(|elements| elements.try_into().ok())
        .ok_or_else(|| "expected 8 numbers, with spaces or commas between them".to_string())
}

impl Arguments {
    /// Where to write metrics.
    pub fn metrics(&self) -> Option<&Path> {
        match &self.command {
            Command::SelectApcs(common) => common.metrics.as_deref(),
            Command::Stats(arguments) => arguments.common.metrics.as_deref(),
            Command::Setup(arguments) => arguments.common.metrics.as_deref(),
            Command::Execute(arguments) => arguments.setup.common.metrics.as_deref(),
            Command::Prove(arguments) => arguments.setup.common.metrics.as_deref(),
            Command::Bench(arguments) => arguments.common.metrics.as_deref(),
            Command::Verify { .. } | Command::CompareTraces { .. } => None,
        }
    }

    /// Files that a run is to write in the end, with what they are.
    pub fn outputs(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let results: Vec<(&'static str, &Option<PathBuf>)> = match &self.command {
            Command::Execute(arguments) => vec![("the trace digests", &arguments.trace_digests)],
            Command::Prove(arguments) => vec![
                ("the proof", &arguments.proof),
                ("the trace digests", &arguments.trace_digests),
            ],
            Command::Bench(arguments) => vec![("the benchmark's results", &arguments.json)],
            _ => vec![],
        };
        let results = results
            .into_iter()
            .filter_map(|(what, path)| Some((what, path.as_deref()?)));
        let metrics = self.metrics().map(|path| ("the metrics", path));
        metrics.into_iter().chain(results)
    }

    /// The folder that a run is to make in the end, with what it is.
    pub fn output_folder(&self) -> Option<(&'static str, &Path)> {
        match &self.command {
            Command::Execute(arguments) => {
                Some((apc_traces::WHAT, arguments.apc_traces.as_deref()?))
            }
            _ => None,
        }
    }
}
