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

/// What a kernel may use, by a part of its name. The name of a kernel in an unnamed namespace has its file's name in it.
struct Budget {
    kernel: &'static str,
    stack_frame_bytes: Option<u64>,
}

/// No kernel may spill. The `dag` and `terms` kernels may not use any thread-local memory: a frame there cost the seed its
/// gain. Each of these budgets has to be some kernel's, lest one that is renamed is no longer checked.
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

    let compiled: Vec<(PathBuf, Vec<String>)> = thread::scope(|scope| {
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
                Ok(compiled) => compiled,
                Err(_) => fail("the compilation of a kernel ended unexpectedly"),
            })
            .collect()
    });
    let kernels: Vec<&String> = compiled.iter().flat_map(|(_, kernels)| kernels).collect();
    for Budget { kernel, .. } in &BUDGETS {
        if !kernels.iter().any(|name| name.contains(kernel)) {
            fail(&format!(
                "no kernel is called …{kernel}…, so its budget was not checked: see BUDGETS in build/cuda.rs"
            ));
        }
    }
    cc::Build::new()
        .objects(compiled.iter().map(|(object, _)| object))
        .compile("openvm_apc_kernels");
    link_driver_loader(&out);
}

/// Compiles one source and returns the object's path and the kernels in it.
fn compile(
    nvcc: &Path,
    source: &Path,
    architectures: &[String],
    includes: &[PathBuf],
    out: &Path,
) -> (PathBuf, Vec<String>) {
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
    let kernels = check_resources(source, &report, architectures.len());
    (object, kernels)
}

/// Reads the report of `ptxas -v`, refuses kernels that spill or exceed their [`Budget`], and returns the names of all. What
/// it says of functions that were not inlined follows their kernel, and counts as the kernel's.
fn check_resources(source: &Path, report: &str, architectures: usize) -> Vec<String> {
    let place = source.display();
    let mut kernels: Vec<String> = Vec::new();
    // How many of them were followed by numbers.
    let mut measured = 0;
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernels.push(rest.split('\'').next().unwrap_or(rest).to_string());
        }
        let Some((frame, rest)) = line.trim().split_once(" bytes stack frame, ") else {
            continue;
        };
        if !rest.split(',').all(|part| part.contains(" bytes spill ")) {
            continue;
        }
        let kernel = kernels.last().map_or("", String::as_str);
        let frame = number(frame);
        let spills: u64 = rest.split(',').map(|part| number(part.trim())).sum();
        if spills > 0 {
            fail(&format!(
                "{place}: kernel {kernel} spills {spills} bytes of registers"
            ));
        }
        for budget in &BUDGETS {
            let limit = budget.stack_frame_bytes.unwrap_or(u64::MAX);
            if kernel.contains(budget.kernel) && frame > limit {
                fail(&format!(
                    "{place}: kernel {kernel} has a stack frame of {frame} bytes, more than {limit}"
                ));
            }
        }
        // Each once, whatever else was measured with it, and only if the one before was.
        if kernels.len() == measured + 1 {
            measured += 1;
        }
    }
    // Every kernel is at least one instance of a definition.
    let text = fs::read_to_string(source)
        .unwrap_or_else(|error| fail(&format!("{place} cannot be read: {error}")));
    let defined = text
        .lines()
        .filter_map(|line| line.split("//").next())
        .filter(|code| code.contains("__global__"))
        .count();
    if kernels.len() < defined * architectures || measured < kernels.len() {
        fail(&format!(
            "{place}: of {defined} kernel(s) for {architectures} architecture(s) ptxas reported {} and measured {measured}; \
             its format may have changed (CUDA 13.0 is known to work):\n{report}",
            kernels.len()
        ));
    }
    kernels
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
                // Without a driver, nvidia-smi says so here.
                .filter(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()))
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
