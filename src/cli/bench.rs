//! `bench`: A/B of bus kernels in whole proofs on the GPU.

use openvm_apc::pipeline::PipelineError;

use super::arguments::BenchArguments;

/// Without CUDA there is nothing to time.
#[cfg(not(feature = "cuda"))]
pub fn run(_: &BenchArguments) -> Result<(), PipelineError> {
    Err(PipelineError::NoCuda)
}

/// Proves with each kernel in turn and prints their times.
#[cfg(feature = "cuda")]
pub fn run(arguments: &BenchArguments) -> Result<(), PipelineError> {
    use openvm_apc::{
        bus::{BusError, BusKernel},
        pipeline::{bench::bench, write_atomically, Device, ProveSettings},
    };

    let common = &arguments.common;
    let kernels = arguments
        .bus_kernels
        .iter()
        .map(|name| name.parse())
        .collect::<Result<Vec<BusKernel>, BusError>>()?;
    Device::Cuda.check()?;
    let pipeline = super::pipeline(common)?;
    let selected =
        pipeline.select_apcs(&super::apc_settings(common), &super::profile_input(common))?;
    let mut settings = ProveSettings {
        security: arguments.security,
        segment_memory: arguments.segment_memory.map(super::mebibytes),
        device_memory: arguments.device_memory.map(super::mebibytes),
        device: Device::Cuda,
        ..Default::default()
    };
    settings.gpu.bus_scratch = super::mebibytes(arguments.bus_scratch);
    let report = bench(
        openvm_apc::commit!(),
        &pipeline,
        &selected,
        &settings,
        &kernels,
        arguments.runs.max(1),
        &super::input(common),
    )?;
    print(&report);
    if let Some(path) = &arguments.json {
        let mut json =
            serde_json::to_vec_pretty(&report).expect("numbers and names have a JSON form");
        json.push(b'\n');
        write_atomically("the benchmark's results", path, &json)?;
    }
    Ok(())
}

#[cfg(feature = "cuda")]
fn print(report: &openvm_apc::pipeline::bench::BenchReport) {
    use openvm_apc::trace::substage::Substage;

    println!(
        "{}\n{} APCs, {} segment(s); GPU ms by CUDA events, of the proofs after the first, the one with the median bus_kernel sum",
        report.provenance, report.apcs, report.segments
    );
    let first = report.kernels.first().and_then(|kernel| kernel.median());
    for kernel in &report.kernels {
        let Some(median) = kernel.median() else {
            continue;
        };
        println!(
            "{}: proof {:.1} ms (runs: {})",
            kernel.kernel,
            median.proof,
            kernel
                .proofs
                .iter()
                .map(|proof| format!("{:.1}", proof.proof))
                .collect::<Vec<_>>()
                .join(", ")
        );
        println!(
            "  {:<16} {:>8} {:>10} {:>9} {:>9} {:>9} {:>9} {:>7} {:>10}",
            "substage",
            "launches",
            "sum",
            "mean",
            "median",
            "max",
            "of proof",
            "ratio",
            "first run"
        );
        for times in &median.substages {
            let reference = first
                .and_then(|first| {
                    first
                        .substages
                        .iter()
                        .find(|other| other.substage == times.substage)
                })
                .map_or(times.sum, |reference| reference.sum);
            let first_run = kernel
                .proofs
                .first()
                .and_then(|proof| {
                    proof
                        .substages
                        .iter()
                        .find(|other| other.substage == times.substage)
                })
                .map_or(0.0, |times| times.sum);
            println!(
                "  {:<16} {:>8} {:>10.3} {:>9.4} {:>9.4} {:>9.4} {:>8.3}% {:>6.2}× {:>10.3}",
                times.substage,
                times.launches,
                times.sum,
                times.mean,
                times.median,
                times.max,
                100.0 * times.sum / median.proof,
                reference / times.sum,
                first_run,
            );
        }
        let bus = median.sum(Substage::BusKernel) + median.sum(Substage::BusCompileH2d);
        println!(
            "  bus_compile_h2d + bus_kernel: {bus:.3} ms; uploaded per run (bus programs + plans): {}",
            kernel
                .proofs
                .iter()
                .map(|proof| format!("{} + {}", proof.program_uploads, proof.plan_uploads))
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
}
