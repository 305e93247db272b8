//! `cli-openvm`: arguments, logging, progress, reports. No logic.

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}
