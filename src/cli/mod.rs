//! The command line: from arguments to library calls, and from results to words.

mod arguments;
mod logging;
mod progress;
mod report;

use std::{
    process::ExitCode,
    sync::{atomic::Ordering, Arc},
};

use clap::Parser;
use openvm_apc::{
    apc::ApcSettings,
    bus::BusKernel,
    pipeline::{
        proof_file, ArtifactStore, Guest, GuestInput, Pipeline, PipelineError, ProveSettings, Setup,
    },
};

use arguments::{Arguments, Command, Common, ProveArguments};

/// What a shell reports for a process that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Runs the command line.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    logging::hush_panics();
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
        Err(payload) => {
            eprintln!(
                "internal error: {}\nThis is a defect: please report it with the command line \
                 (RUST_LOG=debug says more).",
                logging::panic_text(&*payload)
            );
            ExitCode::FAILURE
        }
    }
}

fn execute(arguments: &Arguments) -> Result<(), PipelineError> {
    let metrics = logging::start(arguments.metrics().is_some());
    let result = dispatch(&arguments.command);
    if let (Some(metrics), Some(path)) = (metrics, arguments.metrics()) {
        metrics.write(path)?;
    }
    result
}

fn dispatch(command: &Command) -> Result<(), PipelineError> {
    match command {
        Command::SelectApcs(arguments) => {
            let pipeline = pipeline(arguments)?;
            let selected =
                pipeline.select_apcs(&apc_settings(arguments), &profile_input(arguments))?;
            report::selected(&selected);
            Ok(())
        }
        Command::Setup(arguments) => {
            let pipeline = pipeline(&arguments.common)?;
            let (_, setup) = set_up(&pipeline, arguments)?;
            report::setup(&setup)
        }
        Command::Execute(arguments) => {
            let pipeline = pipeline(&arguments.common)?;
            let (selected, setup) = set_up(&pipeline, arguments)?;
            let input = input(&arguments.common);
            let with = pipeline.execute(&setup, &input)?;
            let without = if selected.apcs.is_empty() {
                None
            } else {
                Some(pipeline.execute_without_apcs(&prove_settings(arguments)?, &input)?)
            };
            report::execution(&with, without.as_ref());
            Ok(())
        }
        Command::Prove(arguments) => prove(arguments),
        Command::Verify { file } => {
            let verified = proof_file::read(file)?.verify()?;
            report::verified(&verified);
            println!("the proof is valid");
            Ok(())
        }
    }
}

fn prove(arguments: &ProveArguments) -> Result<(), PipelineError> {
    let pipeline = pipeline(&arguments.common)?;
    let (selected, mut setup) = set_up(&pipeline, arguments)?;
    let input = input(&arguments.common);
    let with = pipeline.execute(&setup, &input)?;
    if !selected.apcs.is_empty() {
        let without = pipeline.execute_without_apcs(&prove_settings(arguments)?, &input)?;
        report::execution(&with, Some(&without));
    }
    if arguments.mock {
        report::mock(&pipeline.mock(&mut setup, &input)?);
        return Ok(());
    }
    let (proven, elapsed) = pipeline.prove(&mut setup, &input)?;
    let verified = proven.verify()?;
    report::proven(&verified, elapsed);
    if let Some(path) = &arguments.proof {
        proof_file::write(path, &proven)?;
        println!("proof written to {}", path.display());
    }
    Ok(())
}

fn pipeline(common: &Common) -> Result<Pipeline, PipelineError> {
    let guest = Guest::find(&common.guest)?;
    let store = ArtifactStore::open(common.artifacts_dir.as_deref())?;
    let pipeline = Pipeline::new(guest, store, Arc::new(progress::Terminal::new()));
    let interrupted = pipeline.interrupt_flag();
    // The first Ctrl-C ends at the next step, so that nothing is left half-written; the second at once. Files are
    // written beside their places and renamed, so that is safe as well.
    let _ = ctrlc::set_handler(move || {
        if interrupted.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED.into());
        }
        eprintln!("\ninterrupted: ending at the next step (again to end at once)");
    });
    Ok(pipeline)
}

fn set_up(
    pipeline: &Pipeline,
    arguments: &ProveArguments,
) -> Result<(openvm_apc::pipeline::SelectedApcs, Setup), PipelineError> {
    let settings = prove_settings(arguments)?;
    let selected = pipeline.select_apcs(
        &apc_settings(&arguments.common),
        &profile_input(&arguments.common),
    )?;
    let setup = pipeline.setup(&selected, &settings)?;
    Ok((selected, setup))
}

fn apc_settings(common: &Common) -> ApcSettings {
    ApcSettings {
        autoprecompiles: common.autoprecompiles,
        skip: common.skip,
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

fn prove_settings(arguments: &ProveArguments) -> Result<ProveSettings, PipelineError> {
    Ok(ProveSettings {
        security: arguments.security,
        segment_memory: arguments.segment_memory.map(|mebibytes| mebibytes << 20),
        bus_kernel: BusKernel::resolve(arguments.bus_kernel.as_deref())?,
    })
}
