//! Panics of the prover as typed errors.
//!
//! OpenVM's chips and its GPU prover have no way to return most failures: they panic where device memory runs out or a CUDA
//! call fails. [`catch`] runs a stage and turns what it panicked with into a [`Fault`] that says where, what, how large and
//! what to lower. Whoever panicked deep in OpenVM is only known while the stack still stands, so that `catch` installs, once
//! a process, a panic hook in front of the present one. The hook concerns itself with the panics of threads that are inside
//! `catch` and leaves all others to the hook that was there.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    fmt,
    panic::{catch_unwind, AssertUnwindSafe, PanicHookInfo},
    sync::Once,
};

use thiserror::Error;

use crate::{apc::panic_message, trace::TraceError, units::size};

/// What the prover was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Setting up the VM: keys, chips.
    SetUp,
    /// Committing to the program.
    Program,
    /// Bringing a segment's initial memory to the device and executing it.
    Execution {
        /// The segment.
        segment: usize,
    },
    /// Generating the traces of a segment.
    Traces {
        /// The segment.
        segment: usize,
    },
    /// Proving a segment.
    Proof {
        /// The segment.
        segment: usize,
    },
}

impl fmt::Display for Stage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::SetUp => formatter.write_str("setting up the VM"),
            Stage::Program => formatter.write_str("committing to the program"),
            Stage::Execution { segment } => write!(formatter, "executing segment {segment}"),
            Stage::Traces { segment } => {
                write!(formatter, "generating traces of segment {segment}")
            }
            Stage::Proof { segment } => write!(formatter, "proving segment {segment}"),
        }
    }
}

/// A stage of the prover failed.
#[derive(Debug, Error)]
#[error("{stage}: {cause}{}", advice(.stage, .cause))]
pub struct Fault {
    /// What the prover was doing.
    pub stage: Stage,
    /// What went wrong.
    #[source]
    pub cause: Cause,
}

/// Why a stage of the prover failed.
#[derive(Debug, Error)]
pub enum Cause {
    /// A chip of ours said why.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// An allocation of OpenVM's failed.
    #[error("out of device memory: {buffer} needs {size}{memory}")]
    OutOfDeviceMemory {
        /// What the memory was for: the function that asked for it (the place of the panic if the executable is stripped).
        buffer: String,
        /// How much was asked for.
        size: Size,
        /// The state of the device's memory then.
        memory: Memory,
    },
    /// The GPU's context is lost.
    #[error(
        "{what}. With that the CUDA context is lost: this process cannot use the GPU any more, start a new one. \
         CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer finds the kernel to blame"
    )]
    ContextLost {
        /// The failure that was seen first.
        what: String,
    },
    /// A call of the CUDA runtime failed; later ones may succeed.
    #[error("a CUDA call failed{place}: {message} ({name}, code {code})")]
    Cuda {
        /// Where.
        place: Place,
        /// The runtime's number for it.
        code: i32,
        /// The runtime's name for it.
        name: String,
        /// The runtime's words for it.
        message: String,
    },
    /// Anything else.
    #[error("{message}{place}")]
    Other {
        /// What was said.
        message: String,
        /// Where.
        place: Place,
    },
}

/// What to do about a lack of memory.
fn advice(stage: &Stage, cause: &Cause) -> &'static str {
    match (cause, stage) {
        (Cause::OutOfDeviceMemory { .. }, Stage::Traces { .. } | Stage::Proof { .. }) => {
            ". Lower --segment-memory (more, smaller segments) or --bus-scratch, raise --device-memory if it is given, \
             or close other programs on the GPU"
        }
        (Cause::OutOfDeviceMemory { .. }, Stage::Execution { .. }) => {
            ". This is for the image of the guest's memory, the same in every segment: raise --device-memory if it is \
             given, close other programs on the GPU, or use a larger one"
        }
        (Cause::OutOfDeviceMemory { .. }, Stage::SetUp | Stage::Program) => {
            ". This does not depend on segments: raise --device-memory if it is given, close other programs on the GPU, \
             or use a larger one"
        }
        _ => "",
    }
}

/// How much memory was asked for, as far as the allocator tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// So many bytes more than the allocator's pool had free.
    BeyondPool(u64),
    /// Less than a page of the pool, 2 MiB.
    Small,
    /// What the driver needs to run a kernel.
    Kernel,
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Bytes(bytes) => formatter.write_str(&size(*bytes)),
            Size::BeyondPool(bytes) => write!(
                formatter,
                "{} more than the memory pool has free",
                size(*bytes)
            ),
            Size::Small => formatter.write_str("less than 2 MiB"),
            Size::Kernel => formatter.write_str("room for a kernel's code or stack, a few MiB"),
        }
    }
}

/// The state of a device's memory, if it could be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory(pub Option<DeviceMemory>);

/// The state of a device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Free, as the driver sees it.
    pub free: u64,
    /// All of it.
    pub total: u64,
    /// Held by OpenVM's pool.
    pub pool: u64,
    /// Allocated, of the pool and beside it.
    pub allocated: u64,
}

impl fmt::Display for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(memory) = &self.0 else {
            return Ok(());
        };
        write!(
            formatter,
            "; {} of the GPU's {} MiB are free, this process has allocated {} MiB",
            memory.free >> 20,
            memory.total >> 20,
            memory.allocated >> 20
        )
    }
}

/// Where something failed, as far as it is known: the function that called into OpenVM's CUDA code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place(pub Option<String>);

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(place) => write!(formatter, " (in {place})"),
            None => Ok(()),
        }
    }
}

impl Fault {
    /// The GPU's context is lost: nothing on the GPU will work in this process any more.
    pub fn is_context_lost(&self) -> bool {
        matches!(self.cause, Cause::ContextLost { .. })
    }

    /// Device memory ran out: with smaller segments, or less else on the device, the same may work.
    pub fn is_out_of_memory(&self) -> bool {
        match &self.cause {
            Cause::OutOfDeviceMemory { .. } => true,
            #[cfg(feature = "cuda")]
            Cause::Trace(TraceError::Gpu(crate::gpu::GpuError::OutOfMemory { .. })) => true,
            _ => false,
        }
    }

    /// An error that the prover returned, in its own words.
    pub(super) fn of_error(stage: Stage, error: &dyn fmt::Debug) -> Self {
        Self {
            stage,
            cause: classify(&format!("{error:?}"), &Seen::default()),
        }
        .confirmed()
    }

    fn of_panic(stage: Stage, payload: Box<dyn Any + Send>, seen: &Seen) -> Self {
        let cause = match payload.downcast::<TraceError>() {
            Ok(error) => of_trace_error(*error),
            Err(payload) => classify(&panic_message(&*payload), seen),
        };
        Self { stage, cause }.confirmed()
    }

    /// Asks the GPU whether it can go on: not every failure says that it was the last.
    #[cfg(feature = "cuda")]
    fn confirmed(mut self) -> Self {
        if let Err(lost) = crate::gpu::device::check_context() {
            if !self.is_context_lost() {
                let what = match &self.cause {
                    Cause::Other { message, .. } => format!("{lost} ({message})"),
                    cause => format!("{lost} ({cause})"),
                };
                self.cause = Cause::ContextLost { what };
            }
        }
        self
    }

    #[cfg(not(feature = "cuda"))]
    fn confirmed(self) -> Self {
        self
    }
}

/// A typed error of our own chips.
fn of_trace_error(error: TraceError) -> Cause {
    #[cfg(feature = "cuda")]
    if let TraceError::Gpu(gpu) = &error {
        use crate::gpu::GpuError;

        if gpu.code().is_some_and(is_sticky) {
            return Cause::ContextLost {
                what: gpu.to_string(),
            };
        }
        match gpu {
            GpuError::Launch {
                kernel,
                apc,
                source,
            } if source.is_out_of_memory() => {
                return Cause::OutOfDeviceMemory {
                    buffer: format!("kernel {kernel} of {apc}"),
                    size: Size::Kernel,
                    memory: Memory(device_memory()),
                }
            }
            _ => {}
        }
    }
    Cause::Trace(error)
}

/// What the panic hook saw while the stack still stood.
#[derive(Clone, Debug, Default)]
struct Seen {
    place: Option<String>,
    memory: Option<DeviceMemory>,
}

thread_local! {
    /// How many `catch` this thread is inside of.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static SEEN: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Runs `work`. A panic of this thread becomes a [`Fault`] of `stage`, and prints nothing of its own (at level debug, it is
/// logged).
///
/// What `work` was changing is in whatever state the panic left it: use it no more, or know better.
pub fn catch<R>(stage: Stage, work: impl FnOnce() -> R) -> Result<R, Fault> {
    HOOK.call_once(|| {
        let present = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 {
                present(info);
            } else {
                see(info);
            }
        }));
    });
    SEEN.take();
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    result.map_err(|payload| {
        let seen = SEEN.take().unwrap_or_default();
        Fault::of_panic(stage, payload, &seen)
    })
}

/// The hook: called where the panic was raised, before anything is unwound.
fn see(info: &PanicHookInfo<'_>) {
    tracing::debug!("{info}");
    let message = panic_message(info.payload());
    let is_cuda = message.starts_with(ALLOCATION_FAILED) || cuda_error(&message).is_some();
    let place = is_cuda
        .then(calling_function)
        .flatten()
        .or_else(|| info.location().map(ToString::to_string));
    let seen = Seen {
        place,
        // Only here is it sure that the panic holds no lock of the allocator, which is asked.
        memory: message
            .starts_with(ALLOCATION_FAILED)
            .then(device_memory)
            .flatten(),
    };
    SEEN.set(Some(seen));
}

#[cfg(feature = "cuda")]
fn device_memory() -> Option<DeviceMemory> {
    let (free, total) = crate::gpu::device::memory_info().ok()?;
    let usage = crate::gpu::memory::pool_usage();
    Some(DeviceMemory {
        free: free as u64,
        total: total as u64,
        pool: usage.reserved,
        allocated: usage.allocated,
    })
}

#[cfg(not(feature = "cuda"))]
fn device_memory() -> Option<DeviceMemory> {
    None
}

/// The functions of these crates say what device memory is for,
const CALLERS: [&str; 2] = ["openvm_", "<openvm_"];
/// but these only pass a request on.
const ALLOCATORS: [&str; 2] = [
    "openvm_cuda_common::",
    "openvm_cuda_backend::base::DeviceMatrix",
];
/// And these are on every stack.
const RUNTIME: [&str; 8] = [
    "core::", "<core::", "std::", "<std::", "alloc::", "<alloc::", "rust_", "__rust",
];

/// The function on the stack that asked for memory or made a call. `None` if the executable is stripped.
fn calling_function() -> Option<String> {
    let (mut inside, mut found) = (false, None);
    backtrace::trace(|frame| {
        backtrace::resolve_frame(frame, |symbol| {
            let Some(name) = symbol.name() else { return };
            // Without the hash.
            let name = format!("{name:#}");
            if found.is_none() && is_caller(&name, &mut inside) {
                found = Some(name);
            }
        });
        found.is_none()
    });
    found
}

/// From the innermost function outwards: whether this is the one. `inside` tells whether an allocator was passed.
fn is_caller(function: &str, inside: &mut bool) -> bool {
    let starts_with = |starts: &[&str]| starts.iter().any(|start| function.starts_with(start));
    if ALLOCATORS.iter().any(|part| function.contains(part)) {
        *inside = true;
        return false;
    }
    if function.contains(module_path!()) {
        return false;
    }
    starts_with(&CALLERS) || (*inside && !starts_with(&RUNTIME))
}

/// openvm-cuda-common's words for an allocation that failed, in `DeviceBuffer::with_capacity_on`.
const ALLOCATION_FAILED: &str = "GPU allocation failed";
/// A mutex of openvm-cuda-common's allocator that a panic inside of it has closed for good.
const ALLOCATOR_CLOSED: &str = "LockError";
/// `cudaErrorMemoryAllocation`.
const CUDA_OUT_OF_MEMORY: i32 = 2;

/// Makes sense of what OpenVM's GPU code panicked with: the `Debug` form of its errors.
fn classify(message: &str, seen: &Seen) -> Cause {
    let out_of_memory = |size| Cause::OutOfDeviceMemory {
        buffer: seen
            .place
            .clone()
            .unwrap_or_else(|| "the prover".to_string()),
        size,
        memory: Memory(seen.memory),
    };
    let place = Place(seen.place.clone());
    if let Some(beyond) = number_after(message, "OutOfMemory { requested: ") {
        // The allocator counts from what its pool has free, which is not what was asked for.
        return out_of_memory(match seen.memory {
            Some(memory) => Size::Bytes(beyond + memory.pool.saturating_sub(memory.allocated)),
            None => Size::BeyondPool(beyond),
        });
    }
    if let Some(size) = number_after(message, "RequestedExceedsVaChunk { requested: ") {
        return out_of_memory(Size::Bytes(size));
    }
    if let Some(error) = cuda_error(message) {
        if error.code == CUDA_OUT_OF_MEMORY {
            return out_of_memory(if message.starts_with(ALLOCATION_FAILED) {
                Size::Small
            } else {
                Size::Kernel
            });
        }
        if is_sticky(error.code) {
            return Cause::ContextLost {
                what: format!("{}{place} ({})", error.message, error.name),
            };
        }
        return Cause::Cuda {
            place,
            code: error.code,
            name: error.name,
            message: error.message,
        };
    }
    if message.contains(ALLOCATOR_CLOSED) {
        return Cause::ContextLost {
            what: "the allocator of device memory was interrupted".to_string(),
        };
    }
    Cause::Other {
        message: message.to_string(),
        place: if message.starts_with(ALLOCATION_FAILED) {
            place
        } else {
            Place::default()
        },
    }
}

struct CudaFailure {
    code: i32,
    name: String,
    message: String,
}

/// The first `CudaError { code: 2, name: "…", message: "…" }` in a text.
fn cuda_error(text: &str) -> Option<CudaFailure> {
    let (_, fields) = text.split_once("CudaError { code: ")?;
    let digits = fields.split(',').next()?;
    let quoted = |field: &str| {
        let (_, rest) = fields.split_once(field)?;
        rest.split('"').next().map(str::to_string)
    };
    Some(CudaFailure {
        code: digits.trim().parse().ok()?,
        name: quoted("name: \"")?,
        message: quoted("message: \"")?,
    })
}

fn number_after(text: &str, label: &str) -> Option<u64> {
    let (_, rest) = text.split_once(label)?;
    let end = rest
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Errors of the CUDA runtime after which "the process must be terminated and relaunched" (driver_types.h of CUDA 13.0), so
/// that every later call reports them again. `cuda/host/driver_loader.c` has the same list.
const STICKY: [i32; 14] = [
    214, // cudaErrorECCUncorrectable
    220, // cudaErrorNvlinkUncorrectable
    226, // cudaErrorContained
    700, // cudaErrorIllegalAddress
    702, // cudaErrorLaunchTimeout
    709, // cudaErrorContextIsDestroyed
    710, // cudaErrorAssert
    714, // cudaErrorHardwareStackError
    715, // cudaErrorIllegalInstruction
    716, // cudaErrorMisalignedAddress
    717, // cudaErrorInvalidAddressSpace
    718, // cudaErrorInvalidPc
    719, // cudaErrorLaunchFailure
    721, // cudaErrorTensorMemoryLeak
];

/// Whether an error of the CUDA runtime is the last that this process gets to see.
pub fn is_sticky(code: i32) -> bool {
    STICKY.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::is_caller;

    fn first<'a>(stack: &[&'a str]) -> Option<&'a str> {
        let mut inside = false;
        stack
            .iter()
            .copied()
            .find(|function| is_caller(function, &mut inside))
    }

    #[test]
    fn the_caller_is_whoever_wants_the_memory() {
        let allocation = [
            "std::panicking::begin_panic_handler",
            "openvm_apc::pipeline::fault::see",
            "core::result::unwrap_failed",
            "openvm_cuda_common::d_buffer::DeviceBuffer<T>::with_capacity_on",
        ];
        let under = |callers: &[&'static str]| first(&[&allocation[..], callers].concat());
        assert_eq!(
            under(&[
                "openvm_cuda_backend::base::DeviceMatrix<T>::with_capacity_on",
                "<openvm_x::Chip as openvm_circuit_primitives::chip::Chip<R,PB>>::generate_proving_ctx",
                "openvm_circuit::arch::vm::generate_proving_ctx",
            ]),
            Some("<openvm_x::Chip as openvm_circuit_primitives::chip::Chip<R,PB>>::generate_proving_ctx")
        );
        // Somebody else's code.
        assert_eq!(
            under(&[
                "core::ops::function::FnOnce::call_once",
                "guest::check",
                "openvm_a::b"
            ]),
            Some("guest::check")
        );
        // No allocation: only the prover's functions count.
        assert_eq!(
            first(&["core::result::unwrap_failed", "guest::check", "openvm_a::b"]),
            Some("openvm_a::b")
        );
        assert_eq!(first(&allocation), None);
    }
}
