//! Declarations of our kernels' launchers (`cuda/src`) and of the runtime calls that openvm-cuda-common does not offer.

use std::ffi::{c_char, c_int, c_void};

use openvm_cuda_common::stream::{cudaEvent_t, cudaStream_t};

use super::structs::{
    BusTrace, DerivedColumn, OriginalCell, OriginalTrace, PeripheryCounts, Substitution,
    TermsProgram,
};
use crate::bus::{terms::launch::Launch, F};

/// `cudaDevAttrComputeCapabilityMajor` of driver_types.h.
pub const DEVICE_ATTRIBUTE_CAPABILITY_MAJOR: c_int = 75;
/// `cudaDevAttrComputeCapabilityMinor` of driver_types.h.
pub const DEVICE_ATTRIBUTE_CAPABILITY_MINOR: c_int = 76;
/// `cudaDevAttrMultiProcessorCount` of driver_types.h.
pub const DEVICE_ATTRIBUTE_MULTIPROCESSORS: c_int = 16;
/// `cudaDevAttrMaxSharedMemoryPerBlockOptin` of driver_types.h.
pub const DEVICE_ATTRIBUTE_SHARED_MEMORY: c_int = 97;

// SAFETY: the declarations repeat those of `cuda/src`, whose structures are pinned to the host's on both sides. All return a
// `cudaError_t`, unless they say otherwise, enqueue on `stream`, and do not wait.
extern "C" {
    /// Copies the substituted columns: `cuda/src/apc_tracegen.cu`.
    pub fn _apc_tracegen(
        apc_trace: *mut F,
        height: u64,
        calls: u64,
        original_traces: *const OriginalTrace,
        substitutions: *const Substitution,
        substitution_count: u32,
        stream: cudaStream_t,
    ) -> c_int;

    /// Computes the derived columns: `cuda/src/derived.cu`.
    pub fn _apc_derived(
        apc_trace: *mut F,
        height: u64,
        calls: u64,
        original_traces: *const OriginalTrace,
        cells: *const OriginalCell,
        code: *const u32,
        columns: *const DerivedColumn,
        column_count: u32,
        stream: cudaStream_t,
    ) -> c_int;

    /// The kernel `vm`: `cuda/src/apc_apply_bus_vm.cu`.
    pub fn _apc_apply_bus_vm(
        trace: BusTrace,
        code: *const u32,
        interactions: *const c_void,
        interaction_count: u32,
        counts: PeripheryCounts,
        stream: cudaStream_t,
    ) -> c_int;

    /// The kernel `dag`, with `threads` threads and as many times the program's slots of intermediates:
    /// `cuda/src/apc_apply_bus_dag.cu`.
    pub fn _apc_apply_bus_dag(
        trace: BusTrace,
        rules: *const c_void,
        interactions: *const c_void,
        interaction_count: u32,
        intermediates: *mut F,
        threads: u64,
        counts: PeripheryCounts,
        stream: cudaStream_t,
    ) -> c_int;

    /// Threads of a block of the kernel `dag`. Touches no device.
    pub fn _apc_apply_bus_dag_block() -> u32;

    /// The kernel `terms`: `cuda/src/apc_apply_bus_terms.cu`.
    pub fn _apc_apply_bus_terms(
        trace: BusTrace,
        program: TermsProgram,
        launch: Launch,
        counts: PeripheryCounts,
        stream: cudaStream_t,
    ) -> c_int;

    /// Has the driver load the kernels of `terms`. Enqueues nothing.
    pub fn _apc_apply_bus_terms_load() -> c_int;

    /// Warps of a block of `terms`. Touches no device.
    pub fn _apc_apply_bus_terms_warps(counts_in_shared_memory: bool) -> u32;

    /// Reads the columns once: `cuda/src/column_read_floor.cu`.
    pub fn _column_read_floor(
        trace: BusTrace,
        columns: *const u32,
        column_count: u32,
        sink: *mut u32,
        stream: cudaStream_t,
    ) -> c_int;

    /// Writes a device's name, zero-terminated, into `capacity` bytes. Enqueues nothing.
    pub fn _device_name(ordinal: c_int, name: *mut c_char, capacity: usize) -> c_int;
}

// SAFETY: the declarations are those of cuda_runtime_api.h and cuda_profiler_api.h of CUDA 13.0.
#[allow(missing_docs)]
extern "C" {
    pub fn cudaGetDeviceCount(count: *mut c_int) -> c_int;
    pub fn cudaDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int;
    pub fn cudaDriverGetVersion(version: *mut c_int) -> c_int;
    pub fn cudaGetLastError() -> c_int;
    pub fn cudaMalloc(pointer: *mut *mut c_void, size: usize) -> c_int;
    pub fn cudaFree(pointer: *mut c_void) -> c_int;
    pub fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> c_int;
    pub fn cudaProfilerStart() -> c_int;
    pub fn cudaProfilerStop() -> c_int;
    pub fn cudaEventCreate(event: *mut cudaEvent_t) -> c_int;
    pub fn cudaEventDestroy(event: cudaEvent_t) -> c_int;
    pub fn cudaEventRecord(event: cudaEvent_t, stream: cudaStream_t) -> c_int;
    pub fn cudaEventSynchronize(event: cudaEvent_t) -> c_int;
    pub fn cudaEventElapsedTime(
        milliseconds: *mut f32,
        start: cudaEvent_t,
        end: cudaEvent_t,
    ) -> c_int;
}
