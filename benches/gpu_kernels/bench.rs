//! `bench`: times the kernels on one APC at chosen numbers of rows, once their counts are right.

use std::{collections::BTreeSet, fs, path::PathBuf, time::Instant};

use clap::Args;
use eyre::{ensure, eyre, Context, Result};
use openvm_apc::{
    bus::{
        interaction::{ColumnOrder, CountingInteractions, Multiplicity},
        BusProgram,
    },
    gpu::{
        memory::{allocate, upload},
        program::{column_read_floor, DEFAULT_PRIVATE_FROM_ADDITIONS},
        DeviceBusProgram, GpuError, GpuSettings, Provenance, Stopwatch,
    },
    times::Times,
};
use openvm_cuda_common::{d_buffer::DeviceBuffer, stream::GpuDeviceCtx};
use powdr_autoprecompiles::expression::AlgebraicExpression;
use powdr_number::BabyBearField;
use serde::Serialize;

use super::{
    check::compare,
    device::{view, Device},
    files::{ApcFile, HostTrace, TraceName},
    programs::compile,
    repeated::ExpectedCounts,
};

/// What to time.
#[derive(Args)]
pub struct BenchArguments {
    /// The APC: `apc_*.json` of `cli-openvm execute --apc-traces`.
    #[arg(long)]
    apc: PathBuf,
    /// Its trace, of the same folder; rows are repeated to fill the heights asked for.
    #[arg(long)]
    trace: PathBuf,
    /// Live rows of the trace file [default: the calls in its name].
    #[arg(long)]
    live_rows: Option<usize>,
    /// Numbers of rows.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "256,1024,8192,65536,131072"
    )]
    rows: Vec<usize>,
    /// Programs, the first being the one that ratios are of. What each counts is compared with the reference.
    #[arg(long, value_delimiter = ',', default_value = "vm,dag,dag-seed,terms")]
    kernels: Vec<String>,
    /// Timed launches of each, after one that does not count.
    #[arg(long, default_value_t = 9)]
    runs: usize,
    /// Scratch for intermediates, in MiB.
    #[arg(long, default_value_t = 256)]
    scratch_mib: usize,
    /// Additions from which on `terms` counts in shared memory.
    #[arg(long, default_value_t = DEFAULT_PRIVATE_FROM_ADDITIONS)]
    private_from_additions: u64,
    /// Where to write the results as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Times the kernels, prints the results, and writes them if asked.
pub fn run(device: &Device, provenance: Provenance, arguments: &BenchArguments) -> Result<()> {
    let report = bench(device, provenance, arguments)?;
    report.print();
    if let Some(path) = &arguments.json {
        fs::write(path, serde_json::to_string_pretty(&report)?)
            .wrap_err_with(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    provenance: Provenance,
    apc: String,
    columns: usize,
    used_columns: usize,
    counted_interactions: usize,
    runs: usize,
    scratch_bytes: usize,
    programs: Vec<ProgramReport>,
    measurements: Vec<Measurement>,
}

/// A program's way to the device, before its first launch.
#[derive(Serialize)]
struct ProgramReport {
    kernel: String,
    /// Compilation on the host, by the wall clock.
    compile_milliseconds: f64,
    /// The upload, by CUDA events around it. The first of a kernel may have the driver load its code.
    upload_milliseconds: f64,
    /// The substage `bus_compile_h2d`: compilation and upload, by the wall clock, until the device is done.
    bus_compile_h2d_milliseconds: f64,
    device_bytes: usize,
}

/// GPU milliseconds at one number of rows.
#[derive(Serialize)]
struct Measurement {
    rows: usize,
    /// Of a launch, by kernel, in the order asked for.
    kernels: Vec<Times>,
    /// Of reading every used column once.
    floor: Times,
}

impl Report {
    fn print(&self) {
        println!(
            "{}: {} columns ({} used), {} counted interactions",
            self.apc, self.columns, self.used_columns, self.counted_interactions
        );
        println!(
            "{:<10} {:>12} {:>12} {:>16} {:>12}   ms, once",
            "kernel", "compile", "upload", "bus_compile_h2d", "bytes"
        );
        for program in &self.programs {
            println!(
                "{:<10} {:>12.3} {:>12.3} {:>16.3} {:>12}",
                program.kernel,
                program.compile_milliseconds,
                program.upload_milliseconds,
                program.bus_compile_h2d_milliseconds,
                program.device_bytes
            );
        }
        println!(
            "{:>9} {:<10} {:>10} {:>10} {:>10} {:>10} {:>8}   GPU ms of {} launches",
            "rows", "kernel", "median", "mean", "min", "max", "ratio", self.runs
        );
        for measurement in &self.measurements {
            let names = self.programs.iter().map(|program| program.kernel.as_str());
            let times = names.zip(&measurement.kernels);
            for (name, times) in times.chain([("(floor)", &measurement.floor)]) {
                println!(
                    "{:>9} {name:<10} {:>10.4} {:>10.4} {:>10.4} {:>10.4} {:>7.2}×",
                    measurement.rows,
                    times.median,
                    times.mean,
                    times.min,
                    times.max,
                    measurement.kernels[0].median / times.median
                );
            }
        }
    }
}

fn bench(device: &Device, provenance: Provenance, arguments: &BenchArguments) -> Result<Report> {
    let BenchArguments {
        rows,
        kernels,
        runs,
        ..
    } = arguments;
    ensure!(
        !kernels.is_empty() && !rows.is_empty() && *runs > 0,
        "no kernel, no number of rows or no run asked for"
    );
    ensure!(
        rows.iter().all(|rows| (1..=1 << 31).contains(rows)),
        "a trace has at least one row, and at most 2^31"
    );
    let settings = GpuSettings {
        bus_scratch: arguments.scratch_mib << 20,
        private_from_additions: arguments.private_from_additions,
    };
    let apc = ApcFile::read(&arguments.apc)?;
    let live_rows = match arguments.live_rows {
        Some(live_rows) => live_rows,
        None => {
            TraceName::of(&arguments.trace)
                .wrap_err("--live-rows is not given")?
                .calls
        }
    };
    let trace = HostTrace::read(&arguments.trace, apc.columns.len(), live_rows)?;
    let interactions = apc.interactions()?;
    let expected = ExpectedCounts::new(&interactions, &trace)?;
    let used_columns = used_columns(&interactions);
    let device_ctx = &device.device_ctx;
    let columns = upload(
        &used_columns,
        &|| "the used columns".to_string(),
        device_ctx,
    )?;
    let sink: DeviceBuffer<u32> = allocate(1, &|| "the floor's sink".to_string(), device_ctx)?;
    let mut programs = Vec::new();
    let mut reports = Vec::new();
    for name in kernels {
        let start = Instant::now();
        let program = compile(name, &interactions)?;
        let compile_milliseconds = milliseconds_since(start);
        let (program, upload_milliseconds) = upload_program(&apc, &program, &settings, device_ctx)?;
        reports.push(ProgramReport {
            kernel: name.clone(),
            compile_milliseconds,
            upload_milliseconds,
            bus_compile_h2d_milliseconds: milliseconds_since(start),
            device_bytes: program.bytes(),
        });
        programs.push(program);
    }
    let mut measurements = Vec::new();
    for &rows in rows {
        let expected = expected.of_rows(rows)?;
        let trace = trace.repeated(rows);
        let buffer = device.upload_trace(&trace)?;
        let bus_trace = view(&buffer, trace.height, trace.live_rows);
        let mut times = Vec::new();
        for (program, name) in programs.iter().zip(kernels) {
            let found = device.counts_of(program, bus_trace)?;
            compare(&format!("{name}, {rows} rows"), &expected, &found)?;
            times.push(timed(*runs, device_ctx, || {
                program.launch(
                    bus_trace,
                    device.histograms.pointers(),
                    &device.scratch,
                    device_ctx,
                )
            })?);
        }
        let floor = timed(*runs, device_ctx, || {
            column_read_floor(bus_trace, &columns, &sink, device_ctx)
        })?;
        measurements.push(Measurement {
            rows,
            kernels: times,
            floor,
        });
    }
    Ok(Report {
        provenance,
        apc: apc.name.clone(),
        columns: apc.columns.len(),
        used_columns: used_columns.len(),
        counted_interactions: interactions.interactions().len(),
        runs: *runs,
        scratch_bytes: settings.bus_scratch,
        programs: reports,
        measurements,
    })
}

/// Uploads a program, and waits for it: the GPU milliseconds by CUDA events.
fn upload_program(
    apc: &ApcFile,
    program: &BusProgram,
    settings: &GpuSettings,
    device_ctx: &GpuDeviceCtx,
) -> Result<(DeviceBusProgram, f64)> {
    let (program, watch) = Stopwatch::time(device_ctx, || {
        DeviceBusProgram::upload(&apc.name, program, settings, device_ctx)
    })?;
    Ok((program, watch.milliseconds()?))
}

fn milliseconds_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// GPU times of `runs` launches, after one that does not count.
fn timed(
    runs: usize,
    device_ctx: &GpuDeviceCtx,
    mut launch: impl FnMut() -> Result<(), GpuError>,
) -> Result<Times> {
    let mut time = || -> Result<f64> {
        let ((), watch) = Stopwatch::time(device_ctx, &mut launch)?;
        Ok(watch.milliseconds()?)
    };
    time()?;
    let mut times = (0..runs).map(|_| time()).collect::<Result<Vec<_>>>()?;
    Times::of(&mut times).ok_or_else(|| eyre!("there are no times to sum up"))
}

/// The columns that the counted interactions read, each once, in order.
fn used_columns(interactions: &CountingInteractions) -> Vec<u32> {
    fn collect(
        expression: &AlgebraicExpression<BabyBearField>,
        columns: &ColumnOrder,
        used: &mut BTreeSet<u32>,
    ) {
        match expression {
            AlgebraicExpression::Number(_) => {}
            AlgebraicExpression::Reference(reference) => {
                used.extend(columns.index(reference.id).map(|index| index as u32));
            }
            AlgebraicExpression::UnaryOperation(unary) => collect(&unary.expr, columns, used),
            AlgebraicExpression::BinaryOperation(binary) => {
                collect(&binary.left, columns, used);
                collect(&binary.right, columns, used);
            }
        }
    }
    let mut used = BTreeSet::new();
    for interaction in interactions.interactions() {
        if let Multiplicity::Expression(expression) = &interaction.multiplicity {
            collect(expression, interactions.columns(), &mut used);
        }
        for expression in interaction.arguments.iter().chain(&interaction.selector) {
            collect(expression, interactions.columns(), &mut used);
        }
    }
    used.into_iter().collect()
}
