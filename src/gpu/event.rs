//! GPU times by CUDA events: what the benchmarks report.
//!
//! [`Stopwatch::time`] brackets the work that a closure enqueues. Nothing waits: the times are read when the caller asks.
//! [`record_launches`] makes every stopwatch of the process report into one list, for whole proofs.

use std::sync::{
    atomic::{AtomicBool, AtomicUsize, Ordering},
    Mutex, PoisonError,
};

use openvm_cuda_common::{
    error::CudaError,
    stream::{cudaEvent_t, GpuDeviceCtx},
};

use super::{error::GpuError, ffi};

/// A CUDA event with timing.
struct Event(cudaEvent_t);

// SAFETY: events may be recorded and queried from any thread of the process.
unsafe impl Send for Event {}

impl Event {
    fn new() -> Result<Self, GpuError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: `event` is a valid place for a handle.
        check("cudaEventCreate", unsafe {
            ffi::cudaEventCreate(&mut event)
        })?;
        Ok(Self(event))
    }

    fn record(&self, device_ctx: &GpuDeviceCtx) -> Result<(), GpuError> {
        // SAFETY: both handles are alive.
        check("cudaEventRecord", unsafe {
            ffi::cudaEventRecord(self.0, device_ctx.stream.as_raw())
        })
    }

    /// Milliseconds from this event to `end`, both recorded. Waits for `end`.
    fn elapsed(&self, end: &Event) -> Result<f64, GpuError> {
        let mut milliseconds = 0f32;
        // SAFETY: both handles are alive, and `milliseconds` is a valid place for a float.
        unsafe {
            check("cudaEventSynchronize", ffi::cudaEventSynchronize(end.0))?;
            check(
                "cudaEventElapsedTime",
                ffi::cudaEventElapsedTime(&mut milliseconds, self.0, end.0),
            )?;
        }
        Ok(f64::from(milliseconds))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle came from cudaEventCreate and is not used again. A failure only leaks the event.
        unsafe { ffi::cudaEventDestroy(self.0) };
    }
}

fn check(call: &'static str, status: i32) -> Result<(), GpuError> {
    CudaError::from_result(status).map_err(|source| GpuError::Runtime { call, source })
}

/// Two events around some work of one stream.
pub struct Stopwatch {
    start: Event,
    end: Event,
}

impl Stopwatch {
    /// Runs `enqueue` between two events.
    ///
    /// # Errors
    /// Those of `enqueue`, or [`GpuError::Runtime`].
    pub fn time<T>(
        device_ctx: &GpuDeviceCtx,
        enqueue: impl FnOnce() -> Result<T, GpuError>,
    ) -> Result<(T, Self), GpuError> {
        let watch = Self {
            start: Event::new()?,
            end: Event::new()?,
        };
        watch.start.record(device_ctx)?;
        let result = enqueue()?;
        watch.end.record(device_ctx)?;
        Ok((result, watch))
    }

    /// GPU milliseconds between the two events. Waits for the second.
    ///
    /// # Errors
    /// [`GpuError::Runtime`], also for a failure of the work in between.
    pub fn milliseconds(&self) -> Result<f64, GpuError> {
        self.start.elapsed(&self.end)
    }
}

/// One timed piece of GPU work.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchTiming {
    /// The substage that it belongs to.
    pub substage: &'static str,
    /// The APC that it was done for.
    pub apc: String,
    /// The segment, counted from zero.
    pub segment: usize,
    /// GPU time.
    pub milliseconds: f64,
}

struct Recorded {
    substage: &'static str,
    apc: String,
    segment: usize,
    stopwatch: Stopwatch,
}

static RECORDING: AtomicBool = AtomicBool::new(false);
static RECORDED: Mutex<Vec<Recorded>> = Mutex::new(Vec::new());
static SEGMENT: AtomicUsize = AtomicUsize::new(0);

/// What is recorded from here on belongs to this segment.
pub fn enter_segment(segment: usize) {
    SEGMENT.store(segment, Ordering::Relaxed);
}

/// Runs `enqueue` and, within [`record_launches`], times it.
///
/// # Errors
/// Those of `enqueue`, or [`GpuError::Runtime`].
pub fn timed<T>(
    substage: &'static str,
    apc: &str,
    device_ctx: &GpuDeviceCtx,
    enqueue: impl FnOnce() -> Result<T, GpuError>,
) -> Result<T, GpuError> {
    if !RECORDING.load(Ordering::Relaxed) {
        return enqueue();
    }
    let (result, stopwatch) = Stopwatch::time(device_ctx, enqueue)?;
    RECORDED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(Recorded {
            substage,
            apc: apc.to_string(),
            segment: SEGMENT.load(Ordering::Relaxed),
            stopwatch,
        });
    Ok(result)
}

/// Runs `proof` and returns, besides its result, the GPU times of everything that went through [`timed`] meanwhile, in
/// order. One recording at a time in a process.
///
/// # Errors
/// Those of `proof`, which come before what they do to the events; [`GpuError::Runtime`].
pub fn record_launches<T, E: From<GpuError>>(
    proof: impl FnOnce() -> Result<T, E>,
) -> Result<(T, Vec<LaunchTiming>), E> {
    struct Recording;
    impl Drop for Recording {
        fn drop(&mut self) {
            RECORDING.store(false, Ordering::Relaxed);
        }
    }
    RECORDED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    RECORDING.store(true, Ordering::Relaxed);
    let recording = Recording;
    let result = proof();
    drop(recording);
    let recorded = std::mem::take(&mut *RECORDED.lock().unwrap_or_else(PoisonError::into_inner));
    let result = result?;
    let timings = recorded
        .into_iter()
        .map(|recorded| {
            Ok(LaunchTiming {
                substage: recorded.substage,
                apc: recorded.apc,
                segment: recorded.segment,
                milliseconds: recorded.stopwatch.milliseconds()?,
            })
        })
        .collect::<Result<_, GpuError>>()?;
    Ok((result, timings))
}
