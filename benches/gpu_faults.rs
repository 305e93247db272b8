//! Faults on a GPU, produced for real: `check` provokes them one after the other in one process and proves in between, with
//! equal commitments; what ends a process happens in children. `memory` measures what a proof takes.
//!
//! ```text
//! scripts/cuda-cargo bench --features cuda --bench gpu_faults -- check --artifacts-dir DIR
//! scripts/cuda-cargo bench --features cuda --bench gpu_faults -- memory --artifacts-dir DIR --segment-memory 6000
//! ```

use std::{
    path::PathBuf,
    process::{ExitCode, Stdio},
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        Arc,
    },
    thread,
    time::{Duration, Instant},
};

use clap::{Args, Parser, Subcommand};
use eyre::{bail, ensure, eyre, Result};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use openvm_apc::{
    apc::ApcSettings,
    bus::{table::TableKind, BusKernel},
    gpu::{
        device::{check_context, memory_info},
        limit::held_back_bytes,
        memory::{allocate, pool_usage, upload},
        open_device, BusScratch, BusTrace, DeviceBusProgram, DeviceHistograms, DeviceMemoryLimit,
        GpuError, GpuSettings, PeripheryCounts,
    },
    pipeline::{
        device::{gpu_setup, Device, GpuSetup},
        device_memory,
        fault::catch,
        ArtifactStore, Cause, Fault, Guest, GuestInput, Pipeline, PipelineError, ProveSettings,
        SelectedApcs, Silent, Stage,
    },
    trace::TraceError,
    vm::ApcVmConfig,
};
use openvm_cuda_common::{
    d_buffer::DeviceBuffer,
    stream::{cudaStream_t, GpuDeviceCtx},
};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

#[derive(Parser)]
#[command(about = "Provokes faults on a GPU, and measures what proofs take of its memory")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Given by `cargo bench`; means nothing here.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Command {
    /// All faults, each followed by a proof that has to succeed.
    Check {
        #[command(flatten)]
        guest: GuestArguments,
    },
    /// One fault that the process does not get over, for `check`.
    Sticky {
        #[command(flatten)]
        guest: GuestArguments,
        /// When the kernel goes astray: `before` a proof, or so many milliseconds into it.
        #[arg(long)]
        when: String,
    },
    /// What one proof takes of the device's memory, beside OpenVM's estimate, as one line of JSON.
    Memory {
        #[command(flatten)]
        guest: GuestArguments,
        /// The limit of the estimate, in MiB; derived from the device's memory if it is not given.
        #[arg(long)]
        segment_memory: Option<usize>,
        /// The limit of device memory, in MiB.
        #[arg(long)]
        device_memory: Option<usize>,
    },
}

#[derive(Args, Clone)]
struct GuestArguments {
    /// Where the APCs are, or are put.
    #[arg(long)]
    artifacts_dir: PathBuf,
    /// How many APCs.
    #[arg(long, default_value_t = 1)]
    autoprecompiles: u32,
    /// The input of guest-keccak.
    #[arg(long, default_value_t = 10)]
    input: u32,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Check { guest } => check(&guest),
        Command::Sticky { guest, when } => sticky(&guest, &when),
        Command::Memory {
            guest,
            segment_memory,
            device_memory,
        } => memory(&guest, segment_memory, device_memory),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// guest-keccak with its APCs.
struct Job {
    pipeline: Pipeline,
    selected: SelectedApcs,
}

impl Job {
    fn new(arguments: &GuestArguments) -> Result<Self> {
        let pipeline = Pipeline::new(
            Guest::find("guest-keccak")?,
            ArtifactStore::open(Some(&arguments.artifacts_dir))?,
            Arc::new(Silent),
        );
        let settings = ApcSettings {
            autoprecompiles: arguments.autoprecompiles.into(),
            ..Default::default()
        };
        let selected = pipeline.select_apcs(&settings, &GuestInput::u32(10))?;
        Ok(Self { pipeline, selected })
    }

    fn set_up(&self, settings: &ProveSettings) -> Result<GpuSetup, PipelineError> {
        gpu_setup(&self.pipeline, &self.selected, settings)
    }

    /// Sets up, proves and verifies: the commitments to the traces.
    fn prove(&self, settings: &ProveSettings, input: u32) -> Result<Commitments, PipelineError> {
        self.prove_on(&mut self.set_up(settings)?, input)
    }

    fn prove_on(&self, setup: &mut GpuSetup, input: u32) -> Result<Commitments, PipelineError> {
        let (proven, _) = self.pipeline.prove(setup, &GuestInput::u32(input))?;
        Ok(proven.verify()?.trace_commits)
    }
}

type Commitments = Vec<[u32; 8]>;

fn settings() -> ProveSettings {
    ProveSettings {
        device: Device::Cuda,
        bus_kernel: BusKernel::Dag,
        ..Default::default()
    }
}

fn check(arguments: &GuestArguments) -> Result<()> {
    let info = open_device()?;
    println!("{} (sm_{})", info.name, info.capability);
    let job = Job::new(arguments)?;
    let input = arguments.input;

    // First, since the pool gives nothing back: every proof needs more than the one before may have.
    let mut stages = Vec::new();
    let mut expected = None;
    for limit in [1536, 2048, 3072, 4096, 5120, 5632, 6144, 8192, 12288] {
        let limited = ProveSettings {
            device_memory: Some(limit * MIB),
            segment_memory: Some(15 * GIB),
            ..settings()
        };
        match job.prove(&limited, input) {
            Ok(commitments) => {
                println!("limit of {limit} MiB: proven");
                expected = Some(commitments);
                break;
            }
            Err(error) => {
                println!("limit of {limit} MiB: {error}");
                stages.push(out_of_memory(&error)?);
            }
        }
    }
    ensure!(!stages.is_empty(), "the smallest limit was no limit");
    let expected = expected.ok_or_else(|| eyre!("no limit was enough"))?;
    let again = |what: &str| -> Result<()> {
        ensure!(
            job.prove(&settings(), input)? == expected,
            "after {what}, the traces are others"
        );
        println!("after {what}: proven, the same traces");
        Ok(())
    };
    again("running out of memory as described")?;

    // A large segment on a small card, with room for what the proofs before have left in the pool.
    let limit = (8 * GIB).max(pool_usage().reserved as usize + 3 * GIB);
    let small_card = ProveSettings {
        device_memory: Some(limit),
        segment_memory: Some(15 * GIB),
        ..settings()
    };
    let mut setup = job.set_up(&small_card)?;
    let error = expect_failure(job.prove_on(&mut setup, 4000))?;
    println!("a large segment in {} MiB: {error}", limit / MIB);
    let stage = out_of_memory(&error)?;
    ensure!(
        matches!(stage, Stage::Traces { .. } | Stage::Proof { .. }),
        "it failed too early to be about the segment"
    );
    let error = expect_failure(job.prove_on(&mut setup, input))?;
    ensure!(
        matches!(error, PipelineError::SetupFailed),
        "a setup is used on after it failed: {error}"
    );
    drop(setup);
    again("a segment too large for the limit")?;

    limit_holds()?;
    again("a limit for OpenVM's own allocations")?;

    own_buffers()?;
    again("running out of memory for buffers of our own")?;

    let tiny_scratch = ProveSettings {
        gpu: GpuSettings {
            bus_scratch: 1,
            ..Default::default()
        },
        ..settings()
    };
    let error = expect_failure(job.prove(&tiny_scratch, input))?;
    println!("bus scratch of one byte: {error}");
    ensure!(
        matches!(
            &error,
            PipelineError::Fault(Fault {
                stage: Stage::Traces { segment: 0 },
                cause: Cause::Trace(TraceError::Gpu(GpuError::TooLarge { .. })),
            })
        ),
        "another error was expected"
    );
    again("too little scratch")?;

    failing_launch(&job)?;
    again("a failing launch")?;

    for when in ["before", "0", "50", "150", "300", "600"] {
        lost_context(arguments, when)?;
    }
    again("lost contexts in other processes")?;
    println!("all faults are reported, and every proof after them is right");
    Ok(())
}

fn expect_failure<T>(result: Result<T, PipelineError>) -> Result<PipelineError> {
    match result {
        Ok(_) => bail!("it succeeded"),
        Err(error) => Ok(error),
    }
}

/// The stage at which device memory ran out, if the error says all that it should.
fn out_of_memory(error: &PipelineError) -> Result<Stage> {
    let PipelineError::Fault(fault) = error else {
        bail!("not a fault: {error}");
    };
    ensure!(fault.is_out_of_memory(), "not about memory: {error}");
    let text = error.to_string();
    for part in [
        "out of device memory: ",
        " needs ",
        " MiB",
        "--device-memory",
    ] {
        ensure!(text.contains(part), "no `{part}` in: {text}");
    }
    let by_segments = matches!(fault.stage, Stage::Traces { .. } | Stage::Proof { .. });
    ensure!(
        text.contains("--segment-memory") == by_segments,
        "the advice does not fit the stage: {text}"
    );
    ensure!(
        !text.contains("d_buffer.rs"),
        "the allocator is named in place of its caller: {text}"
    );
    Ok(fault.stage)
}

/// OpenVM's own allocations fail at the limit, and no longer once it is gone.
fn limit_holds() -> Result<()> {
    let device_ctx = GpuDeviceCtx::for_current_device()?;
    let bytes = pool_usage().reserved as usize + 3 * GIB;
    let limit = DeviceMemoryLimit::new(bytes)?;
    let (free, _) = memory_info()?;
    ensure!(free < 3 * GIB, "{free} bytes are free under the limit");
    let request = pool_usage().reserved as usize + 4 * GIB;
    let openvm_buffer = || {
        catch(Stage::SetUp, || {
            DeviceBuffer::<u8>::with_capacity_on(request, &device_ctx)
        })
    };
    match openvm_buffer() {
        Ok(_) => bail!("{request} bytes were given out under a limit of {bytes}"),
        Err(fault) => {
            println!("OpenVM's allocation above the limit: {fault}");
            ensure!(fault.is_out_of_memory(), "another fault: {fault}");
            ensure!(
                fault.to_string().contains("gpu_faults::"),
                "a function of this program asked (is it stripped of its symbols?): {fault}"
            );
        }
    }
    // A second limit, lower: the lower one holds, and only for as long as it lives.
    let lower = DeviceMemoryLimit::new(bytes - GIB)?;
    ensure!(memory_info()?.0 < 2 * GIB, "the lower limit does not hold");
    drop(lower);
    ensure!(
        memory_info()?.0 > 3 * GIB / 2,
        "the lower limit outlives itself"
    );
    drop(limit);
    ensure!(
        memory_info()?.0 > free + GIB || memory_info()?.1 < 2 * bytes,
        "what was held back does not come back"
    );
    drop(openvm_buffer()?);
    // Less than what is in use: refused, and nothing is held back.
    let before = memory_info()?.0;
    match DeviceMemoryLimit::new(MIB) {
        Ok(_) => bail!("a limit of 1 MiB was accepted"),
        Err(error @ GpuError::Limit { .. }) => println!("{error}"),
        Err(error) => bail!("another error: {error}"),
    }
    ensure!(
        memory_info()?.0 == before,
        "a refused limit holds memory back"
    );
    Ok(())
}

/// Our own allocations name their buffer.
fn own_buffers() -> Result<()> {
    let device_ctx = GpuDeviceCtx::for_current_device()?;
    let limit = DeviceMemoryLimit::new(pool_usage().reserved as usize + 2 * GIB)?;
    let length = pool_usage().reserved as usize + 3 * GIB;
    for length in [length, usize::MAX / 2] {
        match allocate::<u32>(
            length,
            &|| "the buffer of this check".to_string(),
            &device_ctx,
        ) {
            Ok(_) => bail!("{length} words were given out"),
            Err(error @ GpuError::OutOfMemory { .. }) => {
                let text = error.to_string();
                println!("{text}");
                ensure!(text.contains("the buffer of this check"), "no name");
            }
            Err(error) => bail!("another error: {error}"),
        }
    }
    drop(allocate::<u32>(
        GIB / 4,
        &|| "another".to_string(),
        &device_ctx,
    )?);
    drop(limit);
    Ok(())
}

extern "C" {
    fn cudaStreamBeginCapture(stream: cudaStream_t, mode: i32) -> i32;
    fn cudaStreamEndCapture(stream: cudaStream_t, graph: *mut *mut std::ffi::c_void) -> i32;
}
/// `cudaStreamCaptureModeRelaxed`
const CAPTURE_RELAXED: i32 = 2;

/// The first APC's program for the `vm` kernel.
fn program(job: &Job, device_ctx: &GpuDeviceCtx) -> Result<DeviceBusProgram> {
    let config = ApcVmConfig::new(
        job.pipeline.guest().vm_config.clone(),
        job.selected.buses.clone(),
        job.selected.apcs.clone(),
        BusKernel::Vm,
    )?;
    let apc = config.apcs().first().ok_or_else(|| eyre!("no APC"))?;
    let program = apc.program(BusKernel::Vm)?;
    Ok(DeviceBusProgram::upload(
        &apc.apc().name,
        &program,
        &GpuSettings::default(),
        device_ctx,
    )?)
}

/// Launches that the runtime refuses leave stream and process usable.
fn failing_launch(job: &Job) -> Result<()> {
    let device_ctx = GpuDeviceCtx::for_current_device()?;
    let program = program(job, &device_ctx)?;
    let width = job.selected.apcs[0].width();
    let zeros = upload(
        &vec![0u32; width],
        &|| "a row of zeros".to_string(),
        &device_ctx,
    )?;
    let row = |live_rows| BusTrace {
        values: zeros.as_ptr().cast(),
        height: live_rows,
        live_rows,
    };
    let scratch = BusScratch::default();
    let histograms = DeviceHistograms::zeros(&job.selected.buses.tables, &device_ctx)?;
    // A VM with other tables.
    let error = program
        .launch(row(1), PeripheryCounts::none(), &scratch, &device_ctx)
        .err()
        .ok_or_else(|| eyre!("a launch without tables went through"))?;
    println!("no tables: {error}");
    ensure!(
        matches!(error, GpuError::OtherTables { .. }),
        "another error"
    );
    let launch =
        |rows: BusTrace| program.launch(rows, histograms.pointers(), &scratch, &device_ctx);
    // More blocks than a grid may have.
    let error = launch(row(1 << 45))
        .err()
        .ok_or_else(|| eyre!("2^45 rows were launched"))?;
    println!("impossible grid: {error}");
    ensure!(matches!(error, GpuError::Launch { .. }), "another error");
    // A stream that is being captured, and whose capture has been spoilt, takes no launches.
    let stream = device_ctx.stream.as_raw();
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream is alive, and `graph` is a place for a handle.
    let (begun, spoilt) = unsafe {
        (
            cudaStreamBeginCapture(stream, CAPTURE_RELAXED),
            device_ctx.stream.synchronize().is_err(),
        )
    };
    let result = launch(row(1));
    // SAFETY: as above.
    let ended = unsafe { cudaStreamEndCapture(stream, &mut graph) };
    ensure!(
        begun == 0 && spoilt && ended != 0,
        "the capture was not spoilt"
    );
    let error = result
        .err()
        .ok_or_else(|| eyre!("the stream took the launch"))?;
    println!("a stream that takes no launches: {error}");
    ensure!(
        matches!(error, GpuError::Launch { .. }) && error.to_string().contains("apc_apply_bus_vm"),
        "another error"
    );
    check_context()?;
    // Nothing of it sticks, and nothing was counted before.
    let counted = || -> Result<u64> {
        let counts = histograms.to_host(&device_ctx)?;
        let bins = TableKind::ALL
            .into_iter()
            .flat_map(|table| counts.of(table));
        Ok(bins.copied().map(u64::from).sum())
    };
    ensure!(counted()? == 0, "a launch that failed has counted");
    launch(row(1))?;
    ensure!(counted()? > 0, "the launch after the failures does nothing");
    Ok(())
}

/// A child in which a kernel goes astray says so and ends with exit code 1, not by a signal.
fn lost_context(arguments: &GuestArguments, when: &str) -> Result<()> {
    let output = std::process::Command::new(std::env::current_exe()?)
        .arg("sticky")
        .args(["--when", when])
        .args(["--input", &arguments.input.to_string()])
        .args(["--autoprecompiles", &arguments.autoprecompiles.to_string()])
        .arg("--artifacts-dir")
        .arg(&arguments.artifacts_dir)
        .stdin(Stdio::null())
        .output()?;
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!(
        "a kernel goes astray ({when}): {}, {}",
        output.status,
        errors.trim()
    );
    ensure!(
        output.status.code() == Some(1),
        "the exit code is not 1, but {}: {said}{errors}",
        output.status
    );
    for part in ["error: ", "context", "lost", "new"] {
        ensure!(errors.contains(part), "no `{part}` in: {errors}");
    }
    ensure!(!errors.contains("panicked"), "a panic shows: {errors}");
    ensure!(
        said.contains("proof before: right"),
        "no proof before: {said}"
    );
    ensure!(
        said.contains("setup after: refused"),
        "no refusal after: {said}"
    );
    Ok(())
}

fn sticky(arguments: &GuestArguments, when: &str) -> Result<()> {
    open_device()?;
    let job = Job::new(arguments)?;
    let device_ctx = GpuDeviceCtx::for_current_device()?;
    let program = program(&job, &device_ctx)?;
    let mut setup = job.set_up(&settings())?;
    job.prove_on(&mut setup, arguments.input)?;
    println!("proof before: right");
    let scratch = BusScratch::default();
    let histograms = DeviceHistograms::zeros(&job.selected.buses.tables, &device_ctx)?;
    let astray = || {
        // An address that is no memory of the device.
        let nowhere = BusTrace {
            values: std::ptr::without_provenance(1 << 12),
            height: 1,
            live_rows: 1,
        };
        program.launch(nowhere, histograms.pointers(), &scratch, &device_ctx)
    };
    let result = if when == "before" {
        astray()?;
        job.prove_on(&mut setup, arguments.input)
    } else {
        let delay = Duration::from_millis(when.parse()?);
        let launched = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(delay);
                // It may fail itself if the context is lost in between; either way it is.
                let _ = astray();
                launched.store(true, Ordering::Release);
            });
            // Until one proof is hit.
            loop {
                let late = launched.load(Ordering::Acquire);
                let result = job.prove_on(&mut setup, arguments.input);
                if result.is_err() || late {
                    break result;
                }
            }
        })
    };
    let error = expect_failure(result)?;
    let lost = match &error {
        PipelineError::Fault(fault) => fault.is_context_lost(),
        PipelineError::Gpu(GpuError::ContextLost { .. }) => true,
        _ => false,
    };
    ensure!(lost, "the loss of the context does not show: {error}");
    drop(setup);
    match job.set_up(&settings()) {
        Err(PipelineError::Gpu(GpuError::ContextLost { .. })) => println!("setup after: refused"),
        Ok(_) => bail!("a new setup was made in a lost context"),
        Err(other) => bail!("another refusal: {other}"),
    }
    Err(error.into())
}

fn memory(
    arguments: &GuestArguments,
    segment_memory: Option<usize>,
    device_memory: Option<usize>,
) -> Result<()> {
    open_device()?;
    let (free_before, total) = memory_info()?;
    let job = Job::new(arguments)?;
    let settings = ProveSettings {
        segment_memory: segment_memory.map(|mebibytes| mebibytes * MIB),
        device_memory: device_memory.map(|mebibytes| mebibytes * MIB),
        ..settings()
    };
    let mut setup = job.set_up(&settings)?;
    let (free_set_up, _) = memory_info()?;
    let pool_set_up = pool_usage();
    let input = GuestInput::u32(arguments.input);
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || job.pipeline.execute(&setup, &input))?;
    let estimate = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .filter(|(key, ..)| key.key().name() == "metered_memory_bytes")
        .filter_map(|(.., value)| match value {
            DebugValue::Counter(bytes) => Some(bytes),
            _ => None,
        })
        .max();
    let least_free = AtomicUsize::new(usize::MAX);
    let done = AtomicBool::new(false);
    let start = Instant::now();
    let proof = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if let Ok((free, _)) = memory_info() {
                    least_free.fetch_min(free, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(2));
            }
        });
        let proof = job.pipeline.prove(&mut setup, &input);
        done.store(true, Ordering::Relaxed);
        proof
    });
    let seconds = start.elapsed().as_secs_f64();
    let held_back = held_back_bytes();
    let (result, segments) = match &proof {
        Ok((proven, _)) => ("proven".to_string(), proven.verify()?.trace_commits.len()),
        Err(error) => (error.to_string(), 0),
    };
    let usage = pool_usage();
    let factor = job
        .selected
        .apcs
        .iter()
        .map(|apc| device_memory::trace_factor(apc, settings.security.params().log_blowup))
        .fold(1.0, f64::max);
    let mib = |bytes: usize| bytes / MIB;
    println!(
        "{}",
        serde_json::json!({
            "apcs": arguments.autoprecompiles,
            "input": arguments.input,
            "segment_memory_mib": segment_memory,
            "device_memory_mib": device_memory,
            "segments": segments,
            "seconds": seconds,
            "estimate_mib": estimate.map(|bytes| bytes >> 20),
            "used_before_setup_mib": mib(total - free_before),
            "used_after_setup_mib": mib(total - free_set_up - held_back),
            "pool_after_setup_mib": pool_set_up.reserved >> 20,
            "peak_used_mib": mib(total - least_free.load(Ordering::Relaxed) - held_back),
            "pool_after_proof_mib": usage.reserved >> 20,
            "allocated_after_proof_mib": usage.allocated >> 20,
            "trace_factor": factor,
            "result": result,
        })
    );
    proof?;
    Ok(())
}
