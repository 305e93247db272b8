//! The stages: profile, select APCs, set up, execute, prove, verify.

use std::{
    cell::{OnceCell, RefCell},
    mem::ManuallyDrop,
    panic::{catch_unwind, AssertUnwindSafe},
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    time::{Duration, Instant},
};

use openvm_circuit::{
    arch::{
        execution_mode::Segment, hasher::poseidon2::vm_poseidon2_hasher, instructions::exe::VmExe,
        verify_segments, ContinuationVmProof, ExecutionError, PreflightExecutionOutput,
        PreflightExecutor, SystemConfig, VirtualMachine, VirtualMachineError, VmBuilder,
        VmExecutionConfig, VmExecutor, VmState,
    },
    system::{
        memory::{
            dimensions::MemoryDimensions,
            merkle::public_values::{extract_public_values, UserPublicValuesProof},
        },
        program::trace::compute_exe_commit,
    },
};
use openvm_sdk_config::{SdkVmConfig, SdkVmCpuBuilder, TranspilerConfig};
use openvm_stark_backend::{
    keygen::types::MultiStarkVerifyingKey,
    prover::{CommittedTraceData, ProvingContext},
    StarkEngine,
};
use openvm_stark_sdk::config::baby_bear_poseidon2::{
    BabyBearPoseidon2Config, BabyBearPoseidon2CpuEngine,
};
use p3_field::PrimeField32;
use serde::{Deserialize, Serialize};

use super::{
    artifacts::{ArtifactKey, ArtifactStore},
    device::Device,
    error::PipelineError,
    fault::{catch, Fault, Stage},
    guest::{Guest, GuestInput},
    progress::Progress,
    security::{security_bits, Security},
};
use crate::{
    apc::{
        build_apcs, execution_profile, rewrite_program, ApcSettings, Autoprecompile, GuestProgram,
        OriginalAirs, VmBuses,
    },
    bus::{BusKernel, F},
    vm::{
        digest::SegmentDigest,
        mock::{self, MockReport},
        ApcVmBuilder, ApcVmConfig, Labels,
    },
};

pub(super) type SC = BabyBearPoseidon2Config;
type Engine = BabyBearPoseidon2CpuEngine;
type CpuBuilder = ApcVmBuilder<SdkVmCpuBuilder>;
/// The executors of a VM with APCs.
pub(super) type ApcExecutors = <ApcVmConfig<SdkVmConfig> as VmExecutionConfig<F>>::Executor;

/// The APCs of a guest, with the buses of the VM they were built for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SelectedApcs {
    /// Best first.
    pub apcs: Vec<Autoprecompile>,
    /// The buses.
    pub buses: VmBuses,
    /// Instructions of the profiled execution, if there was one.
    pub profiled_instructions: Option<u64>,
}

/// How a program is proven.
#[derive(Clone, Debug, Default)]
pub struct ProveSettings {
    /// The proof system's parameters.
    pub security: Security,
    /// Bytes that a segment's proof may take, by OpenVM's estimate. If `None`, OpenVM's default, or less where the GPU's
    /// memory asks for it (see [`super::device_memory`]).
    pub segment_memory: Option<usize>,
    /// Bytes of device memory that this process may have, everything included; no limit if `None`. GPU only. It holds back
    /// the rest of the device's memory for as long as the setup lives.
    pub device_memory: Option<usize>,
    /// The kernel for the APCs' bus interactions.
    pub bus_kernel: BusKernel,
    /// Where the prover runs.
    pub device: Device,
    /// What may be set about the GPU.
    #[cfg(feature = "cuda")]
    pub gpu: crate::gpu::GpuSettings,
}

/// A guest on its way to a proof.
pub struct Pipeline {
    guest: Guest,
    store: ArtifactStore,
    progress: Arc<dyn Progress>,
    interrupted: Arc<AtomicBool>,
}

/// One segment, as metered execution sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SegmentReport {
    /// Dispatched instructions; an APC call is one.
    pub instructions: u64,
    /// Rows of all traces, padded to powers of two.
    pub rows: u64,
    /// Main trace cells of all traces, padded.
    pub cells: u64,
}

/// What an execution came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExecutionReport {
    /// The public values, as bytes.
    pub public_values: Vec<u8>,
    /// The segments.
    pub segments: Vec<SegmentReport>,
}

impl ExecutionReport {
    /// Dispatched instructions of all segments.
    pub fn instructions(&self) -> u64 {
        self.segments
            .iter()
            .map(|segment| segment.instructions)
            .sum()
    }

    /// Trace rows of all segments.
    pub fn rows(&self) -> u64 {
        self.segments.iter().map(|segment| segment.rows).sum()
    }

    /// Trace cells of all segments.
    pub fn cells(&self) -> u64 {
        self.segments.iter().map(|segment| segment.cells).sum()
    }
}

/// What identifies a program and the VM that it runs on: what a valid proof has to carry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Commitment to the rewritten program, its initial memory and its first pc.
    pub exe_commit: [u32; 8],
    /// SHA-256 of the verifying key and of the memory's dimensions.
    pub verifying_key: String,
}

/// A proof, with all that is needed to check it.
#[derive(Clone, Serialize, Deserialize)]
pub struct ProvenGuest {
    /// The verifying key.
    pub vk: MultiStarkVerifyingKey<SC>,
    /// The proof of every segment, and of the public values.
    pub proof: ContinuationVmProof<SC>,
    /// Commitment to the rewritten program, its initial memory and its first pc.
    pub exe_commit: [u32; 8],
    /// Height of the address space tree.
    pub memory_dimensions: MemoryDimensions,
}

/// What a valid proof says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// The public values, as bytes.
    pub public_values: Vec<u8>,
    /// Commitment to the public values: 8 canonical field elements.
    pub public_values_commit: [u32; 8],
    /// Commitment to the program: 8 canonical field elements.
    pub exe_commit: [u32; 8],
    /// For each segment, the commitment to its traces.
    pub trace_commits: Vec<[u32; 8]>,
    /// SHA-256 of the verifying key and of the memory's dimensions.
    pub verifying_key: String,
    /// Bits of security that the verifying key's parameters give its AIRs, rounded down.
    pub security_bits: u32,
}

impl Pipeline {
    /// A guest, a place for its artifacts, and someone to tell of progress.
    pub fn new(guest: Guest, store: ArtifactStore, progress: Arc<dyn Progress>) -> Self {
        Self {
            guest,
            store,
            progress,
            interrupted: Arc::default(),
        }
    }

    /// The guest.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Setting this flag ends the pipeline with [`PipelineError::Interrupted`] at the next step.
    pub fn interrupt_flag(&self) -> Arc<AtomicBool> {
        self.interrupted.clone()
    }

    /// Who is told of progress.
    pub(super) fn progress(&self) -> &dyn Progress {
        &*self.progress
    }

    fn check_interrupted(&self) -> Result<(), PipelineError> {
        if self.interrupted.load(Ordering::Relaxed) {
            Err(PipelineError::Interrupted)
        } else {
            Ok(())
        }
    }

    /// The transpiled guest, without APCs.
    pub fn exe(&self) -> Result<VmExe<F>, PipelineError> {
        Ok(GuestProgram::exe_from_elf(
            &self.guest.elf,
            self.guest.vm_config.transpiler(),
        )?)
    }

    /// Builds the APCs, or takes them from the artifacts.
    ///
    /// They depend on the guest, the VM configuration, the settings and the profiled input; on nothing of later
    /// stages.
    pub fn select_apcs(
        &self,
        settings: &ApcSettings,
        profile_input: &GuestInput,
    ) -> Result<SelectedApcs, PipelineError> {
        self.check_interrupted()?;
        let config = &self.guest.vm_config;
        if settings.autoprecompiles == 0 {
            return Ok(SelectedApcs {
                apcs: vec![],
                buses: VmBuses::from_inventory(
                    &openvm_circuit::arch::VmCircuitConfig::<SC>::create_airs(config)
                        .map_err(crate::apc::ApcError::from)?,
                ),
                profiled_instructions: None,
            });
        }
        // Candidates are written for people to look at: asking for them builds anew.
        let key = ArtifactKey::new(
            "apcs",
            &(
                self.guest.digest(),
                config,
                ApcSettings {
                    candidates_directory: None,
                    ..settings.clone()
                },
                (settings.pgo != crate::apc::Pgo::None).then_some(profile_input),
            ),
        )?;
        let build = || self.build_apcs(settings, profile_input);
        let (selected, cached) = if settings.candidates_directory.is_some() {
            let selected = build()?;
            self.store.store(&key, &selected)?;
            (selected, false)
        } else {
            self.store.load_or_build(&key, build)?
        };
        if cached {
            self.progress.start("Loading APCs", None);
            self.progress.finish(&format!(
                "{} APCs from {}",
                selected.apcs.len(),
                self.store.directory().display()
            ));
        }
        if (selected.apcs.len() as u64) < settings.autoprecompiles {
            tracing::warn!(
                "{} APCs were asked for, but only {} blocks are eligible: going on with those",
                settings.autoprecompiles,
                selected.apcs.len()
            );
        }
        Ok(selected)
    }

    fn build_apcs(
        &self,
        settings: &ApcSettings,
        profile_input: &GuestInput,
    ) -> Result<SelectedApcs, PipelineError> {
        let config = &self.guest.vm_config;
        let program = GuestProgram::from_elf(&self.guest.elf, config.transpiler())?;
        let profile = if settings.pgo == crate::apc::Pgo::None {
            None
        } else {
            self.progress.start("Profiling", None);
            let profile = execution_profile(config, &program.exe, profile_input.to_streams())
                .map_err(|error| match error {
                    crate::apc::ApcError::Profile { pc, source } => {
                        execution_error(source, profile_input, Some(pc))
                    }
                    other => other.into(),
                })?;
            self.progress
                .finish(&format!("{} instructions", profile.pc_list.len()));
            Some(profile)
        };
        self.check_interrupted()?;

        let engine = Engine::new(Security::Toy.params());
        let mut original_airs = OriginalAirs::extract(&engine, &SdkVmCpuBuilder, config)?;
        let progress = self.progress.clone();
        original_airs.on_apc_built(move || progress.advance(1));
        let candidates = profile.as_ref().map(|profile| {
            program
                .basic_blocks()
                .iter()
                .filter(|block| block.instructions.len() > 1)
                .filter(|block| profile.pc_count.contains_key(&block.start_pc))
                .count() as u64
        });
        let total = match settings.pgo {
            crate::apc::Pgo::Cell => candidates,
            _ => Some(settings.autoprecompiles.saturating_add(settings.skip)),
        };
        let start = Instant::now();
        self.progress.start("Building APCs", total);
        let apcs = build_apcs(&program, profile.as_ref(), &original_airs, settings)?;
        self.progress.finish(&format!(
            "{} APCs in {:.1} s",
            apcs.len(),
            start.elapsed().as_secs_f64()
        ));
        self.check_interrupted()?;
        Ok(SelectedApcs {
            apcs,
            buses: original_airs.buses.clone(),
            profiled_instructions: profile.map(|profile| profile.pc_list.len() as u64),
        })
    }

    /// Sets up the VM with the APCs on the CPU: keys, chips, the committed program.
    pub fn setup(
        &self,
        selected: &SelectedApcs,
        settings: &ProveSettings,
    ) -> Result<Setup, PipelineError> {
        let engine = Engine::new(settings.security.params());
        self.setup_on(engine, ApcVmBuilder(SdkVmCpuBuilder), selected, settings)
    }

    /// Sets up the VM with the APCs for any engine: keys, chips, the committed program.
    pub fn setup_on<E, VB>(
        &self,
        engine: E,
        builder: VB,
        selected: &SelectedApcs,
        settings: &ProveSettings,
    ) -> Result<Setup<E, VB>, PipelineError>
    where
        E: StarkEngine<SC = SC>,
        VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
        ApcExecutors: PreflightExecutor<F, VB::RecordArena>,
    {
        self.check_interrupted()?;
        let exe = Arc::new(rewrite_program(&self.exe()?, &selected.apcs)?);
        let start = Instant::now();
        self.progress.start("Setting up", None);
        let mut inner = self.guest.vm_config.clone();
        if let Some(memory) = settings.segment_memory {
            inner.system.config.set_segmentation_max_memory(memory);
        }
        let config = ApcVmConfig::new(
            inner,
            selected.buses.clone(),
            selected.apcs.clone(),
            settings.bus_kernel,
        )?;
        let (vm, pk) =
            VirtualMachine::new_with_keygen(engine, builder, config.clone()).map_err(vm_error)?;
        let vk = pk.get_vk();
        self.progress.finish(&format!(
            "{} AIRs in {:.1} s",
            vk.inner.per_air.len(),
            start.elapsed().as_secs_f64()
        ));
        Ok(Setup {
            config,
            exe,
            vk,
            vm: ManuallyDrop::new(vm),
            committed: ManuallyDrop::new(OnceCell::new()),
            commitment: OnceCell::new(),
            executed: RefCell::default(),
            failed: false,
            #[cfg(feature = "cuda")]
            device_memory: None,
        })
    }

    /// The key of what depends on the program with its APCs and on the VM, but on nothing of how it is proven; `run` is
    /// the input and the device of an execution.
    fn setup_key(
        &self,
        stage: &'static str,
        apcs: &[Autoprecompile],
        settings: &ProveSettings,
        run: Option<(&GuestInput, Device)>,
    ) -> Result<ArtifactKey, PipelineError> {
        ArtifactKey::new(
            stage,
            &(
                self.guest.digest(),
                &self.guest.vm_config,
                apcs,
                settings.security,
                settings.segment_memory,
                run,
            ),
        )
    }

    /// What identifies the program and the VM: from the artifacts, or by setting the VM up with `set_up`.
    pub fn identity(
        &self,
        selected: &SelectedApcs,
        settings: &ProveSettings,
        set_up: impl FnOnce() -> Result<Identity, PipelineError>,
    ) -> Result<Identity, PipelineError> {
        let key = self.setup_key("setup", &selected.apcs, settings, None)?;
        Ok(self.store.load_or_build(&key, set_up)?.0)
    }

    /// What a run of the guest comes to: from the artifacts, or by `execute`, which has to be [`Pipeline::execute`].
    pub fn execution(
        &self,
        selected: &SelectedApcs,
        settings: &ProveSettings,
        input: &GuestInput,
        execute: impl FnOnce() -> Result<ExecutionReport, PipelineError>,
    ) -> Result<ExecutionReport, PipelineError> {
        // Where segments end depends on the device: OpenVM estimates the memory of the backend that proves them.
        let run = (input, settings.device);
        let key = self.setup_key("execution", &selected.apcs, settings, Some(run))?;
        Ok(self.store.load_or_build(&key, execute)?.0)
    }

    /// Runs the guest without proving: its public values, segments and trace sizes.
    pub fn execute<E, VB>(
        &self,
        setup: &Setup<E, VB>,
        input: &GuestInput,
    ) -> Result<ExecutionReport, PipelineError>
    where
        E: StarkEngine<SC = SC>,
        VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
        ApcExecutors: PreflightExecutor<F, VB::RecordArena>,
    {
        self.check_interrupted()?;
        self.progress.start("Executing", None);
        let vm = &setup.vm;
        let (bounds, state) = setup.execute_metered(input)?;
        let widths: Vec<u64> = vm
            .pk()
            .per_air
            .iter()
            .map(|pk| pk.vk.params.width.main_width() as u64)
            .collect();
        let segments: Vec<SegmentReport> = bounds
            .iter()
            .map(|segment| {
                let heights = segment.trace_heights.iter().map(|&height| match height {
                    0 => 0,
                    height => u64::from(height).next_power_of_two(),
                });
                SegmentReport {
                    instructions: segment.num_insns,
                    rows: heights.clone().sum(),
                    cells: heights
                        .zip(&widths)
                        .map(|(height, width)| height * width)
                        .sum(),
                }
            })
            .collect();
        let system: &SystemConfig = setup.config.as_ref();
        let report = ExecutionReport {
            public_values: extract_public_values(system.num_public_values, &state.memory.memory),
            segments,
        };
        self.progress.finish(&format!(
            "{} instructions in {} segment(s)",
            report.instructions(),
            report.segments.len()
        ));
        setup.executed.replace(Some((input.clone(), bounds)));
        Ok(report)
    }

    /// What the guest would come to without APCs, in the segments of the CPU; from the artifacts, if it is there.
    pub fn execute_without_apcs(
        &self,
        settings: &ProveSettings,
        input: &GuestInput,
    ) -> Result<ExecutionReport, PipelineError> {
        let selected = self.select_apcs(&ApcSettings::default(), &GuestInput::none())?;
        let settings = &ProveSettings {
            device: Device::Cpu,
            ..settings.clone()
        };
        self.execution(&selected, settings, input, || {
            let quiet = Self {
                guest: self.guest.clone(),
                store: self.store.clone(),
                progress: Arc::new(super::progress::Silent),
                interrupted: self.interrupted.clone(),
            };
            quiet.execute(&quiet.setup(&selected, settings)?, input)
        })
    }

    /// Proves every segment of the guest's run on `input`.
    pub fn prove<E, VB>(
        &self,
        setup: &mut Setup<E, VB>,
        input: &GuestInput,
    ) -> Result<(ProvenGuest, Duration), PipelineError>
    where
        E: StarkEngine<SC = SC>,
        VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
        ApcExecutors: PreflightExecutor<F, VB::RecordArena>,
    {
        self.prove_observed(setup, input, |_, _, _| Ok(()))
    }

    /// As [`Pipeline::prove`], with digests of the very traces that are proven, segment by segment. The time includes
    /// the digests'.
    pub fn prove_with_digests<E, VB>(
        &self,
        setup: &mut Setup<E, VB>,
        input: &GuestInput,
    ) -> Result<(ProvenGuest, Duration, Vec<SegmentDigest>), PipelineError>
    where
        E: StarkEngine<SC = SC>,
        VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
        ApcExecutors: PreflightExecutor<F, VB::RecordArena>,
    {
        let labels = setup.labels()?;
        let mut digests = vec![];
        let (proven, elapsed) = self.prove_observed(setup, input, |vm, context, segment| {
            digests.push(digest_segment(vm, context, segment, &labels)?);
            Ok(())
        })?;
        Ok((proven, elapsed, digests))
    }

    /// Generates the traces of the guest's run on `input` without proving: their digests, segment by segment.
    pub fn trace_digests<E, VB>(
        &self,
        setup: &mut Setup<E, VB>,
        input: &GuestInput,
    ) -> Result<Vec<SegmentDigest>, PipelineError>
    where
        E: StarkEngine<SC = SC>,
        VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
        ApcExecutors: PreflightExecutor<F, VB::RecordArena>,
    {
        let start = Instant::now();
        let labels = setup.labels()?;
        let digests =
            self.run_segments("Generating traces", setup, input, |vm, context, segment| {
                digest_segment(vm, &context, segment, &labels)
            })?;
        self.progress
            .finish(&format!("in {:.1} s", start.elapsed().as_secs_f64()));
        Ok(digests.per_segment)
    }

    /// Proves every segment, and shows each segment's traces to `observe` before they are proven.
    fn prove_observed<E, VB>(
        &self,
        setup: &mut Setup<E, VB>,
        input: &GuestInput,
        mut observe: impl FnMut(
            &VirtualMachine<E, VB>,
            &ProvingContext<E::PB>,
            usize,
        ) -> Result<(), PipelineError>,
    ) -> Result<(ProvenGuest, Duration), PipelineError>
    where
        E: StarkEngine<SC = SC>,
        VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
        ApcExecutors: PreflightExecutor<F, VB::RecordArena>,
    {
        let start = Instant::now();
        let proof =
            self.run_segments("Proving segments", setup, input, |vm, context, segment| {
                observe(vm, &context, segment)?;
                let stage = Stage::Proof { segment };
                // OpenVM's GPU prover panics where the device fails.
                Ok(catch(stage, || vm.engine.prove(vm.pk(), context))?
                    .map_err(|error| Fault::of_error(stage, &error))?)
            })?;
        let elapsed = start.elapsed();
        self.progress
            .finish(&format!("in {:.1} s", elapsed.as_secs_f64()));
        let system: &SystemConfig = setup.config.as_ref();
        let proven = ProvenGuest {
            vk: setup.vk.clone(),
            exe_commit: setup.exe_commit()?,
            memory_dimensions: system.memory_config.memory_dimensions(),
            proof: ContinuationVmProof {
                per_segment: proof.per_segment,
                user_public_values: proof.user_public_values,
            },
        };
        Ok((proven, elapsed))
    }

    /// Checks every constraint and the balance of every bus on the full traces of every segment, without proving.
    ///
    /// # Errors
    /// [`PipelineError::Mock`] names the first segment with wrong traces, and what is wrong with them.
    pub fn mock<E, VB>(
        &self,
        setup: &mut Setup<E, VB>,
        input: &GuestInput,
    ) -> Result<MockReport, PipelineError>
    where
        E: StarkEngine<SC = SC>,
        VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
        ApcExecutors: PreflightExecutor<F, VB::RecordArena>,
    {
        let start = Instant::now();
        let labels = setup.labels()?;
        let reports =
            self.run_segments("Checking segments", setup, input, |vm, context, segment| {
                mock::check(&vm.engine, vm.pk(), &context, &labels)
                    .map_err(|source| PipelineError::Mock { segment, source })
            })?;
        self.progress
            .finish(&format!("in {:.1} s", start.elapsed().as_secs_f64()));
        let mut total = MockReport::default();
        for report in &reports.per_segment {
            total.add(report);
        }
        Ok(total)
    }

    /// Executes segment by segment, generates the traces, and hands each segment's to `consume`.
    ///
    /// A failure in a segment leaves the VM with the records and counts of half a segment: the setup is marked, and refused
    /// from then on.
    pub(super) fn run_segments<E, VB, R>(
        &self,
        step: &str,
        setup: &mut Setup<E, VB>,
        input: &GuestInput,
        consume: impl FnMut(
            &VirtualMachine<E, VB>,
            ProvingContext<E::PB>,
            usize,
        ) -> Result<R, PipelineError>,
    ) -> Result<SegmentResults<R>, PipelineError>
    where
        E: StarkEngine<SC = SC>,
        VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
        ApcExecutors: PreflightExecutor<F, VB::RecordArena>,
    {
        if setup.failed {
            return Err(PipelineError::SetupFailed);
        }
        self.check_interrupted()?;
        let segments = match setup.executed.take() {
            Some((executed, segments)) if executed == *input => segments,
            _ => {
                self.progress.start("Executing", None);
                let (segments, _) = setup.execute_metered(input)?;
                self.progress
                    .finish(&format!("{} segment(s)", segments.len()));
                segments
            }
        };
        self.check_interrupted()?;
        setup.failed = true;
        let results = self.run_metered_segments(step, setup, input, segments, consume)?;
        setup.failed = false;
        Ok(results)
    }

    fn run_metered_segments<E, VB, R>(
        &self,
        step: &str,
        setup: &mut Setup<E, VB>,
        input: &GuestInput,
        segments: Vec<Segment>,
        mut consume: impl FnMut(
            &VirtualMachine<E, VB>,
            ProvingContext<E::PB>,
            usize,
        ) -> Result<R, PipelineError>,
    ) -> Result<SegmentResults<R>, PipelineError>
    where
        E: StarkEngine<SC = SC>,
        VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
        ApcExecutors: PreflightExecutor<F, VB::RecordArena>,
    {
        self.progress.start("Committing to the program", None);
        catch(Stage::Program, || setup.load_program())?;
        self.progress.finish("done");
        let vm = &mut setup.vm;
        let mut interpreter = vm
            .preflight_interpreter(&setup.exe)
            .map_err(|error| PipelineError::Vm(error.to_string()))?;
        let mut state = vm.create_initial_state(&setup.exe, input.to_streams());
        self.progress.start(step, Some(segments.len() as u64));
        let mut results = Vec::with_capacity(segments.len());
        for (segment, bounds) in segments.into_iter().enumerate() {
            self.check_interrupted()?;
            #[cfg(feature = "cuda")]
            crate::gpu::event::enter_segment(segment);
            let label = segment.to_string();
            let _span = tracing::info_span!("prove_segment", segment = label).entered();
            let PreflightExecutionOutput {
                system_records,
                record_arenas,
                to_state,
            } = catch(Stage::Execution { segment }, || {
                vm.transport_init_memory_to_device(&state.memory);
                vm.execute_preflight(
                    &mut interpreter,
                    state,
                    Some(bounds.num_insns),
                    &bounds.trace_heights,
                )
            })?
            .map_err(|error| execution_error(error, input, None))?;
            state = to_state;
            // OpenVM's chips cannot return errors: ours come as the payload of a panic.
            let context = catch(Stage::Traces { segment }, || {
                vm.generate_proving_ctx(system_records, record_arenas)
            })?
            .map_err(|error| PipelineError::Vm(error.to_string()))?;
            self.check_interrupted()?;
            results.push(consume(vm, context, segment)?);
            self.progress.advance(1);
        }
        let system: &SystemConfig = setup.config.as_ref();
        let top_tree = vm
            .memory_top_tree()
            .ok_or_else(|| PipelineError::Vm("there is no final memory".to_string()))?;
        let user_public_values = UserPublicValuesProof::compute(
            system.memory_config.memory_dimensions(),
            system.num_public_values,
            &vm_poseidon2_hasher(),
            &state.memory.memory,
            top_tree,
        );
        Ok(SegmentResults {
            per_segment: results,
            user_public_values,
        })
    }
}

/// Digests a segment's traces.
fn digest_segment<E, VB>(
    vm: &VirtualMachine<E, VB>,
    context: &ProvingContext<E::PB>,
    segment: usize,
    labels: &Labels,
) -> Result<SegmentDigest, PipelineError>
where
    E: StarkEngine<SC = SC>,
    VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
{
    // stark-backend's transporters panic where the device fails.
    Ok(catch(Stage::Traces { segment }, || {
        SegmentDigest::of(&vm.engine, vm.pk(), context, labels)
    })?)
}

/// What came of the segments.
pub(super) struct SegmentResults<R> {
    per_segment: Vec<R>,
    user_public_values: UserPublicValuesProof<8, F>,
}

/// A VM with APCs, ready to execute and prove one program. On the CPU unless an engine and a builder say otherwise.
pub struct Setup<E = Engine, VB = CpuBuilder>
where
    E: StarkEngine<SC = SC>,
    VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
{
    /// The configuration.
    pub config: ApcVmConfig<SdkVmConfig>,
    /// The program, rewritten to call the APCs.
    pub exe: Arc<VmExe<F>>,
    /// The verifying key.
    pub vk: MultiStarkVerifyingKey<SC>,
    /// The VM. Whoever uses it directly takes care that no proof is abandoned in the middle.
    pub vm: ManuallyDrop<VirtualMachine<E, VB>>,
    /// The program, committed to on the device, until the VM takes it. It takes some seconds, and execution needs none
    /// of it: so on first use.
    committed: ManuallyDrop<OnceCell<CommittedTraceData<E::PB>>>,
    /// The commitment to the program, once it is known.
    commitment: OnceCell<[F; 8]>,
    /// The segments of the last execution, for the proof of the same input that usually follows.
    executed: RefCell<Option<(GuestInput, Vec<Segment>)>>,
    /// A proof was abandoned in the middle.
    failed: bool,
    /// Held for as long as the VM lives.
    #[cfg(feature = "cuda")]
    pub(super) device_memory: Option<crate::gpu::DeviceMemoryLimit>,
}

impl<E, VB> Drop for Setup<E, VB>
where
    E: StarkEngine<SC = SC>,
    VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
{
    fn drop(&mut self) {
        // OpenVM's destructors of device memory panic, and thereby abort, once the CUDA context is lost. There is nothing to
        // free any more then: it is left alone.
        #[cfg(feature = "cuda")]
        if crate::gpu::device::check_context().is_err() {
            return;
        }
        // SAFETY: both are dropped here only, and used no more.
        unsafe {
            ManuallyDrop::drop(&mut self.committed);
            ManuallyDrop::drop(&mut self.vm);
        }
    }
}

impl<E, VB> Setup<E, VB>
where
    E: StarkEngine<SC = SC>,
    VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
{
    /// Names for people.
    pub(super) fn labels(&self) -> Result<Labels, PipelineError> {
        let airs = openvm_circuit::arch::VmCircuitConfig::<SC>::create_airs(&self.config)
            .map_err(crate::apc::ApcError::from)?;
        Ok(Labels::from_airs(airs.into_airs()).with_buses(self.config.buses()))
    }

    /// Metered execution: where segments end, how high their traces are, and the final state.
    fn execute_metered(
        &self,
        input: &GuestInput,
    ) -> Result<(Vec<Segment>, VmState<F>), PipelineError> {
        let context = self.vm.build_metered_ctx(&self.exe);
        self.vm
            .metered_interpreter(&self.exe)
            .map_err(|error| PipelineError::Vm(error.to_string()))?
            .execute_metered(input.to_streams(), context)
            .map_err(|error| execution_error(error, input, None))
    }

    fn program_commitment(&self) -> Result<[F; 8], Fault> {
        if let Some(commitment) = self.commitment.get() {
            return Ok(*commitment);
        }
        let commitment = catch(Stage::Program, || {
            self.committed
                .get_or_init(|| self.vm.commit_program_on_device(&self.exe.program))
                .commitment
        })?;
        Ok(*self.commitment.get_or_init(|| commitment))
    }

    /// Hands the committed program to the VM, which keeps it from then on.
    fn load_program(&mut self) {
        let known = self.commitment.get().is_some();
        match self.committed.take() {
            Some(committed) => self.vm.load_program(committed),
            // The VM has it already.
            None if known => {}
            None => {
                let committed = self.vm.commit_program_on_device(&self.exe.program);
                self.commitment = OnceCell::from(committed.commitment);
                self.vm.load_program(committed);
            }
        }
    }

    /// SHA-256 of the verifying key and of the memory's dimensions, as a valid proof carries it.
    pub fn verifying_key_digest(&self) -> Result<String, PipelineError> {
        let system: &SystemConfig = self.config.as_ref();
        super::proof_file::verifying_key_digest(&self.vk, &system.memory_config.memory_dimensions())
    }

    /// What identifies the program and the VM.
    pub fn identity(&self) -> Result<Identity, PipelineError> {
        Ok(Identity {
            exe_commit: self.exe_commit()?,
            verifying_key: self.verifying_key_digest()?,
        })
    }

    /// The commitment to the rewritten program, its initial memory and its first pc, as a valid proof carries it.
    pub fn exe_commit(&self) -> Result<[u32; 8], PipelineError> {
        let system: &SystemConfig = self.config.as_ref();
        Ok(exe_commit(system, &self.exe, &self.program_commitment()?))
    }
}

fn exe_commit(system: &SystemConfig, exe: &VmExe<F>, program_commit: &[F; 8]) -> [u32; 8] {
    use openvm_circuit::system::memory::merkle::MerkleTree;
    use p3_field::PrimeCharacteristicRing;

    let hasher = vm_poseidon2_hasher();
    let state = VmState::<F>::initial(system, &exe.init_memory, exe.pc_start, vec![]);
    let tree = MerkleTree::from_memory(
        &state.memory.memory,
        &system.memory_config.memory_dimensions(),
        &hasher,
    );
    canonical(&compute_exe_commit(
        &hasher,
        program_commit,
        &tree.root(),
        F::from_u32(exe.pc_start),
    ))
}

impl Verified {
    /// Checks that the proof is of the program, and for the VM, that the caller has in mind: a proof file brings its
    /// own verifying key, so validity alone says neither.
    pub fn expect(
        &self,
        exe_commit: Option<[u32; 8]>,
        verifying_key: Option<&str>,
    ) -> Result<(), PipelineError> {
        if let Some(expected) = exe_commit.filter(|expected| *expected != self.exe_commit) {
            return Err(PipelineError::OtherProgram {
                found: format!("{:?}", self.exe_commit),
                expected: format!("{expected:?}"),
            });
        }
        match verifying_key {
            Some(expected) if !expected.eq_ignore_ascii_case(&self.verifying_key) => {
                Err(PipelineError::OtherVerifyingKey {
                    found: self.verifying_key.clone(),
                    expected: expected.to_string(),
                })
            }
            _ => Ok(()),
        }
    }
}

impl ProvenGuest {
    /// Checks every segment's proof, that the segments join, and the proof of the public values.
    pub fn verify(&self) -> Result<Verified, PipelineError> {
        let invalid = |message: String| PipelineError::Verify(message);
        // A proof from a file can have any shape; what the verifier does not expect must not take us down.
        let payload = catch_unwind(AssertUnwindSafe(|| {
            let engine = Engine::new(self.vk.inner.params.clone());
            verify_segments(&engine, &self.vk, &self.proof.per_segment)
        }))
        .map_err(|payload| invalid(crate::apc::panic_message(&*payload)))?
        .map_err(|error| invalid(error.to_string()))?;
        let values = &self.proof.user_public_values;
        catch_unwind(AssertUnwindSafe(|| {
            values.verify(
                &vm_poseidon2_hasher(),
                self.memory_dimensions,
                payload.final_memory_root,
            )
        }))
        .map_err(|payload| invalid(crate::apc::panic_message(&*payload)))?
        .map_err(|error| invalid(error.to_string()))?;
        let security_bits = catch_unwind(AssertUnwindSafe(|| security_bits(&self.vk)))
            .map_err(|payload| invalid(crate::apc::panic_message(&*payload)))?;
        let found = canonical(&payload.exe_commit);
        if found != self.exe_commit {
            return Err(PipelineError::OtherProgram {
                found: format!("{found:?}"),
                expected: format!("{:?}", self.exe_commit),
            });
        }
        Ok(Verified {
            public_values: bytes(&values.public_values),
            public_values_commit: canonical(&values.public_values_commit),
            exe_commit: found,
            trace_commits: self
                .proof
                .per_segment
                .iter()
                .map(|proof| canonical(&proof.common_main_commit))
                .collect(),
            verifying_key: super::proof_file::verifying_key_digest(
                &self.vk,
                &self.memory_dimensions,
            )?,
            security_bits,
        })
    }
}

fn canonical(digest: &[F; 8]) -> [u32; 8] {
    digest.map(|element| element.as_canonical_u32())
}

fn bytes(values: &[F]) -> Vec<u8> {
    values
        .iter()
        .map(|value| value.as_canonical_u32() as u8)
        .collect()
}

fn vm_error(error: VirtualMachineError) -> PipelineError {
    PipelineError::Vm(error.to_string())
}

/// An execution error in the user's words: most often, the input is missing.
fn execution_error(error: ExecutionError, input: &GuestInput, pc: Option<u32>) -> PipelineError {
    match error {
        ExecutionError::FailedWithExitCode(code) => PipelineError::ExitCode(code),
        ExecutionError::HintOutOfBounds { pc } if input.is_empty() => {
            PipelineError::InputMissing { pc }
        }
        ExecutionError::Phantom { pc, .. } if input.is_empty() => {
            PipelineError::InputMissing { pc }
        }
        error => PipelineError::Guest(match pc {
            Some(pc) => format!("at pc {pc:#010x}: {error}"),
            None => error.to_string(),
        }),
    }
}

/// Runs the guest on the plain interpreter, without metering and without APCs: its public values.
pub fn execute_plain(guest: &Guest, input: &GuestInput) -> Result<Vec<u8>, PipelineError> {
    let exe = GuestProgram::exe_from_elf(&guest.elf, guest.vm_config.transpiler())?;
    let executor = VmExecutor::<F, _>::new(guest.vm_config.clone())
        .map_err(|error| PipelineError::Vm(error.to_string()))?;
    let state = executor
        .instance(&exe)
        .map_err(|error| PipelineError::Vm(error.to_string()))?
        .execute(input.to_streams(), None)
        .map_err(|error| execution_error(error, input, None))?;
    let system: &SystemConfig = guest.vm_config.as_ref();
    Ok(extract_public_values(
        system.num_public_values,
        &state.memory.memory,
    ))
}
