//! The command line: from arguments to library calls, and from results to words.

mod arguments;
mod bench;
mod logging;
mod progress;
mod report;

use std::{path::Path, process::ExitCode, sync::Arc};

use clap::Parser;
use openvm_apc::{
    apc::{panic_message, ApcSettings},
    bus::{stats::StatsTable, BusKernel},
    pipeline::{
        check_new_folder, check_writable, pause_writes, proof_file, remove_unfinished_folders,
        stats, ArtifactStore, DeviceSetup, ExecutionReport, Guest, GuestInput, Pipeline,
        PipelineError, ProveSettings, SelectedApcs, TraceDigests,
    },
};

use arguments::{
    Arguments, Command, Common, ExecuteArguments, ProveArguments, SetupArguments, StatsArguments,
};

/// What a shell reports for a process that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Bytes of so many MiB.
fn mebibytes(count: u32) -> usize {
    count as usize * (1 << 20)
}

/// Runs the command line.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    logging::hush_panics();
    handle_interrupts();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| execute(&arguments)));
    match result {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(PipelineError::Interrupted)) => {
            eprintln!("interrupted");
            ExitCode::from(INTERRUPTED)
        }
        Ok(Err(error)) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
        // `… | head`: whoever read the output has gone.
        Err(payload) if panic_message(&*payload).starts_with("failed printing to") => {
            ExitCode::FAILURE
        }
        Err(payload) => {
            eprintln!(
                "internal error: {}\nThis is a defect: please report it with the command line \
                 (RUST_LOG=debug says more).",
                panic_message(&*payload)
            );
            ExitCode::FAILURE
        }
    }
}

fn execute(arguments: &Arguments) -> Result<(), PipelineError> {
    let metrics = logging::start(arguments.metrics().is_some());
    for (what, path) in arguments.outputs() {
        check_writable(what, path)?;
    }
    if let Some((what, path)) = arguments.output_folder() {
        check_new_folder(what, path)?;
    }
    dispatch(&arguments.command)?;
    if let (Some(metrics), Some(path)) = (metrics, arguments.metrics()) {
        metrics.write(path)?;
    }
    Ok(())
}

/// Ctrl-C ends the process at once, but never in the middle of a file.
fn handle_interrupts() {
    let handler = || {
        let nothing_half_written = pause_writes();
        remove_unfinished_folders(&nothing_half_written);
        eprintln!("\ninterrupted");
        // Not `std::process::exit`: that takes the CUDA runtime down while other threads still use it, and OpenVM's
        // destructors, which panic on errors, would abort the process.
        // SAFETY: ends the process; nothing runs after it.
        unsafe { libc::_exit(INTERRUPTED.into()) }
    };
    // It fails if there is a handler already, which is then whoever's who set it.
    let _ = ctrlc::set_handler(handler);
}

fn dispatch(command: &Command) -> Result<(), PipelineError> {
    match command {
        Command::SelectApcs(arguments) => {
            let pipeline = pipeline(arguments)?;
            let selected = select_apcs(&pipeline, arguments)?;
            report::selected(&selected);
            Ok(())
        }
        Command::Setup(arguments) => {
            let pipeline = pipeline(&arguments.common)?;
            let settings = prove_settings(arguments)?;
            let selected = select_apcs(&pipeline, &arguments.common)?;
            let settings = DeviceSetup::fit(&pipeline, &selected, settings)?;
            report::setup(&DeviceSetup::identity(&pipeline, &selected, &settings)?);
            Ok(())
        }
        Command::Execute(arguments) => run_guest(arguments),
        Command::Prove(arguments) => prove(arguments),
        Command::Stats(arguments) => stats(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Verify {
            file,
            exe_commitment,
            verifying_key,
        } => {
            let verified = proof_file::read(file)?.verify()?;
            verified.expect(*exe_commitment, verifying_key.as_deref())?;
            report::verified(&verified);
            println!("the proof is valid");
            Ok(())
        }
        Command::CompareTraces { first, second } => {
            let compared = TraceDigests::read(first)?.compare(&TraceDigests::read(second)?)?;
            println!("{compared}");
            Ok(())
        }
    }
}

fn run_guest(arguments: &ExecuteArguments) -> Result<(), PipelineError> {
    let ExecuteArguments {
        setup: setup_arguments,
        trace_digests,
        apc_traces,
    } = arguments;
    let pipeline = pipeline(&setup_arguments.common)?;
    let settings = prove_settings(setup_arguments)?;
    let selected = select_apcs(&pipeline, &setup_arguments.common)?;
    let settings = DeviceSetup::fit(&pipeline, &selected, settings)?;
    let input = input(&setup_arguments.common);
    let set_up = || DeviceSetup::new(&pipeline, &selected, &settings);
    let mut setup = None;
    let with = pipeline.execution(&selected, &settings, &input, || {
        setup.insert(set_up()?).execute(&pipeline, &input)
    })?;
    let without = without_apcs(&pipeline, &selected, &settings, &input)?;
    report::execution(&with, without.as_ref());
    if trace_digests.is_none() && apc_traces.is_none() {
        return Ok(());
    }
    let mut setup = setup.map_or_else(set_up, Ok)?;
    if let Some(path) = trace_digests {
        setup.trace_digests(&pipeline, &input)?.write(path)?;
    }
    if let Some(path) = apc_traces {
        report::apc_traces(&setup.apc_traces(&pipeline, &input, path)?, path);
    }
    Ok(())
}

fn prove(arguments: &ProveArguments) -> Result<(), PipelineError> {
    let ProveArguments {
        setup: setup_arguments,
        proof,
        mock,
        trace_digests,
    } = arguments;
    let pipeline = pipeline(&setup_arguments.common)?;
    let settings = prove_settings(setup_arguments)?;
    let selected = select_apcs(&pipeline, &setup_arguments.common)?;
    let settings = DeviceSetup::fit(&pipeline, &selected, settings)?;
    let mut setup = DeviceSetup::new(&pipeline, &selected, &settings)?;
    if std::env::var_os(stats::DUMP_BUS_DAG_VARIABLE).is_some() {
        eprintln!("{}", StatsTable(&stats::of_apcs(&selected)?));
    }
    let input = input(&setup_arguments.common);
    let with = pipeline.execution(&selected, &settings, &input, || {
        setup.execute(&pipeline, &input)
    })?;
    let without = without_apcs(&pipeline, &selected, &settings, &input)?;
    report::execution(&with, without.as_ref());
    if *mock {
        report::mock(&setup.mock(&pipeline, &input)?);
        return Ok(());
    }
    let (proven, elapsed) = match trace_digests {
        None => setup.prove(&pipeline, &input)?,
        Some(path) => {
            let (proven, elapsed, digests) = setup.prove_with_digests(&pipeline, &input)?;
            digests.write(path)?;
            (proven, elapsed)
        }
    };
    let verified = proven.verify()?;
    report::proven(&verified, elapsed);
    if let Some(path) = proof {
        proof_file::write(path, &proven)?;
        println!("proof written to {}", path.display());
    }
    Ok(())
}

fn stats(arguments: &StatsArguments) -> Result<(), PipelineError> {
    let common = &arguments.common;
    let path = Path::new(&common.guest);
    let stats = if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        vec![stats::of_machine(path)?]
    } else {
        let pipeline = pipeline(common)?;
        stats::of_apcs(&select_apcs(&pipeline, common)?)?
    };
    if arguments.json {
        report::stats_json(&stats)
    } else {
        println!("{}", StatsTable(&stats));
        Ok(())
    }
}

/// What the run would come to without APCs, if there are any.
fn without_apcs(
    pipeline: &Pipeline,
    selected: &SelectedApcs,
    settings: &ProveSettings,
    input: &GuestInput,
) -> Result<Option<ExecutionReport>, PipelineError> {
    if selected.apcs.is_empty() {
        return Ok(None);
    }
    pipeline.execute_without_apcs(settings, input).map(Some)
}

fn pipeline(common: &Common) -> Result<Pipeline, PipelineError> {
    let guest = Guest::find(&common.guest)?;
    let store = ArtifactStore::open(common.artifacts_dir.as_deref())?;
    Ok(Pipeline::new(
        guest,
        store,
        Arc::new(progress::Terminal::new()),
    ))
}

fn select_apcs(pipeline: &Pipeline, common: &Common) -> Result<SelectedApcs, PipelineError> {
    pipeline.select_apcs(&apc_settings(common), &profile_input(common))
}

fn apc_settings(common: &Common) -> ApcSettings {
    ApcSettings {
        autoprecompiles: common.autoprecompiles.into(),
        skip: common.skip.into(),
        pgo: common.pgo,
        max_columns: common.max_columns,
        candidates_directory: common.apc_candidates_dir.clone(),
    }
}

fn input(common: &Common) -> GuestInput {
    GuestInput::from_option(common.input)
}

fn profile_input(common: &Common) -> GuestInput {
    GuestInput::from_option(common.profile_input.or(common.input))
}

fn prove_settings(arguments: &SetupArguments) -> Result<ProveSettings, PipelineError> {
    arguments.device.check()?;
    Ok(ProveSettings {
        security: arguments.security,
        segment_memory: arguments.segment_memory.map(mebibytes),
        device_memory: arguments.device_memory.map(mebibytes),
        bus_kernel: BusKernel::resolve(arguments.bus_kernel.as_deref())?,
        device: arguments.device,
        #[cfg(feature = "cuda")]
        gpu: openvm_apc::gpu::GpuSettings {
            bus_scratch: mebibytes(arguments.bus_scratch),
            ..Default::default()
        },
    })
}
