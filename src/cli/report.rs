//! Results, in words.

use std::{path::Path, time::Duration};

use openvm_apc::{
    bus::stats::BusStats,
    pipeline::{ApcTracesReport, ExecutionReport, Identity, PipelineError, SelectedApcs, Verified},
    vm::mock::MockReport,
};

/// Proofs of fewer bits are called weak.
const SECURE_BITS: u32 = 100;

/// The selected APCs, one a line.
pub fn selected(selected: &SelectedApcs) {
    println!(
        "{:<28} {:>12} {:>8} {:>12} {:>12} {:>10}",
        "APC", "instructions", "columns", "(originally)", "interactions", "executions"
    );
    for apc in &selected.apcs {
        println!(
            "{:<28} {:>12} {:>8} {:>12} {:>12} {:>10}",
            apc.name,
            apc.instructions.len(),
            apc.width(),
            apc.original_width,
            apc.machine.bus_interactions.len(),
            apc.profile_executions,
        );
    }
}

/// What identifies the program and the VM.
pub fn setup(identity: &Identity) {
    println!("exe commitment: {}", digest(&identity.exe_commit));
    println!("verifying key: {}", identity.verifying_key);
}

/// An execution, and what APCs saved.
pub fn execution(with: &ExecutionReport, without: Option<&ExecutionReport>) {
    println!("public values: {}", hex::encode(&with.public_values));
    println!(
        "{:<14} {:>14} {:>14} {:>16} {:>9}",
        "", "instructions", "trace rows", "trace cells", "segments"
    );
    let line = |name: &str, report: &ExecutionReport| {
        println!(
            "{:<14} {:>14} {:>14} {:>16} {:>9}",
            name,
            report.instructions(),
            report.rows(),
            report.cells(),
            report.segments.len()
        );
    };
    if let Some(without) = without {
        line("without APCs", without);
    }
    line(
        if without.is_some() {
            "with APCs"
        } else {
            "plain"
        },
        with,
    );
    if let Some(without) = without {
        println!(
            "{:<14} {:>14} {:>14} {:>16}",
            "saved",
            share(without.instructions(), with.instructions()),
            share(without.rows(), with.rows()),
            share(without.cells(), with.cells()),
        );
    }
}

fn share(before: u64, after: u64) -> String {
    if before == 0 {
        return "-".to_string();
    }
    format!(
        "{:.1} %",
        100.0 * (before as f64 - after as f64) / before as f64
    )
}

/// The costs of bus programs, and their maxima last, as JSON.
pub fn stats_json(stats: &[BusStats]) -> Result<(), PipelineError> {
    let rows: Vec<BusStats> = stats
        .iter()
        .cloned()
        .chain([BusStats::maxima(stats)])
        .collect();
    let json = serde_json::to_string_pretty(&rows)
        .map_err(|error| PipelineError::Vm(format!("the statistics: {error}")))?;
    println!("{json}");
    Ok(())
}

/// Traces of APCs that were written.
pub fn apc_traces(report: &ApcTracesReport, path: &Path) {
    println!(
        "{} trace(s) of {} APC(s), {} calls, written to {}",
        report.traces,
        report.apcs,
        report.calls,
        path.display()
    );
}

/// Traces that were checked without proving.
pub fn mock(report: &MockReport) {
    println!(
        "all {} constraints hold on {} rows of {} AIRs, and all buses balance over {} messages \
         (nothing was proven)",
        report.constraints, report.rows, report.airs, report.messages
    );
}

/// A proof that was made and verified.
pub fn proven(result: &Verified, elapsed: Duration) {
    verified(result);
    println!("proven in {:.1} s, and verified", elapsed.as_secs_f64());
}

/// What a valid proof says.
pub fn verified(verified: &Verified) {
    println!("public values: {}", hex::encode(&verified.public_values));
    println!(
        "public_values_commit: {}",
        digest(&verified.public_values_commit)
    );
    println!("exe commitment: {}", digest(&verified.exe_commit));
    println!("verifying key: {}", verified.verifying_key);
    println!("security: {} bits", verified.security_bits);
    if verified.security_bits < SECURE_BITS {
        eprintln!("warning: below {SECURE_BITS} bits, such a proof can be forged");
    }
    for (segment, commit) in verified.trace_commits.iter().enumerate() {
        println!("segment {segment} trace commitment: {}", digest(commit));
    }
}

fn digest(elements: &[u32; 8]) -> String {
    elements.map(|element| element.to_string()).join(" ")
}
