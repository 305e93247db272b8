//! The stages: profile, select APCs, set up, execute, prove, verify.

use std::{
    panic::{catch_unwind, AssertUnwindSafe},
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    time::{Duration, Instant},
};

use openvm_circuit::{
    arch::{
        hasher::poseidon2::vm_poseidon2_hasher, instructions::exe::VmExe, verify_segments,
        ContinuationVmProof, ExecutionError, PreflightExecutionOutput, SystemConfig,
        VirtualMachine, VirtualMachineError, VmExecutor, VmInstance, VmState,
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
use openvm_stark_backend::{keygen::types::MultiStarkVerifyingKey, StarkEngine};
use openvm_stark_sdk::config::baby_bear_poseidon2::{
    BabyBearPoseidon2Config, BabyBearPoseidon2CpuEngine,
};
use p3_field::PrimeField32;
use serde::{Deserialize, Serialize};

use super::{
    artifacts::{ArtifactKey, ArtifactStore},
    error::PipelineError,
    guest::{Guest, GuestInput},
    progress::Progress,
    security::Security,
};
use crate::{
    apc::{
        build_apcs, execution_profile, rewrite_program, ApcSettings, Autoprecompile, GuestProgram,
        OriginalAirs, VmBuses,
    },
    bus::{BusKernel, F},
    trace::TraceError,
    vm::{ApcVmBuilder, ApcVmConfig},
};

type SC = BabyBearPoseidon2Config;
type Engine = BabyBearPoseidon2CpuEngine;
type Vm = VirtualMachine<Engine, ApcVmBuilder<SdkVmCpuBuilder>>;

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
    /// Bytes that a segment's proof may take; OpenVM's default if `None`.
    pub segment_memory: Option<usize>,
    /// The kernel for the APCs' bus interactions.
    pub bus_kernel: BusKernel,
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
    /// SHA-256 of the verifying key.
    pub verifying_key: String,
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

    /// Sets up the VM with the APCs: keys, chips, the committed program.
    pub fn setup(
        &self,
        selected: &SelectedApcs,
        settings: &ProveSettings,
    ) -> Result<Setup, PipelineError> {
        self.check_interrupted()?;
        let start = Instant::now();
        self.progress.start("Setting up", None);
        let exe = Arc::new(rewrite_program(&self.exe()?, &selected.apcs)?);
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
        let engine = Engine::new(settings.security.params());
        let (vm, pk) =
            VirtualMachine::new_with_keygen(engine, ApcVmBuilder(SdkVmCpuBuilder), config.clone())
                .map_err(vm_error)?;
        let vk = pk.get_vk();
        let committed = vm.commit_program_on_device(&exe.program);
        let instance = VmInstance::new(vm, exe.clone(), committed)
            .map_err(|error| PipelineError::Vm(error.to_string()))?;
        self.progress.finish(&format!(
            "{} AIRs in {:.1} s",
            vk.inner.per_air.len(),
            start.elapsed().as_secs_f64()
        ));
        Ok(Setup {
            config,
            exe,
            vk,
            instance,
        })
    }

    /// Runs the guest without proving: its public values, segments and trace sizes.
    pub fn execute(
        &self,
        setup: &Setup,
        input: &GuestInput,
    ) -> Result<ExecutionReport, PipelineError> {
        self.check_interrupted()?;
        self.progress.start("Executing", None);
        let vm = &setup.instance.vm;
        let context = vm.build_metered_ctx(&setup.exe);
        let interpreter = vm
            .metered_interpreter(&setup.exe)
            .map_err(|error| PipelineError::Vm(error.to_string()))?;
        let (segments, state) = interpreter
            .execute_metered(input.to_streams(), context)
            .map_err(|error| execution_error(error, input, None))?;
        let widths: Vec<u64> = vm
            .pk()
            .per_air
            .iter()
            .map(|pk| pk.vk.params.width.main_width() as u64)
            .collect();
        let segments: Vec<SegmentReport> = segments
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
        Ok(report)
    }

    /// What the guest would come to without APCs. Kept as an artifact: it does not depend on them.
    pub fn execute_without_apcs(
        &self,
        settings: &ProveSettings,
        input: &GuestInput,
    ) -> Result<ExecutionReport, PipelineError> {
        let key = ArtifactKey::new(
            "plain-execution",
            &(
                self.guest.digest(),
                &self.guest.vm_config,
                input,
                settings.security,
                settings.segment_memory,
            ),
        )?;
        let (report, _) = self.store.load_or_build(&key, || {
            let quiet = Self {
                guest: self.guest.clone(),
                store: self.store.clone(),
                progress: Arc::new(super::progress::Silent),
                interrupted: self.interrupted.clone(),
            };
            let none = ApcSettings::default();
            let selected = quiet.select_apcs(&none, &GuestInput::none())?;
            quiet.execute(&quiet.setup(&selected, settings)?, input)
        })?;
        Ok(report)
    }

    /// Proves every segment of the guest's run on `input`.
    pub fn prove(
        &self,
        setup: &mut Setup,
        input: &GuestInput,
    ) -> Result<(ProvenGuest, Duration), PipelineError> {
        let start = Instant::now();
        let proof = self.run_segments(setup, input, |vm, context| {
            vm.engine
                .prove(vm.pk(), context)
                .map_err(|error| SegmentFailure::Prove(format!("{error:?}")))
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

    /// Executes segment by segment, generates the traces, and hands each segment's to `consume`.
    fn run_segments<R>(
        &self,
        setup: &mut Setup,
        input: &GuestInput,
        mut consume: impl FnMut(
            &Vm,
            openvm_stark_backend::prover::ProvingContext<<Engine as StarkEngine>::PB>,
        ) -> Result<R, SegmentFailure>,
    ) -> Result<SegmentResults<R>, PipelineError> {
        self.check_interrupted()?;
        let instance = &mut setup.instance;
        instance.reset_state(input.to_streams());
        let vm = &mut instance.vm;
        let context = vm.build_metered_ctx(&setup.exe);
        let (segments, _) = vm
            .metered_interpreter(&setup.exe)
            .map_err(|error| PipelineError::Vm(error.to_string()))?
            .execute_metered(input.to_streams(), context)
            .map_err(|error| execution_error(error, input, None))?;
        self.progress
            .start("Proving segments", Some(segments.len() as u64));
        let mut results = Vec::with_capacity(segments.len());
        let mut state = instance
            .state_mut()
            .take()
            .ok_or_else(|| PipelineError::Vm("the instance has no state".to_string()))?;
        for (segment, bounds) in segments.into_iter().enumerate() {
            self.check_interrupted()?;
            let label = segment.to_string();
            let _span = tracing::info_span!("prove_segment", segment = label).entered();
            let vm = &mut instance.vm;
            vm.transport_init_memory_to_device(&state.memory);
            let PreflightExecutionOutput {
                system_records,
                record_arenas,
                to_state,
            } = vm
                .execute_preflight(
                    &mut instance.interpreter,
                    state,
                    Some(bounds.num_insns),
                    &bounds.trace_heights,
                )
                .map_err(|error| execution_error(error, input, None))?;
            state = to_state;
            // OpenVM's chips cannot return errors: ours come as the payload of a panic.
            let context = catch_unwind(AssertUnwindSafe(|| {
                vm.generate_proving_ctx(system_records, record_arenas)
            }))
            .map_err(|payload| match payload.downcast::<TraceError>() {
                Ok(error) => PipelineError::Trace(*error),
                Err(payload) => PipelineError::Vm(crate::apc::panic_message(&*payload)),
            })?
            .map_err(|error| PipelineError::Vm(error.to_string()))?;
            self.check_interrupted()?;
            results.push(consume(vm, context).map_err(|failure| match failure {
                SegmentFailure::Prove(message) => PipelineError::Prove { segment, message },
                SegmentFailure::Mock(message) => PipelineError::Mock { segment, message },
            })?);
            self.progress.advance(1);
        }
        let system: &SystemConfig = setup.config.as_ref();
        let top_tree = instance
            .vm
            .memory_top_tree()
            .ok_or_else(|| PipelineError::Vm("there is no final memory".to_string()))?;
        let user_public_values = UserPublicValuesProof::compute(
            system.memory_config.memory_dimensions(),
            system.num_public_values,
            &vm_poseidon2_hasher(),
            &state.memory.memory,
            top_tree,
        );
        *instance.state_mut() = Some(state);
        Ok(SegmentResults {
            per_segment: results,
            user_public_values,
        })
    }
}

enum SegmentFailure {
    Prove(String),
    Mock(String),
}

struct SegmentResults<R> {
    per_segment: Vec<R>,
    user_public_values: UserPublicValuesProof<8, F>,
}

/// A VM with APCs, ready to execute and prove one program.
pub struct Setup {
    /// The configuration.
    pub config: ApcVmConfig<SdkVmConfig>,
    /// The program, rewritten to call the APCs.
    pub exe: Arc<VmExe<F>>,
    /// The verifying key.
    pub vk: MultiStarkVerifyingKey<SC>,
    /// The VM.
    pub instance: VmInstance<Engine, ApcVmBuilder<SdkVmCpuBuilder>>,
}

impl Setup {
    /// The commitment to the rewritten program, its initial memory and its first pc, as a valid proof carries it.
    pub fn exe_commit(&self) -> Result<[u32; 8], PipelineError> {
        let system: &SystemConfig = self.config.as_ref();
        Ok(exe_commit(
            system,
            &self.exe,
            self.instance.program_commitment(),
        ))
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

impl ProvenGuest {
    /// Checks every segment's proof, that the segments join, and the proof of the public values.
    pub fn verify(&self) -> Result<Verified, PipelineError> {
        let engine = Engine::new(self.vk.inner.params.clone());
        let invalid = |message: String| PipelineError::Verify(message);
        // A proof from a file can have any shape; what the verifier does not expect must not take us down.
        let payload = catch_unwind(AssertUnwindSafe(|| {
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
            verifying_key: super::proof_file::verifying_key_digest(&self.vk)?,
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
