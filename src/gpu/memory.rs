//! Device memory with errors in place of panics.

use openvm_cuda_common::{
    copy::MemCopyH2D, d_buffer::DeviceBuffer, memory_manager::d_malloc_on, stream::GpuDeviceCtx,
};

use super::{device::memory_info, error::GpuError};

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
    let bytes = length * size_of::<T>();
    let pointer = d_malloc_on(bytes, &device_ctx.stream).map_err(|reason| {
        let (free, total) = memory_info().unwrap_or_default();
        GpuError::OutOfMemory {
            buffer: buffer(),
            bytes,
            free,
            total,
            reason,
        }
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
