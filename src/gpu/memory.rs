//! Device memory with errors in place of panics, and what OpenVM's pool says of itself.

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use openvm_cuda_common::{
    copy::MemCopyH2D,
    d_buffer::DeviceBuffer,
    error::MemoryError,
    memory_manager::{d_malloc_on, MemTracker},
    stream::GpuDeviceCtx,
};

use super::{
    device::{clear_last_error, memory_info},
    error::GpuError,
};

/// Room for `length` values on the device, on the context's stream. `buffer` says what for, in errors. A length of zero
/// gives an empty buffer.
///
/// # Errors
/// [`GpuError::OutOfMemory`].
pub fn allocate<T>(
    length: usize,
    buffer: &dyn Fn() -> String,
    device_ctx: &GpuDeviceCtx,
) -> Result<DeviceBuffer<T>, GpuError> {
    if length == 0 {
        return Ok(DeviceBuffer::new());
    }
    let out_of_memory = |bytes, reason| {
        let (free, total) = memory_info().unwrap_or_default();
        GpuError::OutOfMemory {
            buffer: buffer(),
            bytes,
            free,
            total,
            reason,
        }
    };
    let bytes = length.checked_mul(size_of::<T>()).ok_or_else(|| {
        out_of_memory(
            usize::MAX,
            MemoryError::InvalidMemorySize { size: usize::MAX },
        )
    })?;
    let pointer = d_malloc_on(bytes, &device_ctx.stream).map_err(|reason| {
        clear_last_error();
        out_of_memory(bytes, reason)
    })?;
    // SAFETY: the memory manager just gave `bytes` bytes, which the buffer owns from here on and frees through it.
    Ok(unsafe { DeviceBuffer::from_raw_parts(pointer.cast(), length) })
}

/// A copy of `values` on the device. The copy is ordered on the context's stream; `values` may be dropped at once
/// (pageable memory is staged before the call returns).
///
/// # Errors
/// [`GpuError::OutOfMemory`] or [`GpuError::Copy`].
pub fn upload<T>(
    values: &[T],
    buffer: &dyn Fn() -> String,
    device_ctx: &GpuDeviceCtx,
) -> Result<DeviceBuffer<T>, GpuError> {
    let mut target = allocate(values.len(), buffer, device_ctx)?;
    if !values.is_empty() {
        values
            .copy_to_on(&mut target, device_ctx)
            .map_err(|source| GpuError::Copy {
                what: buffer(),
                source,
            })?;
    }
    Ok(target)
}

/// What OpenVM's memory manager holds and has given out in this process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Held by the pool. It only grows: the pool gives nothing back to the driver.
    pub reserved: u64,
    /// Given out at present, small allocations beside the pool included.
    pub allocated: u64,
    /// The most that was given out at once since the peak was last reset, which OpenVM does between the steps of a proof.
    pub peak: u64,
}

/// Asks OpenVM's memory manager, which tells nobody but a metrics recorder.
pub fn pool_usage() -> PoolUsage {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let tracker = MemTracker::start("usage");
    metrics::with_local_recorder(&recorder, || tracker.emit_metrics());
    let mut usage = PoolUsage::default();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let DebugValue::Gauge(value) = value else {
            continue;
        };
        let bytes = value.into_inner() as u64;
        match key.key().name() {
            "gpu_mem.reserved_bytes" => usage.reserved = bytes,
            "gpu_mem.current_bytes" => usage.allocated = bytes,
            "gpu_mem.local_peak_bytes" => usage.peak = bytes,
            _ => {}
        }
    }
    usage
}
