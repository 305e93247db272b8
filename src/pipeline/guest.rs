//! Guests: shipped ones, ELF files, guest crates; their VM configuration and their input.

use std::path::{Path, PathBuf};

use openvm_sdk_config::SdkVmConfig;
use p3_field::PrimeCharacteristicRing;
use sha2::{Digest, Sha256};

use super::error::PipelineError;
use crate::bus::F;

/// A guest that comes with this crate.
struct ShippedGuest {
    name: &'static str,
    elf: &'static [u8],
}

const SHIPPED: [ShippedGuest; 1] = [ShippedGuest {
    name: "guest-keccak",
    elf: include_bytes!("../../guests/keccak/guest-keccak.elf"),
}];

/// File name of a guest crate's VM configuration, as in OpenVM's own tools.
const VM_CONFIG_FILE: &str = "openvm.toml";

/// A guest program, and the VM that it is for.
#[derive(Clone, Debug)]
pub struct Guest {
    /// What the user calls it.
    pub name: String,
    /// The ELF.
    pub elf: Vec<u8>,
    /// The VM's configuration, without APCs.
    pub vm_config: SdkVmConfig,
}

impl Guest {
    /// Finds a guest by the name of a shipped one, the path of an ELF, or the path of a guest crate.
    ///
    /// The VM is RV32IM with IO, unless an `openvm.toml` lies beside the ELF or in the crate.
    pub fn find(name: &str) -> Result<Self, PipelineError> {
        if let Some(shipped) = SHIPPED.iter().find(|shipped| shipped.name == name) {
            return Ok(Self {
                name: name.to_string(),
                elf: shipped.elf.to_vec(),
                vm_config: SdkVmConfig::riscv32(),
            });
        }
        let path = Path::new(name);
        if path.is_dir() {
            let elf = elf_of_crate(path)?;
            return Self::read(name, &elf, path);
        }
        // A path that looks like one gets the file system's own words.
        if path.exists() || path.components().count() > 1 || path.extension().is_some() {
            let directory = path.parent().unwrap_or(Path::new("."));
            return Self::read(name, path, directory);
        }
        Err(PipelineError::UnknownGuest {
            name: name.to_string(),
            shipped: SHIPPED.map(|shipped| shipped.name).join(", "),
        })
    }

    /// Names of the shipped guests.
    pub fn shipped() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|shipped| shipped.name)
    }

    fn read(name: &str, elf: &Path, directory: &Path) -> Result<Self, PipelineError> {
        let bytes = std::fs::read(elf).map_err(|source| PipelineError::Read {
            what: "the guest",
            path: elf.to_path_buf(),
            source,
        })?;
        Ok(Self {
            name: name.to_string(),
            elf: bytes,
            vm_config: vm_config(&directory.join(VM_CONFIG_FILE))?,
        })
    }

    /// SHA-256 of the ELF.
    pub fn digest(&self) -> String {
        hex::encode(Sha256::digest(&self.elf))
    }
}

/// The ELF of a guest crate: a built binary beside its manifest (as the shipped guests keep theirs), or under `target`.
fn elf_of_crate(path: &Path) -> Result<PathBuf, PipelineError> {
    let manifest = path.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).map_err(|source| PipelineError::Read {
        what: "the guest crate's manifest",
        path: manifest.clone(),
        source,
    })?;
    let name = text
        .parse::<toml::Table>()
        .ok()
        .and_then(|table| Some(table.get("package")?.get("name")?.as_str()?.to_string()))
        .ok_or_else(|| PipelineError::VmConfig {
            path: manifest,
            message: "it has no package.name".to_string(),
        })?;
    let built = path
        .join("target/riscv32im-risc0-zkvm-elf/release")
        .join(&name);
    [built.clone(), path.join(format!("{name}.elf"))]
        .into_iter()
        .find(|candidate| candidate.is_file())
        .ok_or(PipelineError::GuestNotBuilt {
            path: path.to_path_buf(),
            looked_for: built,
        })
}

fn vm_config(path: &Path) -> Result<SdkVmConfig, PipelineError> {
    match std::fs::read_to_string(path) {
        Ok(text) => SdkVmConfig::from_toml(&text).map_err(|error| PipelineError::VmConfig {
            path: path.to_path_buf(),
            message: error.to_string(),
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(SdkVmConfig::riscv32()),
        Err(source) => Err(PipelineError::Read {
            what: "the VM configuration",
            path: path.to_path_buf(),
            source,
        }),
    }
}

/// The guest's input: a vector of bytes per `openvm::io::read`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct GuestInput(Vec<Vec<u8>>);

impl GuestInput {
    /// No input.
    pub fn none() -> Self {
        Self::default()
    }

    /// One `u32`.
    pub fn u32(value: u32) -> Self {
        Self(vec![value.to_le_bytes().to_vec()])
    }

    /// `u32` if there is one.
    pub fn from_option(value: Option<u32>) -> Self {
        value.map_or_else(Self::none, Self::u32)
    }

    /// One more vector of bytes, for the next read.
    pub fn with_bytes(mut self, bytes: Vec<u8>) -> Self {
        self.0.push(bytes);
        self
    }

    /// Whether there is no input at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As the VM takes it: one field element per byte.
    pub fn to_streams(&self) -> Vec<Vec<F>> {
        self.0
            .iter()
            .map(|bytes| bytes.iter().map(|&byte| F::from_u8(byte)).collect())
            .collect()
    }
}
