//! The bus kernels on a GPU, one APC at a time: `check` compares them with independent expectations, `bench` times them.
//!
//! ```text
//! cli-openvm execute guest-keccak --autoprecompiles 10 --input 10 --apc-traces DIR
//! scripts/cuda-cargo bench --features cuda --bench gpu_kernels -- check --data DIR
//! scripts/cuda-cargo bench --features cuda --bench gpu_kernels -- bench \
//!     --apc DIR/apc_00_pcPC.json --trace DIR/traces_segment_0/cpu_pcPC_callsC_hH_wW.u32 --rows 1024,65536
//! ```
//!
//! What needs no GPU (files, made-up cases) is also compiled into `tests/gpu_kernel_cases.rs`, and tested there
//! against the programs' interpreters.

mod bench;
mod case;
mod check;
mod contention_case;
mod device;
mod edge_case;
mod files;
mod programs;
mod random_case;
mod repeated;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use eyre::Result;
use openvm_apc::gpu::{self, Provenance};

use bench::BenchArguments;
use check::CheckArguments;
use device::Device;

#[derive(Parser)]
#[command(about = "Checks and times the bus kernels on a GPU")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Given by `cargo bench`; means nothing here.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Random, made-up and real programs against independent expectations.
    Check(CheckArguments),
    /// Times the kernels on one APC at chosen numbers of rows.
    Bench(BenchArguments),
}

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:?}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    let info = gpu::open_device()?;
    let provenance = Provenance::new(&info, openvm_apc::commit!());
    println!("{provenance}; {} GiB", info.memory >> 30);
    let device = Device::new()?;
    match command {
        Command::Check(arguments) => check::check(&device, arguments),
        Command::Bench(arguments) => bench::run(&device, provenance, arguments),
    }
}
