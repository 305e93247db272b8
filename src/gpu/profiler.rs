//! `POWDR_NCU_BIG`: confines a profiler's capture to the launches of large programs.
//!
//! With the variable set, launches of programs of more than `POWDR_NCU_BIG_THRESHOLD` steps (default 1,000) lie between
//! `cudaProfilerStart` and `cudaProfilerStop`, so that `ncu --profile-from-start off` sees them alone. Unset, a launch
//! costs one load. `docs/profiling.md` shows the use.

use std::sync::OnceLock;

use super::ffi;

const DEFAULT_THRESHOLD: usize = 1000;

/// The threshold, if the variable is set.
fn threshold() -> Option<usize> {
    static THRESHOLD: OnceLock<Option<usize>> = OnceLock::new();
    *THRESHOLD.get_or_init(|| {
        std::env::var_os("POWDR_NCU_BIG")?;
        let named = std::env::var("POWDR_NCU_BIG_THRESHOLD").ok();
        Some(match named.as_deref().map(str::parse) {
            Some(Ok(threshold)) => threshold,
            Some(Err(_)) => {
                tracing::warn!(
                    "POWDR_NCU_BIG_THRESHOLD is not a number; using {DEFAULT_THRESHOLD}"
                );
                DEFAULT_THRESHOLD
            }
            None => DEFAULT_THRESHOLD,
        })
    })
}

/// A capture that ends when this is dropped.
pub struct Capture(());

impl Capture {
    /// Starts a capture if the variable is set and a program of `steps` (rules, or interactions) is large.
    pub fn of_large(steps: usize) -> Option<Self> {
        let threshold = threshold()?;
        (steps > threshold).then(|| {
            // SAFETY: takes no arguments. It fails only where no profiler is attached, which is no failure of ours.
            unsafe { ffi::cudaProfilerStart() };
            Self(())
        })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { ffi::cudaProfilerStop() };
    }
}
