//! A limit to the device memory that this process can get, OpenVM's own allocations included.
//!
//! All memory above the limit is held back in an allocation of our own, so that the driver itself refuses more. Whoever
//! else uses the GPU does not get that memory either: this is for trying out what a small card can do, on a large one that
//! nothing else uses. To leave room for others, lower the segment memory instead.

use std::{
    ffi::c_void,
    sync::{Mutex, MutexGuard, PoisonError},
};

use openvm_cuda_common::error::CudaError;

use super::{
    device::{clear_last_error, memory_info},
    error::GpuError,
    ffi,
    memory::pool_usage,
};

/// The most that a process's CUDA context takes: what is used beyond this when the limit is set belongs to others.
const CONTEXT: usize = 1 << 30;
/// Device memory comes in pages of this size.
const PAGE: usize = 2 << 20;

/// Keeps a limit for as long as it lives. With several, the lowest holds.
#[derive(Debug)]
pub struct DeviceMemoryLimit {
    bytes: usize,
}

/// The limits in force, and what is held back for the lowest.
struct Held {
    limits: Vec<usize>,
    ballast: Option<Ballast>,
}

static HELD: Mutex<Held> = Mutex::new(Held {
    limits: Vec::new(),
    ballast: None,
});

fn held() -> MutexGuard<'static, Held> {
    // A panic elsewhere leaves the list whole.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceMemoryLimit {
    /// From here on this process has at most `bytes` of the current device, the CUDA context and what it holds already
    /// included. A limit above what is free changes nothing.
    ///
    /// # Errors
    /// [`GpuError::Limit`] if this process holds more already, [`GpuError::Runtime`].
    pub fn new(bytes: usize) -> Result<Self, GpuError> {
        let mut held = held();
        held.limits.push(bytes);
        // Its destructor takes it off the list if it cannot be kept.
        let limit = Self { bytes };
        let result = held.adjust();
        drop(held);
        result.map(|()| limit)
    }

    /// The limit.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemoryLimit {
    fn drop(&mut self) {
        let mut held = held();
        if let Some(index) = held.limits.iter().position(|&limit| limit == self.bytes) {
            held.limits.swap_remove(index);
        }
        if let Err(error) = held.adjust() {
            tracing::warn!("{error}");
        }
    }
}

impl Held {
    /// Holds back what the lowest limit asks for.
    fn adjust(&mut self) -> Result<(), GpuError> {
        self.ballast = None;
        let Some(&limit) = self.limits.iter().min() else {
            return Ok(());
        };
        let (free, total) = memory_info()?;
        let pool = pool_usage().reserved as usize;
        let bytes = held_back(limit, free, total, pool)
            .map_err(|reason| GpuError::Limit { limit, reason })?;
        if bytes > 0 {
            self.ballast = Some(Ballast::new(bytes)?);
        }
        tracing::info!(
            "device memory limited to {} MiB: {} MiB held back",
            limit >> 20,
            bytes >> 20
        );
        Ok(())
    }
}

/// How much to hold back of a device with `free` of `total` bytes, if `pool` bytes of what is used are this process's.
fn held_back(limit: usize, free: usize, total: usize, pool: usize) -> Result<usize, String> {
    let context = total.saturating_sub(free).saturating_sub(pool).min(CONTEXT);
    let may_grow = limit.checked_sub(pool + context).ok_or_else(|| {
        format!(
            "this process has {} MiB already, of which it gives nothing back before it ends",
            (pool + context).div_ceil(1 << 20)
        )
    })?;
    Ok(free
        .saturating_sub(may_grow)
        .next_multiple_of(PAGE)
        .min(free))
}

/// Bytes of the device that are held back at present.
pub fn held_back_bytes() -> usize {
    held().ballast.as_ref().map_or(0, |ballast| ballast.bytes)
}

/// Device memory that nobody uses.
struct Ballast {
    pointer: *mut c_void,
    bytes: usize,
}

// SAFETY: device memory belongs to the process, not to a thread.
unsafe impl Send for Ballast {}

impl Ballast {
    fn new(bytes: usize) -> Result<Self, GpuError> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: `pointer` is a valid place for a pointer.
        let status = unsafe { ffi::cudaMalloc(&mut pointer, bytes) };
        CudaError::from_result(status).map_err(|source| {
            clear_last_error();
            GpuError::Runtime {
                call: "cudaMalloc for the memory above the limit",
                source,
            }
        })?;
        Ok(Self { pointer, bytes })
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        // SAFETY: the pointer came from cudaMalloc and is not used again. A failure, after the context is lost, leaves
        // nothing that anybody could use.
        unsafe { ffi::cudaFree(self.pointer) };
    }
}

#[cfg(test)]
mod tests {
    use super::held_back;

    const GIB: usize = 1 << 30;

    #[test]
    fn all_above_the_limit_is_held_back() {
        // Alone on the device, 512 MiB of it for the context.
        let free = 140 * GIB - GIB / 2;
        assert_eq!(held_back(16 * GIB, free, 140 * GIB, 0), Ok(124 * GIB));
        // With 4 GiB in the pool, which counts.
        assert_eq!(
            held_back(16 * GIB, free - 4 * GIB, 140 * GIB, 4 * GIB),
            Ok(124 * GIB)
        );
        // Others have 100 GiB: theirs does not count as ours.
        assert_eq!(
            held_back(16 * GIB, 40 * GIB, 140 * GIB, 0),
            Ok(40 * GIB - 15 * GIB)
        );
        // A limit that the device cannot reach.
        assert_eq!(held_back(200 * GIB, free, 140 * GIB, 0), Ok(0));
        // Held already.
        assert!(held_back(2 * GIB, free - 4 * GIB, 140 * GIB, 4 * GIB).is_err());
        assert!(held_back(GIB / 4, free, 140 * GIB, 0).is_err());
    }
}
