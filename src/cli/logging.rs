//! Logs, metrics, panics.

use std::path::Path;

use metrics_tracing_context::{MetricsLayer, TracingContextLayer};
use metrics_util::{
    debugging::{DebuggingRecorder, Snapshotter},
    layers::Layer,
};
use openvm_apc::pipeline::{write_atomically, PipelineError};
use openvm_stark_sdk::{bench::serialize_metric_snapshot, metrics_tracing::TimingMetricsLayer};
use tracing_subscriber::{layer::SubscriberExt, EnvFilter, Layer as _, Registry};

/// Shown on a terminal unless RUST_LOG says otherwise: what a user has to know. OpenVM's allocator logs what becomes an
/// error of ours.
const DEFAULT_LOG: &str = "warn,openvm_cuda_common::memory_manager=off";
/// What is timed, whatever is shown: OpenVM's spans are at level info.
const TIMED: &str = "info,p3_=warn";

/// Metrics being collected.
pub struct Metrics(Snapshotter);

/// Starts logging to standard error, and collecting metrics if asked.
pub fn start(collect_metrics: bool) -> Option<Metrics> {
    let shown = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    let messages = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .with_filter(shown);
    let subscriber = Registry::default().with(messages);
    // Spans as NVTX ranges, for Nsight Systems; without a profiler attached they go nowhere.
    #[cfg(feature = "cuda")]
    let subscriber = subscriber.with(
        openvm_stark_sdk::nvtx_tracing::NvtxLayer::new(Default::default())
            .with_filter(EnvFilter::new(TIMED)),
    );
    if !collect_metrics {
        // Somebody embedding us may have set one already; theirs stays.
        let _ = tracing::subscriber::set_global_default(subscriber);
        return None;
    }
    let subscriber = subscriber
        .with(MetricsLayer::new())
        .with(TimingMetricsLayer::new().with_filter(EnvFilter::new(TIMED)));
    let _ = tracing::subscriber::set_global_default(subscriber);
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let recorder = TracingContextLayer::all().layer(recorder);
    metrics::set_global_recorder(recorder).ok()?;
    Some(Metrics(snapshotter))
}

impl Metrics {
    /// Writes the snapshot, in the form of OpenVM's own benchmarks.
    pub fn write(self, path: &Path) -> Result<(), PipelineError> {
        let snapshot = serialize_metric_snapshot(self.0.snapshot());
        let mut json = serde_json::to_vec_pretty(&snapshot).unwrap_or_default();
        json.push(b'\n');
        write_atomically("the metrics", path, &json)
    }
}

/// Panics become errors where they are caught: they print nothing of their own, unless RUST_LOG asks for debugging.
pub fn hush_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if tracing::enabled!(tracing::Level::DEBUG) {
            default(info);
        }
    }));
}
