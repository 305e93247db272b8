//! The prover backend's rules module, without the prover backend.
//!
//! `openvm-cuda-backend` keeps its rules (the evaluation schedule of a symbolic dag, and its encoding) private, and does
//! not build without nvcc. So the module's sources are taken from the resolved package, the output-slot patch is applied,
//! and the result is included by `src/bus/dag/rules.rs`. One source of truth, nothing vendored.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::exit,
};

use cargo_metadata::{CargoOpt, Metadata, MetadataCommand};

const PACKAGE: &str = "openvm-cuda-backend";
const RULES: &str = "src/logup_zerocheck/rules";
const PATCH: &str = "patches/0002-hold-output-slots.patch";

/// Writes `rules/mod.rs` and `rules/codec.rs` to `OUT_DIR`, or ends the build with a message.
pub fn build() {
    println!("cargo:rerun-if-changed={PATCH}");
    println!("cargo:rerun-if-changed=Cargo.lock");
    if let Err(message) = write_rules() {
        eprintln!("error: {message}");
        exit(1);
    }
}

fn write_rules() -> Result<(), String> {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let metadata = metadata(&manifest)?;
    let package = find_package(&metadata, PACKAGE)?;
    // For the tests, which read the published sources and the machines that powdr-autoprecompiles carries.
    for (variable, name) in [
        ("OPENVM_CUDA_BACKEND_PACKAGE", PACKAGE),
        ("POWDR_AUTOPRECOMPILES_PACKAGE", "powdr-autoprecompiles"),
    ] {
        let folder = find_package(&metadata, name)?;
        println!("cargo:rustc-env={variable}={}", folder.display());
    }
    let rules = package.join(RULES);
    println!("cargo:rerun-if-changed={}", rules.display());
    let module = read(&rules.join("mod.rs"))?;
    let codec = read(&rules.join("codec.rs"))?;
    let patch = read(&manifest.join(PATCH))?;
    let patched = diffy::Patch::from_str(strip_git_header(&patch))
        .map_err(|error| format!("{PATCH} is no unified diff: {error}"))
        .and_then(|patch| {
            diffy::apply(&module, &patch).map_err(|error| {
                format!(
                    "{PATCH} does not fit the {PACKAGE} package at {} ({error}).\n\
                     It is made for version 2.0.1: pin that version in Cargo.lock \
                     (`cargo update -p {PACKAGE} --precise 2.0.1`), or adapt the patch to the new source.",
                    package.display()
                )
            })
        })?;
    let out = PathBuf::from(variable("OUT_DIR")?).join("rules");
    let write = |name: &str, text: &str| {
        fs::create_dir_all(&out)
            .and_then(|()| fs::write(out.join(name), text))
            .map_err(|error| format!("{} cannot be written: {error}", out.join(name).display()))
    };
    write("mod.rs", &patched)?;
    write("codec.rs", &codec)
}

/// The resolved packages. The backend is an optional dependency, which cargo resolves (and, asked for metadata, downloads)
/// without building it.
fn metadata(manifest: &Path) -> Result<Metadata, String> {
    let metadata = |options: &[&str]| {
        MetadataCommand::new()
            .manifest_path(manifest.join("Cargo.toml"))
            .features(CargoOpt::AllFeatures)
            .other_options(
                options
                    .iter()
                    .map(|option| option.to_string())
                    .collect::<Vec<_>>(),
            )
            .exec()
    };
    // Offline first: it is quicker, and the packages are there after the first build.
    metadata(&["--offline"])
        .or_else(|_| metadata(&[]))
        .map_err(|error| format!("cargo metadata failed, so {PACKAGE} cannot be found: {error}"))
}

/// The folder of a resolved package.
fn find_package(metadata: &Metadata, name: &str) -> Result<PathBuf, String> {
    metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == name)
        .and_then(|package| package.manifest_path.parent())
        .map(|folder| folder.as_std_path().to_path_buf())
        .ok_or_else(|| format!("{name} is not among the resolved packages: keep it a dependency"))
}

/// `diffy` reads unified diffs; git's own header lines come before them.
fn strip_git_header(patch: &str) -> &str {
    patch.find("--- ").map_or(patch, |start| &patch[start..])
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("cargo did not set {name}"))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}
