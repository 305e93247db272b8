//! Faults of the prover as typed errors: what OpenVM's GPU code panics with, without a GPU; a proof that fails in the middle,
//! on the CPU; and the size of segments for a given GPU.

use std::{
    panic::panic_any,
    sync::{
        atomic::{AtomicUsize, Ordering},
        Arc,
    },
};

use openvm_apc::{
    apc::{ApcSettings, Pgo},
    bus::BusError,
    pipeline::{
        device_memory::{memory_image, segment_memory, trace_factor, RESIDENT},
        fault::{catch, Size},
        ArtifactStore, Cause, Device, DeviceMemoryError, DeviceSetup, Fault, Guest, GuestInput,
        Pipeline, PipelineError, Progress, ProveSettings, Security, SelectedApcs, Silent, Stage,
    },
    trace::TraceError,
};

const GIB: usize = 1 << 30;
const STAGE: Stage = Stage::Proof { segment: 3 };

fn panic_with(message: &str) -> Fault {
    catch(STAGE, || panic!("{message}")).expect_err("it panics")
}

#[test]
fn an_exhausted_pool_is_out_of_memory() {
    let fault =
        panic_with("GPU allocation failed: OutOfMemory { requested: 8388608, available: 4194304 }");
    assert!(fault.is_out_of_memory() && !fault.is_context_lost());
    let Cause::OutOfDeviceMemory { buffer, size, .. } = &fault.cause else {
        panic!("{fault:?}");
    };
    assert_eq!(*size, Size::BeyondPool(8 << 20));
    assert!(buffer.contains("faults.rs"), "{buffer}");
    let text = fault.to_string();
    for part in [
        "proving segment 3: out of device memory: ",
        " needs 8 MiB more than the memory pool has free",
        "Lower --segment-memory",
        "--bus-scratch",
        "--device-memory",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    // Where segments play no part, they are no advice.
    for stage in [
        Stage::SetUp,
        Stage::Program,
        Stage::Execution { segment: 0 },
    ] {
        let fault = Fault {
            stage,
            cause: Cause::OutOfDeviceMemory {
                buffer: "this".to_string(),
                size: Size::Bytes(3 << 29),
                memory: Default::default(),
            },
        };
        let said = fault.to_string();
        assert!(said.contains("this needs 1536 MiB. "), "{said}");
        assert!(said.contains("raise --device-memory"), "{said}");
        assert!(!said.contains("--segment-memory"), "{said}");
    }
    // The panic's own words are for developers.
    assert!(!text.contains("GPU allocation failed"), "{text}");
}

#[test]
fn other_allocation_failures() {
    let fault = panic_with(
        "GPU allocation failed: Cuda(CudaError { code: 2, name: \"cudaErrorMemoryAllocation\", \
         message: \"out of memory\" })",
    );
    assert!(
        matches!(
            fault.cause,
            Cause::OutOfDeviceMemory {
                size: Size::Small,
                ..
            }
        ),
        "{fault:?}"
    );
    let fault = panic_with(
        "GPU allocation failed: RequestedExceedsVaChunk { requested: 123, va_size: 100 }",
    );
    assert!(
        matches!(
            fault.cause,
            Cause::OutOfDeviceMemory {
                size: Size::Bytes(123),
                ..
            }
        ),
        "{fault:?}"
    );
    // A kernel whose code or stack finds no room any more.
    let fault = panic_with(
        "called `Result::unwrap()` on an `Err` value: Kernel(CudaError { code: 2, name: \
         \"cudaErrorMemoryAllocation\", message: \"out of memory\" })",
    );
    assert!(
        matches!(
            fault.cause,
            Cause::OutOfDeviceMemory {
                size: Size::Kernel,
                ..
            }
        ),
        "{fault:?}"
    );
}

#[test]
fn sticky_errors_lose_the_context_and_others_do_not() {
    let fault = panic_with(
        "called `Result::unwrap()` on an `Err` value: Cuda(CudaError { code: 700, name: \
         \"cudaErrorIllegalAddress\", message: \"an illegal memory access was encountered\" })",
    );
    assert!(fault.is_context_lost() && !fault.is_out_of_memory());
    let text = fault.to_string();
    for part in [
        "proving segment 3: an illegal memory access was encountered",
        "cudaErrorIllegalAddress",
        "cannot use the GPU any more",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let fault = panic_with("GPU allocation failed: LockError");
    assert!(fault.is_context_lost(), "{fault:?}");

    let fault = panic_with(
        "called `Result::unwrap()` on an `Err` value: CudaError { code: 9, name: \
         \"cudaErrorInvalidConfiguration\", message: \"invalid configuration argument\" }",
    );
    assert!(!fault.is_context_lost() && !fault.is_out_of_memory());
    assert!(
        matches!(&fault.cause, Cause::Cuda { code: 9, name, message, .. }
            if name == "cudaErrorInvalidConfiguration" && message == "invalid configuration argument"),
        "{fault:?}"
    );
}

#[test]
fn payloads_of_ours_stay_what_they_are() {
    let result: Result<(), Fault> = catch(STAGE, || {
        panic_any(TraceError::RecordsGone {
            apc: "test".to_string(),
            limit: 1,
        })
    });
    let fault = result.expect_err("it panics");
    assert!(
        matches!(&fault.cause, Cause::Trace(TraceError::RecordsGone { apc, .. }) if apc == "test"),
        "{fault:?}"
    );
    let fault = panic_with("index out of bounds: the len is 3 but the index is 3");
    assert!(
        matches!(&fault.cause, Cause::Other { message, .. } if message.starts_with("index out")),
        "{fault:?}"
    );
    assert_eq!(catch(STAGE, || 7).expect("it does not panic"), 7);
}

/// An executable with its symbols names the function of ours, or of OpenVM's, that asked for the memory.
#[test]
fn the_asking_function_is_named() {
    struct Allocator;
    impl Progress for Allocator {
        fn start(&self, _: &str, _: Option<u64>) {
            panic!("GPU allocation failed: OutOfMemory {{ requested: 1, available: 0 }}")
        }
        fn advance(&self, _: u64) {}
        fn finish(&self, _: &str) {}
    }
    let job = Job::with(Arc::new(Allocator));
    let selected = job.select(0);
    let fault = catch(Stage::SetUp, || {
        job.pipeline.setup(&selected, &ProveSettings::default())
    })
    .err()
    .expect("it panics");
    let Cause::OutOfDeviceMemory { buffer, .. } = &fault.cause else {
        panic!("{fault:?}");
    };
    assert!(
        buffer.starts_with("openvm_apc::pipeline::stages::Pipeline::setup"),
        "{buffer}"
    );
}

/// The hook leaves other panics to whoever cares for them, on this thread and on others.
#[test]
fn other_panics_are_left_alone() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    const MARK: &str = "a panic of nobody's business";
    // In front of the hook of `catch`, or behind it, whichever was first.
    let present = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() == Some(&MARK) {
            SEEN.fetch_add(1, Ordering::Relaxed);
        } else {
            present(info);
        }
    }));
    assert!(catch(STAGE, || {
        std::thread::spawn(|| panic!("{}", MARK)).join()
    })
    .expect("the other thread's panic is its own")
    .is_err());
    assert!(std::panic::catch_unwind(|| panic_any(MARK)).is_err());
    assert!(SEEN.load(Ordering::Relaxed) > 0);
}

/// The texts above are those that OpenVM's errors have, and errors of ours are told apart in the same way.
#[cfg(feature = "cuda")]
#[test]
fn the_texts_are_those_of_openvm() {
    use openvm_apc::gpu::GpuError;
    use openvm_cuda_common::error::{CudaError, MemoryError};

    let allocation =
        |reason: MemoryError| panic_with(&format!("GPU allocation failed: {reason:?}"));
    let exhausted = allocation(MemoryError::OutOfMemory {
        requested: 4096,
        available: 0,
    });
    assert!(
        matches!(
            exhausted.cause,
            Cause::OutOfDeviceMemory {
                size: Size::BeyondPool(4096),
                ..
            }
        ),
        "{exhausted:?}"
    );
    let small = allocation(MemoryError::Cuda(CudaError::new(2)));
    assert!(
        matches!(
            small.cause,
            Cause::OutOfDeviceMemory {
                size: Size::Small,
                ..
            }
        ),
        "{small:?}"
    );
    assert!(allocation(MemoryError::LockError).is_context_lost());
    let unwrapped = |code| panic_with(&format!("{:?}", CudaError::new(code)));
    assert!(unwrapped(700).is_context_lost());
    assert!(matches!(
        unwrapped(9).cause,
        Cause::Cuda { code: 9, name, .. } if name == "cudaErrorInvalidConfiguration"
    ));

    let launch = |code| {
        catch(STAGE, || -> () {
            panic_any(TraceError::Gpu(GpuError::Launch {
                kernel: "apc_tracegen",
                apc: "test".to_string(),
                source: CudaError::new(code),
            }))
        })
        .expect_err("it panics")
    };
    assert!(launch(719).is_context_lost());
    assert!(launch(2).is_out_of_memory());
    let refused = launch(9);
    assert!(
        matches!(
            &refused.cause,
            Cause::Trace(TraceError::Gpu(GpuError::Launch { .. }))
        ),
        "{refused:?}"
    );
    for part in ["proving segment 3", "apc_tracegen", "test"] {
        assert!(refused.to_string().contains(part), "{refused}");
    }
}

struct Job {
    pipeline: Pipeline,
    _artifacts: tempfile::TempDir,
}

impl Job {
    fn new() -> Self {
        Self::with(Arc::new(Silent))
    }

    fn with(progress: Arc<dyn Progress>) -> Self {
        let artifacts = tempfile::tempdir().expect("a temporary directory can be made");
        let pipeline = Pipeline::new(
            Guest::find("guest-keccak").expect("it is shipped"),
            ArtifactStore::open(Some(artifacts.path())).expect("it is writable"),
            progress,
        );
        Self {
            pipeline,
            _artifacts: artifacts,
        }
    }

    /// The block executed most: a short one, for this input.
    fn select(&self, autoprecompiles: u64) -> SelectedApcs {
        let settings = ApcSettings {
            autoprecompiles,
            pgo: Pgo::Instruction,
            ..Default::default()
        };
        self.pipeline
            .select_apcs(&settings, &GuestInput::u32(0))
            .expect("APCs can be built")
    }
}

/// An APC whose columns are mixed up: its trace asks for what no table has.
fn spoil(selected: &SelectedApcs) -> SelectedApcs {
    let mut spoilt = selected.clone();
    for substitutions in &mut spoilt.apcs[0].substitutions {
        let sources: Vec<usize> = substitutions
            .iter()
            .map(|substitution| substitution.original_poly_index)
            .collect();
        for (substitution, source) in substitutions.iter_mut().zip(sources.iter().rev()) {
            substitution.original_poly_index = *source;
        }
    }
    spoilt
}

#[test]
fn a_setup_is_refused_after_a_failure_and_a_new_one_works() {
    let job = Job::new();
    let selected = job.select(1);
    let settings = ProveSettings {
        security: Security::Toy,
        ..Default::default()
    };
    let input = GuestInput::u32(0);
    // The traces, not the commitments to them: on the CPU these depend on the order in which threads hash.
    let proven_traces = |selected| {
        let mut setup = DeviceSetup::new(&job.pipeline, selected, &settings)?;
        let (proven, _, traces) = setup.prove_with_digests(&job.pipeline, &input)?;
        proven.verify()?;
        Ok::<_, PipelineError>(traces)
    };
    let before = proven_traces(&selected).expect("it can be proven");

    let mut setup = job
        .pipeline
        .setup(&spoil(&selected), &settings)
        .expect("what is wrong only shows in the trace");
    let error = job
        .pipeline
        .prove(&mut setup, &input)
        .err()
        .expect("the trace is broken");
    assert!(
        matches!(
            &error,
            PipelineError::Fault(Fault {
                stage: Stage::Traces { segment: 0 },
                cause: Cause::Trace(TraceError::Bus {
                    source: BusError::OutOfTable { .. },
                    ..
                }),
            })
        ),
        "{error}"
    );
    let error = job.pipeline.prove(&mut setup, &input).err();
    assert!(
        matches!(error, Some(PipelineError::SetupFailed)),
        "{error:?}"
    );
    let error = job.pipeline.mock(&mut setup, &input).err();
    assert!(
        matches!(error, Some(PipelineError::SetupFailed)),
        "{error:?}"
    );
    drop(setup);

    let after = proven_traces(&selected).expect("it can be proven again");
    before.compare(&after).expect("the same traces");
}

#[test]
fn segments_follow_the_device_memory() {
    let job = Job::new();
    let system = &job.pipeline.guest().vm_config.system.config;
    let params = Security::Bits100.params();
    let plain = job.select(0);
    let limit = |selected: &SelectedApcs, available| {
        segment_memory(available, GIB / 4, selected, system, &params)
    };
    // Registers and memory, 512 MiB, and 64 bytes of tree for 8 cells.
    let image = memory_image(&system.memory_config);
    assert!((9 * GIB / 2..5 * GIB).contains(&image), "{image}");

    // A large GPU changes nothing, and no GPU gives more than the default.
    let default = system.segmentation_max_memory;
    for available in [80 * GIB, 140 * GIB, usize::MAX] {
        assert_eq!(limit(&plain, available), Ok(default));
    }
    // A small one: what is resident is left out, and no segment is smaller for a little less memory.
    let small = limit(&plain, 12 * GIB).expect("that is enough");
    assert_eq!(
        small,
        (12 * GIB - RESIDENT - GIB / 4) / (GIB / 4) * (GIB / 4)
    );
    assert_eq!(limit(&plain, 12 * GIB - 1), Ok(small - GIB / 4));
    assert_eq!(limit(&plain, 12 * GIB + GIB / 8), Ok(small));
    // Too small for the memory image.
    let error = limit(&plain, 4 * GIB).expect_err("that is not enough");
    let DeviceMemoryError::TooSmall {
        needed,
        memory_image,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (*needed, *memory_image),
        (RESIDENT + GIB / 4 + image, image)
    );
    assert!(limit(&plain, *needed).is_ok());
    for part in ["4096 MiB", "--device-memory", "--segment-memory"] {
        assert!(error.to_string().contains(part), "no `{part}` in {error}");
    }

    // The traces of an APC's originals take room that OpenVM does not count.
    let selected = job.select(3);
    let factors: Vec<f64> = selected
        .apcs
        .iter()
        .map(|apc| trace_factor(apc, params.log_blowup))
        .collect();
    let worst = factors.iter().copied().fold(0.0, f64::max);
    assert!(worst > 0.0 && factors.len() == 3, "{factors:?}");
    let worst = worst.max(1.0);
    let with = limit(&selected, 16 * GIB).expect("that is enough");
    let exact = (16 * GIB - RESIDENT - GIB / 4) as f64 / worst;
    assert!((with as f64) <= exact && with as f64 > exact - (GIB / 4) as f64);
}

#[test]
fn a_limit_of_device_memory_needs_a_gpu() {
    let job = Job::new();
    let selected = job.select(0);
    let settings = ProveSettings {
        device_memory: Some(16 * GIB),
        ..Default::default()
    };
    assert_eq!(settings.device, Device::Cpu);
    for error in [
        DeviceSetup::new(&job.pipeline, &selected, &settings).err(),
        DeviceSetup::fit(&job.pipeline, &selected, settings).err(),
    ] {
        assert!(
            matches!(
                error,
                Some(PipelineError::DeviceMemory(DeviceMemoryError::NoGpu))
            ),
            "{error:?}"
        );
    }
}
