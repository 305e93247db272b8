//! Compiles our CUDA kernels (feature `cuda`), checks what ptxas says about them, and arranges for the binary to start
//! without a driver.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{exit, Command},
    thread,
};

use cargo_metadata::{CargoOpt, MetadataCommand};

/// Our kernels, one translation unit each.
const SOURCES: &str = "cuda/src";
/// Our device headers.
const HEADERS: &str = "cuda/include";
/// What makes the binary start on a machine without a driver.
const DRIVER_LOADER: &str = "cuda/host/driver_loader.c";
/// Runtime calls that the driver loader stands in front of: those of openvm-cuda-common's constructor, and those of its
/// destructors.
const WRAPPED: [&str; 7] = [
    "cudaGetDevice",
    "cudaSetDevice",
    "cudaFree",
    "cudaFreeAsync",
    "cudaEventCreate",
    "cudaEventRecord",
    "cudaEventSynchronize",
];
/// The architecture to build for where neither `CUDA_ARCH` nor a GPU says otherwise (Hopper).
const DEFAULT_ARCHITECTURE: &str = "90";

/// What a kernel may use, by a part of its name.
struct Budget {
    kernel: &'static str,
    stack_frame_bytes: Option<u64>,
}

/// No kernel may spill. The `dag` and `terms` kernels may not use any thread-local memory: a frame there cost the seed its
/// gain.
const BUDGETS: [Budget; 2] = [
    Budget {
        kernel: "apc_apply_bus_dag",
        stack_frame_bytes: Some(0),
    },
    Budget {
        kernel: "apc_apply_bus_terms",
        stack_frame_bytes: Some(0),
    },
];

/// Builds everything and tells cargo how to link it. Ends the build with a message if that is impossible.
pub fn build() {
    for input in [SOURCES, HEADERS, DRIVER_LOADER] {
        println!("cargo:rerun-if-changed={input}");
    }
    for variable in ["CUDA_ARCH", "CUDA_PATH", "PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let nvcc = find_nvcc().unwrap_or_else(|| {
        fail(
            "feature `cuda` needs nvcc, which is neither in CUDA_PATH/bin, nor on PATH, nor in .cuda/. \
             `scripts/setup-cuda.sh` installs it from PyPI wheels; then build with \
             `scripts/cuda-cargo build --release --features cuda`",
        )
    });
    let architectures = architectures();
    println!(
        "cargo:rustc-env=OPENVM_APC_CUDA_ARCH={}",
        architectures.join(",")
    );
    let includes = [
        PathBuf::from(HEADERS),
        exported_include("DEP_CUDA_COMMON_INCLUDE"),
        exported_include("DEP_CIRCUIT_PRIMITIVES_CUDA_INCLUDE"),
        backend_include(),
    ];
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    let objects: Vec<PathBuf> = thread::scope(|scope| {
        let compilations: Vec<_> = sources()
            .into_iter()
            .map(|source| {
                let (nvcc, architectures, includes, out) = (&nvcc, &architectures, &includes, &out);
                scope.spawn(move || compile(nvcc, &source, architectures, includes, out))
            })
            .collect();
        compilations
            .into_iter()
            .map(|compilation| match compilation.join() {
                Ok(object) => object,
                Err(_) => fail("the compilation of a kernel ended unexpectedly"),
            })
            .collect()
    });
    cc::Build::new()
        .objects(&objects)
        .compile("openvm_apc_kernels");
    link_driver_loader(&out);
}

/// Compiles one source and returns the object's path.
fn compile(
    nvcc: &Path,
    source: &Path,
    architectures: &[String],
    includes: &[PathBuf],
    out: &Path,
) -> PathBuf {
    let object = out
        .join(
            source
                .file_name()
                .expect("sources() gives files, which have names"),
        )
        .with_extension("o");
    let mut command = Command::new(nvcc);
    command.args([
        "-std=c++17",
        "--expt-relaxed-constexpr",
        "-O3",
        "-lineinfo",
        "-Xptxas=-v",
        "-Xcompiler=-fPIC",
        "--Werror=all-warnings",
        "-Xfatbin=-compress-all",
    ]);
    for include in includes {
        command.arg("-I").arg(include);
    }
    for architecture in architectures {
        command.arg("-gencode").arg(format!(
            "arch=compute_{architecture},code=sm_{architecture}"
        ));
    }
    // For GPUs newer than any named: the driver compiles this at start.
    if let Some(newest) = architectures.iter().max_by_key(|name| number(name)) {
        command
            .arg("-gencode")
            .arg(format!("arch=compute_{newest},code=compute_{newest}"));
    }
    let output = command
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .output()
        .unwrap_or_else(|error| fail(&format!("{} does not run: {error}", nvcc.display())));
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        eprintln!("{report}");
        fail(&format!("nvcc failed on {}", source.display()));
    }
    check_resources(source, &report);
    object
}

/// Reads the report of `ptxas -v` and refuses kernels that spill or exceed their [`Budget`].
fn check_resources(source: &Path, report: &str) {
    let mut kernel = "";
    let mut checked = 0;
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("Function properties for ") {
            kernel = rest.trim();
        }
        let Some((frame, rest)) = line.trim().split_once(" bytes stack frame, ") else {
            continue;
        };
        let frame = number(frame);
        let spills: u64 = rest.split(',').map(|part| number(part.trim())).sum();
        if spills > 0 {
            fail(&format!(
                "{}: kernel {kernel} spills {spills} bytes of registers",
                source.display()
            ));
        }
        for budget in &BUDGETS {
            let limit = budget.stack_frame_bytes.unwrap_or(u64::MAX);
            if kernel.contains(budget.kernel) && frame > limit {
                fail(&format!(
                    "{}: kernel {kernel} has a stack frame of {frame} bytes, more than {limit}",
                    source.display()
                ));
            }
        }
        checked += 1;
    }
    let has_kernels = fs::read_to_string(source).is_ok_and(|text| text.contains("__global__"));
    if has_kernels && checked == 0 {
        fail(&format!(
            "{}: ptxas reported no kernel; its format may have changed (CUDA 13.0 is known to work):\n{report}",
            source.display()
        ));
    }
}

/// The number that a text starts with, or 0.
fn number(text: &str) -> u64 {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// All kernel sources, in a fixed order.
fn sources() -> Vec<PathBuf> {
    let entries = fs::read_dir(SOURCES)
        .unwrap_or_else(|error| fail(&format!("{SOURCES} cannot be read: {error}")));
    let mut sources: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    sources.sort();
    sources
}

/// nvcc of `CUDA_PATH`, of `PATH`, or of the wheels in `.cuda/`.
fn find_nvcc() -> Option<PathBuf> {
    let named = env::var_os("CUDA_PATH").map(|folder| PathBuf::from(folder).join("bin/nvcc"));
    let search: OsString = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&search).map(|folder| folder.join("nvcc"));
    let wheels = PathBuf::from(".cuda/site/nvidia/cu13/bin/nvcc");
    named
        .into_iter()
        .chain(on_path)
        .chain([wheels])
        .find(|candidate| candidate.is_file())
}

/// `CUDA_ARCH` (for example `80,90`), else the GPU found, else [`DEFAULT_ARCHITECTURE`].
fn architectures() -> Vec<String> {
    let named: Vec<String> = env::var("CUDA_ARCH")
        .unwrap_or_default()
        .split(',')
        .map(|name| name.trim().to_string())
        .filter(|name| !name.is_empty())
        .collect();
    if !named.is_empty() {
        return named;
    }
    let found = Command::new("nvidia-smi")
        .args(["--query-gpu=compute_cap", "--format=csv,noheader"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.lines()
                .next()
                .map(|line| line.trim().replace('.', ""))
                .filter(|name| !name.is_empty())
        });
    vec![found.unwrap_or_else(|| DEFAULT_ARCHITECTURE.to_string())]
}

/// The include folder that a dependency's build script exports.
fn exported_include(variable: &str) -> PathBuf {
    env::var_os(variable).map(PathBuf::from).unwrap_or_else(|| {
        fail(&format!(
            "{variable} is not set: a dependency was built without nvcc. Build with `scripts/cuda-cargo`, after \
             `cargo clean -p openvm-circuit-primitives -p openvm-cuda-common`"
        ))
    })
}

/// The include folder of the resolved openvm-cuda-backend, which does not export it.
fn backend_include() -> PathBuf {
    let metadata = MetadataCommand::new()
        .features(CargoOpt::AllFeatures)
        .exec()
        .unwrap_or_else(|error| fail(&format!("cargo metadata failed: {error}")));
    let package = metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == "openvm-cuda-backend")
        .unwrap_or_else(|| fail("openvm-cuda-backend is not among the resolved packages"));
    let include = package
        .manifest_path
        .parent()
        .map(|folder| folder.join("cuda/include").into_std_path_buf())
        .filter(|folder| folder.join("codec.cuh").is_file());
    include.unwrap_or_else(|| {
        fail(&format!(
            "openvm-cuda-backend {} has no cuda/include/codec.cuh: the `dag` kernel needs 2.0.1's layout",
            package.version
        ))
    })
}

/// Compiles the driver loader and links it, as an object, into every executable of this package.
fn link_driver_loader(out: &Path) {
    let objects = cc::Build::new()
        .file(DRIVER_LOADER)
        .warnings(true)
        .cargo_metadata(false)
        .out_dir(out)
        .compile_intermediates();
    for object in objects {
        println!("cargo:rustc-link-arg={}", object.display());
    }
    for function in WRAPPED {
        println!("cargo:rustc-link-arg=-Wl,--wrap={function}");
    }
}

/// Ends the build with a message.
fn fail(message: &str) -> ! {
    println!("cargo:warning={}", message.replace('\n', " "));
    eprintln!("error: {message}");
    exit(1)
}
