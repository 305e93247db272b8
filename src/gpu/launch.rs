//! The launches of trace generation: substitution and derived columns.

use openvm_cuda_common::{d_buffer::DeviceBuffer, error::CudaError, stream::GpuDeviceCtx};

use super::{
    derived::DeviceDerivedColumns,
    device::clear_last_error,
    error::GpuError,
    ffi,
    structs::{OriginalTrace, Substitution},
};
use crate::bus::F;

/// An APC trace under construction: column-major, `height` rows, of which the first `calls` are live.
pub struct ApcTraceTarget<'a> {
    /// Name of the APC, for errors.
    pub apc: &'a str,
    /// `height × width` cells.
    pub values: &'a DeviceBuffer<F>,
    /// Rows.
    pub height: u64,
    /// Live rows.
    pub calls: u64,
}

/// Enqueues the copies out of the original traces. Fills every row of every column named by a substitution; rows from
/// `calls` on with zeros.
///
/// # Errors
/// [`GpuError::Launch`].
pub fn substitute(
    target: &ApcTraceTarget<'_>,
    original_traces: &DeviceBuffer<OriginalTrace>,
    substitutions: &DeviceBuffer<Substitution>,
    device_ctx: &GpuDeviceCtx,
) -> Result<(), GpuError> {
    // SAFETY: all pointers are device memory that lives until the stream has passed this point; the substitutions name
    // columns within the target's width and cells within the original traces, as the trace plan checked.
    let status = unsafe {
        ffi::_apc_tracegen(
            target.values.as_mut_ptr(),
            target.height,
            target.calls,
            original_traces.as_ptr(),
            substitutions.as_ptr(),
            substitutions.len() as u32,
            device_ctx.stream.as_raw(),
        )
    };
    check("apc_tracegen", target.apc, status)
}

/// Enqueues the computation of derived columns. Fills every row of each; rows from `calls` on with zeros.
///
/// # Errors
/// [`GpuError::Launch`].
pub fn derive(
    target: &ApcTraceTarget<'_>,
    original_traces: &DeviceBuffer<OriginalTrace>,
    derived: &DeviceDerivedColumns,
    device_ctx: &GpuDeviceCtx,
) -> Result<(), GpuError> {
    // SAFETY: as for `substitute`; the code was compiled by `DerivedCode::compile`, which bounds the stack.
    let status = unsafe {
        ffi::_apc_derived(
            target.values.as_mut_ptr(),
            target.height,
            target.calls,
            original_traces.as_ptr(),
            derived.cells.as_ptr(),
            derived.code.as_ptr(),
            derived.columns.as_ptr(),
            derived.columns.len() as u32,
            device_ctx.stream.as_raw(),
        )
    };
    check("apc_derived", target.apc, status)
}

/// What a launcher returned, as a result.
pub(super) fn check(kernel: &'static str, apc: &str, status: i32) -> Result<(), GpuError> {
    CudaError::from_result(status).map_err(|source| {
        // Not every status went through the launcher's own check, which clears it.
        clear_last_error();
        GpuError::Launch {
            kernel,
            apc: apc.to_string(),
            source,
        }
    })
}
