//! Is there a GPU, and can it run this binary's code?

use std::{
    ffi::{c_char, CStr},
    sync::atomic::{AtomicBool, Ordering},
};

use openvm_cuda_common::{error::CudaError, stream::device_synchronize};

use super::{error::GpuError, ffi};
use crate::bus::terms::launch::DeviceLimits;

/// The GPU architectures compiled into this binary, as `build/cuda.rs` read or chose them.
pub const BUILT_FOR: &str = env!("OPENVM_APC_CUDA_ARCH");

/// A GPU that can run this binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its index for the CUDA runtime.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Compute capability, for example 90.
    pub capability: u32,
    /// Bytes of device memory.
    pub memory: usize,
    /// Version of the driver's CUDA, for example 13000.
    pub driver_version: u32,
}

/// The current GPU, once it is known that the prover can use it. Ask this before anything of OpenVM's CUDA code:
/// that code ends the process where there is no GPU.
///
/// # Errors
/// [`GpuError::NoDevice`], [`GpuError::Unsupported`], or [`GpuError::ContextLost`] after a failure that this process does
/// not get over.
pub fn open_device() -> Result<GpuInfo, GpuError> {
    let no_device = |code: i32| GpuError::NoDevice {
        reason: CudaError::new(code).to_string(),
    };
    check_context()?;
    let mut count = 0;
    // SAFETY: `count` is a valid place for an int.
    let status = unsafe { ffi::cudaGetDeviceCount(&mut count) };
    if status != 0 {
        return Err(no_device(status));
    }
    if count == 0 {
        return Err(GpuError::NoDevice {
            reason: "the driver lists no device".to_string(),
        });
    }
    let ordinal = openvm_cuda_common::common::get_device().map_err(|source| GpuError::Runtime {
        call: "cudaGetDevice",
        source,
    })?;
    let capability = attribute(ordinal, ffi::DEVICE_ATTRIBUTE_CAPABILITY_MAJOR)? * 10
        + attribute(ordinal, ffi::DEVICE_ATTRIBUTE_CAPABILITY_MINOR)?;
    let name = device_name(ordinal)?;
    if !runs_on(BUILT_FOR, capability) {
        return Err(GpuError::Unsupported {
            name,
            capability,
            built_for: BUILT_FOR.to_string(),
        });
    }
    let mut driver_version = 0;
    // SAFETY: `driver_version` is a valid place for an int.
    let status = unsafe { ffi::cudaDriverGetVersion(&mut driver_version) };
    if status != 0 {
        return Err(no_device(status));
    }
    OPENED.store(true, Ordering::Relaxed);
    check_context()?;
    let (_, memory) = memory_info()?;
    Ok(GpuInfo {
        ordinal: ordinal as u32,
        name,
        capability,
        memory,
        driver_version: driver_version as u32,
    })
}

/// Whether this process has found a GPU to use.
static OPENED: AtomicBool = AtomicBool::new(false);

/// Waits for the GPU, asks it whether it can go on, and clears what an earlier call has left in the runtime's memory of
/// errors: OpenVM's and our launchers take whatever stands there for the failure of their kernel. Fine without a GPU, as long
/// as none was opened.
///
/// # Errors
/// [`GpuError::ContextLost`] if every further call will fail, which is how the runtime reports a kernel that went astray.
pub fn check_context() -> Result<(), GpuError> {
    if !OPENED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let first = device_synchronize();
    clear_last_error();
    if first.is_ok() {
        return Ok(());
    }
    // A lost context says so again and again.
    device_synchronize().map_err(|source| GpuError::ContextLost { source })
}

/// Makes the runtime forget the last error of this thread, which was reported by the call that failed.
pub(super) fn clear_last_error() {
    // SAFETY: takes no arguments and touches no memory of ours.
    unsafe { ffi::cudaGetLastError() };
}

/// Free and total bytes of the current device.
///
/// # Errors
/// [`GpuError::Runtime`].
pub fn memory_info() -> Result<(usize, usize), GpuError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are valid places for a size_t.
    let status = unsafe { ffi::cudaMemGetInfo(&mut free, &mut total) };
    CudaError::from_result(status).map_err(|source| GpuError::Runtime {
        call: "cudaMemGetInfo",
        source,
    })?;
    Ok((free, total))
}

/// What of the current device decides about a launch of the `terms` kernel, which counts in shared memory from
/// `private_from_additions` additions on.
///
/// # Errors
/// [`GpuError::Runtime`].
pub fn limits(private_from_additions: u64) -> Result<DeviceLimits, GpuError> {
    let ordinal = openvm_cuda_common::common::get_device().map_err(|source| GpuError::Runtime {
        call: "cudaGetDevice",
        source,
    })?;
    // SAFETY: takes a flag and touches no device.
    let warps = |shared| unsafe { ffi::_apc_apply_bus_terms_warps(shared) };
    Ok(DeviceLimits {
        multiprocessors: attribute(ordinal, ffi::DEVICE_ATTRIBUTE_MULTIPROCESSORS)?,
        shared_memory: attribute(ordinal, ffi::DEVICE_ATTRIBUTE_SHARED_MEMORY)? as usize,
        global_warps: warps(false),
        private_warps: warps(true),
        private_from_additions,
    })
}

fn attribute(ordinal: i32, attribute: i32) -> Result<u32, GpuError> {
    let mut value = 0;
    // SAFETY: `value` is a valid place for an int.
    let status = unsafe { ffi::cudaDeviceGetAttribute(&mut value, attribute, ordinal) };
    CudaError::from_result(status).map_err(|source| GpuError::Runtime {
        call: "cudaDeviceGetAttribute",
        source,
    })?;
    Ok(value as u32)
}

fn device_name(ordinal: i32) -> Result<String, GpuError> {
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the buffer is valid for its length, and the callee terminates what it writes.
    let status = unsafe { ffi::_device_name(ordinal, name.as_mut_ptr(), name.len()) };
    CudaError::from_result(status).map_err(|source| GpuError::Runtime {
        call: "cudaGetDeviceProperties",
        source,
    })?;
    // SAFETY: terminated by the callee.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }
        .to_string_lossy()
        .into_owned())
}

/// Whether code for the architectures `built_for` (machine code for each, PTX for the newest) runs on `capability`.
fn runs_on(built_for: &str, capability: u32) -> bool {
    let architectures: Vec<u32> = built_for
        .split(',')
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let machine_code = architectures
        .iter()
        .any(|&architecture| architecture / 10 == capability / 10 && architecture <= capability);
    let portable = architectures
        .iter()
        .max()
        .is_some_and(|&newest| newest <= capability);
    machine_code || portable
}

#[cfg(test)]
mod tests {
    use super::runs_on;

    #[test]
    fn machine_code_within_a_generation_and_portable_code_upwards() {
        assert!(runs_on("90", 90));
        assert!(runs_on("80", 89));
        assert!(runs_on("80,90", 120));
        assert!(!runs_on("90", 89));
        assert!(!runs_on("89,90", 80));
        assert!(!runs_on("80", 75));
    }
}
