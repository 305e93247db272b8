//! The substages of APC trace generation: named, traced, timed.
//!
//! Each is a `tracing` info span, so that OpenVM's metrics layer emits `<name>_time_ms` with its labels, plus a
//! counter `<name>_us`, since spans truncate to milliseconds. With `POWDR_TRACE_PROFILE` set, a GPU generator
//! synchronises its stream before a substage closes; otherwise nothing serialises.

use std::{sync::OnceLock, time::Instant};

/// Set: substages wait for the device before they close, so that their times are theirs alone.
pub const TRACE_PROFILE_VARIABLE: &str = "POWDR_TRACE_PROFILE";

/// Whether [`TRACE_PROFILE_VARIABLE`] is set. Read once.
pub fn profiling() -> bool {
    static PROFILING: OnceLock<bool> = OnceLock::new();
    *PROFILING.get_or_init(|| std::env::var_os(TRACE_PROFILE_VARIABLE).is_some())
}

/// The substages, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Substage {
    /// Setting up the original AIRs' chips with periphery whose counts are thrown away.
    DummyChipInventory,
    /// The original AIRs' traces, out of the records of the calls.
    DummyTraceGen,
    /// Moving what substitution needs to where it runs.
    TracegenH2d,
    /// Copying surviving columns into the APC trace.
    TracegenKernel,
    /// Columns that the optimizer introduced.
    Derived,
    /// Compiling the bus program and moving it to where it runs.
    BusCompileH2d,
    /// Applying the bus interactions.
    BusKernel,
}

impl Substage {
    /// All substages.
    pub const ALL: [Substage; 7] = [
        Substage::DummyChipInventory,
        Substage::DummyTraceGen,
        Substage::TracegenH2d,
        Substage::TracegenKernel,
        Substage::Derived,
        Substage::BusCompileH2d,
        Substage::BusKernel,
    ];

    /// The name of its span, and of its counter without `_us`.
    pub fn name(self) -> &'static str {
        match self {
            Substage::DummyChipInventory => "dummy_chip_inventory",
            Substage::DummyTraceGen => "dummy_trace_gen",
            Substage::TracegenH2d => "tracegen_h2d",
            Substage::TracegenKernel => "tracegen_kernel",
            Substage::Derived => "derived",
            Substage::BusCompileH2d => "bus_compile_h2d",
            Substage::BusKernel => "bus_kernel",
        }
    }

    /// Runs `work` as this substage of an APC's trace generation.
    pub fn run<R>(self, apc: &str, work: impl FnOnce() -> R) -> R {
        let span = match self {
            Substage::DummyChipInventory => tracing::info_span!("dummy_chip_inventory", apc),
            Substage::DummyTraceGen => tracing::info_span!("dummy_trace_gen", apc),
            Substage::TracegenH2d => tracing::info_span!("tracegen_h2d", apc),
            Substage::TracegenKernel => tracing::info_span!("tracegen_kernel", apc),
            Substage::Derived => tracing::info_span!("derived", apc),
            Substage::BusCompileH2d => tracing::info_span!("bus_compile_h2d", apc),
            Substage::BusKernel => tracing::info_span!("bus_kernel", apc),
        };
        let start = Instant::now();
        let result = span.in_scope(work);
        let counter = match self {
            Substage::DummyChipInventory => "dummy_chip_inventory_us",
            Substage::DummyTraceGen => "dummy_trace_gen_us",
            Substage::TracegenH2d => "tracegen_h2d_us",
            Substage::TracegenKernel => "tracegen_kernel_us",
            Substage::Derived => "derived_us",
            Substage::BusCompileH2d => "bus_compile_h2d_us",
            Substage::BusKernel => "bus_kernel_us",
        };
        metrics::counter!(counter, "apc" => apc.to_string())
            .increment(start.elapsed().as_micros() as u64);
        result
    }
}
