//! What a measurement was made with: device, driver, and the commit of the binary.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::device::{GpuInfo, BUILT_FOR};

/// Where Linux tells the version of the NVIDIA kernel module.
const DRIVER_VERSION_FILE: &str = "/proc/driver/nvidia/version";

/// What a measurement was made with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Provenance {
    /// Name of the GPU.
    pub device: String,
    /// Its compute capability, for example 90.
    pub capability: u32,
    /// Version of the CUDA that the driver speaks, for example 13000.
    pub driver_version: u32,
    /// Version of the driver itself, for example 580.159.04; `None` where the system does not tell.
    pub driver: Option<String>,
    /// The architectures that the binary has code for.
    pub built_for: &'static str,
    /// Version of this package.
    pub version: &'static str,
    /// The commit of the binary, with `-dirty` if it was built with further changes; `unknown` if it was not built from
    /// a git repository by `scripts/cuda-cargo`.
    pub commit: &'static str,
}

impl Provenance {
    /// Of measurements on the device `info`; `commit` is [`commit!`](crate::commit) of the binary that measures.
    pub fn new(info: &GpuInfo, commit: &'static str) -> Self {
        Self {
            device: info.name.clone(),
            capability: info.capability,
            driver_version: info.driver_version,
            driver: std::fs::read_to_string(DRIVER_VERSION_FILE)
                .ok()
                .and_then(|text| driver_version(&text)),
            built_for: BUILT_FOR,
            version: env!("CARGO_PKG_VERSION"),
            commit,
        }
    }
}

impl Display for Provenance {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (sm_{}), driver {}, CUDA {}.{}; commit {}",
            self.device,
            self.capability,
            self.driver.as_deref().unwrap_or("unknown"),
            self.driver_version / 1000,
            self.driver_version % 1000 / 10,
            self.commit
        )
    }
}

/// The version in the text of [`DRIVER_VERSION_FILE`]: the first word of its first line that is numbers with dots.
fn driver_version(text: &str) -> Option<String> {
    text.lines()
        .next()?
        .split_whitespace()
        .find(|word| {
            word.contains('.')
                && word
                    .split('.')
                    .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::driver_version;

    #[test]
    fn the_driver_version_is_found_in_both_kinds_of_module() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@x)\n\
                    GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
        assert_eq!(driver_version(open).as_deref(), Some("580.159.04"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54  Tue Jun  6 22:20:39 UTC 2023\n";
        assert_eq!(driver_version(closed).as_deref(), Some("535.54"));
        assert_eq!(
            driver_version("NVRM version: none\nGCC version: 12.2.0"),
            None
        );
        assert_eq!(driver_version(""), None);
    }
}
