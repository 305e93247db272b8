//! What the tests of a VM with APCs share: a small VM, programs assembled by hand, and proving them segment by
//! segment.

use std::{collections::BTreeSet, sync::Arc};

use openvm_apc::{
    apc::{
        build_apcs, execution_profile, rewrite_program, ApcSettings, Autoprecompile, GuestProgram,
        OriginalAirs, Pgo,
    },
    bus::{BusKernel, F},
    vm::{
        mock::{self, MockError, MockReport},
        ApcVmBuilder, ApcVmConfig, Labels,
    },
};
use openvm_circuit::{
    arch::{
        instructions::{
            exe::VmExe,
            instruction::Instruction,
            program::Program,
            riscv::{RV32_IMM_AS, RV32_MEMORY_AS, RV32_REGISTER_AS},
            LocalOpcode, SystemOpcode,
        },
        MemoryConfig, PreflightExecutionOutput, SystemConfig, VirtualMachine, VmCircuitConfig,
        VmState,
    },
    system::memory::online::GuestMemory,
};
use openvm_rv32im_circuit::{Rv32ImConfig, Rv32ImCpuBuilder};
use openvm_rv32im_transpiler::{
    BaseAluOpcode, BranchEqualOpcode, MulOpcode, Rv32LoadStoreOpcode, ShiftOpcode,
};
use openvm_stark_backend::{
    interaction::LogUpSecurityParameters,
    keygen::types::{MultiStarkProvingKey, MultiStarkVerifyingKey},
    proof::Proof,
    prover::ProvingContext,
    StarkEngine, SystemParams, WhirConfig, WhirParams, WhirProximityStrategy,
};
use openvm_stark_sdk::config::baby_bear_poseidon2::{
    BabyBearPoseidon2Config, BabyBearPoseidon2CpuEngine,
};

pub type Engine = BabyBearPoseidon2CpuEngine;
pub type Vm = VirtualMachine<Engine, ApcVmBuilder<Rv32ImCpuBuilder>>;
pub type Context = ProvingContext<<Engine as StarkEngine>::PB>;
pub type Config = BabyBearPoseidon2Config;

/// Parameters that make a proof quick and its soundness error large (but far below one).
pub fn small_params() -> SystemParams {
    let (log_blowup, l_skip, n_stack, k_whir) = (1, 4, 17, 4);
    SystemParams {
        l_skip,
        n_stack,
        w_stack: 1 << 12,
        log_blowup,
        whir: WhirConfig::new(
            log_blowup,
            l_skip + n_stack,
            WhirParams {
                k: k_whir,
                log_final_poly_len: (l_skip + n_stack) % k_whir,
                query_phase_pow_bits: 1,
                folding_pow_bits: 2,
                mu_pow_bits: 3,
                proximity: WhirProximityStrategy::UniqueDecoding,
            },
            20,
        ),
        logup: LogUpSecurityParameters {
            max_interaction_count: (1 << 30) * 2 - (1 << 27) + 1,
            log_max_message_length: 7,
            pow_bits: 2,
        },
        max_constraint_degree: 3,
    }
}

/// RV32IM with 4 MiB of memory.
pub fn inner_config() -> Rv32ImConfig {
    let mut spaces = MemoryConfig::empty_address_space_configs(5);
    spaces[RV32_REGISTER_AS as usize].num_cells = 4096;
    spaces[RV32_MEMORY_AS as usize].num_cells = 1 << 22;
    let mut config = Rv32ImConfig::default();
    config.rv32i.system = SystemConfig::new(3, MemoryConfig::new(2, spaces, 29, 29, 17), 32);
    config
}

/// A little assembler. Registers go by number, branches by label.
#[derive(Default)]
pub struct Assembler {
    instructions: Vec<Instruction<F>>,
    labels: BTreeSet<u64>,
}

const WORD: usize = 4;

impl Assembler {
    pub fn pc(&self) -> usize {
        self.instructions.len() * 4
    }

    /// Marks the next instruction as a jump target.
    pub fn label(&mut self) -> usize {
        self.labels.insert(self.pc() as u64);
        self.pc()
    }

    fn push(&mut self, opcode: impl LocalOpcode, operands: [isize; 7]) {
        let [a, b, c, d, e, f, g] = operands;
        self.instructions.push(Instruction::large_from_isize(
            opcode.global_opcode(),
            a,
            b,
            c,
            d,
            e,
            f,
            g,
        ));
    }

    /// `rd = rs1 <op> rs2`.
    pub fn alu(&mut self, opcode: BaseAluOpcode, rd: usize, rs1: usize, rs2: usize) {
        let register = |index: usize| (index * WORD) as isize;
        let space = RV32_REGISTER_AS as isize;
        self.push(
            opcode,
            [
                register(rd),
                register(rs1),
                register(rs2),
                space,
                space,
                0,
                0,
            ],
        );
    }

    /// `rd = rs1 <op> immediate`, with a non-negative immediate below 2^11.
    pub fn alu_immediate(&mut self, opcode: BaseAluOpcode, rd: usize, rs1: usize, value: isize) {
        let register = |index: usize| (index * WORD) as isize;
        let spaces = [RV32_REGISTER_AS as isize, RV32_IMM_AS as isize];
        self.push(
            opcode,
            [
                register(rd),
                register(rs1),
                value,
                spaces[0],
                spaces[1],
                0,
                0,
            ],
        );
    }

    /// `rd = rs1 << amount`.
    pub fn shift_left(&mut self, rd: usize, rs1: usize, amount: isize) {
        let register = |index: usize| (index * WORD) as isize;
        let spaces = [RV32_REGISTER_AS as isize, RV32_IMM_AS as isize];
        self.push(
            ShiftOpcode::SLL,
            [
                register(rd),
                register(rs1),
                amount,
                spaces[0],
                spaces[1],
                0,
                0,
            ],
        );
    }

    /// `rd = rs1 * rs2`.
    pub fn multiply(&mut self, rd: usize, rs1: usize, rs2: usize) {
        let register = |index: usize| (index * WORD) as isize;
        let space = RV32_REGISTER_AS as isize;
        self.push(
            MulOpcode::MUL,
            [register(rd), register(rs1), register(rs2), space, 0, 0, 0],
        );
    }

    /// `rd = memory[rs1 + offset]`.
    pub fn load_word(&mut self, rd: usize, rs1: usize, offset: isize) {
        self.load_or_store(Rv32LoadStoreOpcode::LOADW, rd, rs1, offset);
    }

    /// `memory[rs1 + offset] = rs2`.
    pub fn store_word(&mut self, rs2: usize, rs1: usize, offset: isize) {
        self.load_or_store(Rv32LoadStoreOpcode::STOREW, rs2, rs1, offset);
    }

    fn load_or_store(
        &mut self,
        opcode: Rv32LoadStoreOpcode,
        register: usize,
        rs1: usize,
        offset: isize,
    ) {
        let spaces = [RV32_REGISTER_AS as isize, RV32_MEMORY_AS as isize];
        self.push(
            opcode,
            [
                (register * WORD) as isize,
                (rs1 * WORD) as isize,
                offset,
                spaces[0],
                spaces[1],
                1,
                0,
            ],
        );
    }

    /// Jumps to `target` unless the registers agree.
    pub fn branch_not_equal(&mut self, rs1: usize, rs2: usize, target: usize) {
        let offset = target as isize - self.pc() as isize;
        let space = RV32_REGISTER_AS as isize;
        self.push(
            BranchEqualOpcode::BNE,
            [
                (rs1 * WORD) as isize,
                (rs2 * WORD) as isize,
                offset,
                space,
                space,
                0,
                0,
            ],
        );
        self.label();
    }

    pub fn terminate(mut self) -> GuestProgram {
        self.push(SystemOpcode::TERMINATE, [0; 7]);
        GuestProgram {
            exe: VmExe::new(Program::from_instructions(&self.instructions)),
            jump_targets: self.labels,
        }
    }
}

/// For each element of `loops`, a loop of that many rounds; the bodies differ, so that each is an APC of its own.
/// Each body computes in registers and goes through memory.
pub fn loops(rounds: &[isize]) -> GuestProgram {
    use BaseAluOpcode::{ADD, AND, OR, SUB, XOR};
    let mut program = Assembler::default();
    let (counter, bound, address, sum, mask) = (5, 6, 7, 8, 9);
    program.alu_immediate(ADD, address, 0, 64);
    program.alu_immediate(ADD, sum, 0, 1);
    for (index, &rounds) in rounds.iter().enumerate() {
        program.alu_immediate(ADD, counter, 0, 0);
        program.alu_immediate(ADD, bound, 0, rounds);
        let body = program.label();
        program.alu(ADD, sum, sum, counter);
        program.alu(XOR, mask, sum, bound);
        program.store_word(mask, address, 4 * index as isize);
        program.shift_left(mask, mask, 3);
        program.alu(OR, sum, sum, mask);
        program.load_word(10, address, 4 * index as isize);
        program.multiply(10, 10, bound);
        for _ in 0..index {
            program.alu(SUB, sum, sum, 10);
        }
        program.alu(AND, sum, sum, 10);
        program.alu_immediate(ADD, counter, counter, 1);
        program.branch_not_equal(counter, bound, body);
    }
    program.terminate()
}

/// The best `count` APCs of a program by the number of instructions executed.
pub fn build(program: &GuestProgram, count: u64) -> (OriginalAirs, Vec<Autoprecompile>) {
    let config = inner_config();
    let engine = Engine::new(small_params());
    let airs = OriginalAirs::extract::<Engine, _>(&engine, &Rv32ImCpuBuilder, &config)
        .expect("RV32IM has original AIRs");
    let profile = execution_profile(&config, &program.exe, vec![]).expect("the program runs");
    let settings = ApcSettings {
        autoprecompiles: count,
        pgo: Pgo::Instruction,
        ..Default::default()
    };
    let apcs =
        build_apcs(program, Some(&profile), &airs, &settings).expect("the program has loops");
    (airs, apcs)
}

/// A VM with APCs, its keys, and the program that calls them.
pub struct Prover {
    pub vm: Vm,
    pub pk: MultiStarkProvingKey<Config>,
    pub vk: MultiStarkVerifyingKey<Config>,
    pub exe: Arc<VmExe<F>>,
    pub labels: Labels,
}

impl Prover {
    /// Sets a VM up for `program` with `count` APCs.
    pub fn new(program: &GuestProgram, count: u64) -> Self {
        let (airs, apcs) = build(program, count);
        assert_eq!(apcs.len() as u64, count);
        Self::with_apcs(program, &airs, apcs)
    }

    pub fn with_apcs(
        program: &GuestProgram,
        airs: &OriginalAirs,
        apcs: Vec<Autoprecompile>,
    ) -> Self {
        let exe = rewrite_program(&program.exe, &apcs).expect("the APCs are this program's");
        let config = ApcVmConfig::new(
            inner_config(),
            airs.buses.clone(),
            apcs,
            BusKernel::default(),
        )
        .expect("powdr's APCs are sound");
        let labels = Labels::from_airs(
            VmCircuitConfig::<Config>::create_airs(&config)
                .expect("the configuration is consistent")
                .into_airs(),
        )
        .with_buses(&airs.buses);
        let engine = Engine::new(small_params());
        let (mut vm, pk) =
            VirtualMachine::new_with_keygen(engine, ApcVmBuilder(Rv32ImCpuBuilder), config)
                .expect("the configuration is consistent");
        let program_trace = vm.commit_program_on_device(&exe.program);
        vm.load_program(program_trace);
        Self {
            vm,
            vk: pk.get_vk(),
            pk,
            exe: Arc::new(exe),
            labels,
        }
    }

    /// AIR id by the AIR's type name.
    pub fn air(&self, type_name: &str) -> usize {
        self.pk
            .per_air
            .iter()
            .position(|air| air.air_name.starts_with(type_name))
            .expect("the VM has the AIR")
    }

    /// Generates the traces of every segment and hands them to `each`. `max_memory` lowers the segment limit.
    pub fn for_each_segment(
        &mut self,
        max_memory: Option<usize>,
        mut each: impl FnMut(&mut Self, usize, Context),
    ) -> VmState<F, GuestMemory> {
        let mut metered = self.vm.build_metered_ctx(&self.exe);
        if let Some(max_memory) = max_memory {
            metered = metered.with_max_memory(max_memory);
        }
        let (segments, _) = self
            .vm
            .metered_interpreter(&self.exe)
            .expect("the program is valid")
            .execute_metered(vec![], metered)
            .expect("the program terminates");
        let mut interpreter = self
            .vm
            .preflight_interpreter(&self.exe)
            .expect("the program is valid");
        let mut state = self.vm.create_initial_state(&self.exe, vec![]);
        for (index, segment) in segments.iter().enumerate() {
            self.vm.transport_init_memory_to_device(&state.memory);
            let PreflightExecutionOutput {
                system_records,
                record_arenas,
                to_state,
            } = self
                .vm
                .execute_preflight(
                    &mut interpreter,
                    state,
                    Some(segment.num_insns),
                    &segment.trace_heights,
                )
                .expect("metered execution went through the same instructions");
            state = to_state;
            let context = self
                .vm
                .generate_proving_ctx(system_records, record_arenas)
                .expect("the segment keeps to the limits");
            each(self, index, context);
        }
        state
    }

    /// The traces of a program of one segment.
    pub fn traces(&mut self) -> Context {
        let mut contexts = vec![];
        self.for_each_segment(None, |_, _, context| contexts.push(context));
        assert_eq!(contexts.len(), 1, "the program is one segment");
        contexts.remove(0)
    }

    pub fn mock(&self, context: &Context) -> Result<MockReport, MockError> {
        mock::check(&self.vm.engine, self.vm.pk(), context, &self.labels)
    }

    /// A proof of these traces, or `None` where the prover itself sees that they are wrong.
    pub fn prove(&self, context: Context) -> Option<Proof<Config>> {
        self.vm.engine.prove(self.vm.pk(), context).ok()
    }

    /// Whether a proof of these traces comes into being and verifies.
    pub fn accepts(&self, context: Context) -> bool {
        self.prove(context)
            .is_some_and(|proof| self.vm.engine.verify(&self.vk, &proof).is_ok())
    }
}
