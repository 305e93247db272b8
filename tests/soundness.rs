//! What `docs/soundness.md` claims, tried out: traces and proofs that differ from the execution are refused, by the
//! mock prover (which says what is wrong) and by the verifier.

mod common;

use common::{build, loops, Assembler, Config, Context, Prover};
use openvm_apc::{
    apc::{Autoprecompile, GuestProgram},
    bus::{BusKernel, F},
    vm::{
        mock::{MockError, Unsatisfied},
        ApcVmConfig, ApcVmError,
    },
};
use openvm_circuit::{
    arch::{instructions::exe::VmExe, verify_segments, VmCircuitConfig},
    system::program::trace::compute_exe_commit_from_mem_config,
};
use openvm_rv32im_transpiler::BaseAluOpcode;
use openvm_stark_backend::{
    p3_matrix::dense::RowMajorMatrix, soundness::SoundnessCalculator, StarkEngine,
};
use openvm_stark_sdk::config::{app_params_with_100_bits_security, MAX_APP_LOG_STACKED_HEIGHT};
use p3_field::{PrimeCharacteristicRing, PrimeField32};

const ROUNDS: isize = 5;

/// One loop of five rounds, its body an APC.
fn prover() -> Prover {
    Prover::new(&loops(&[ROUNDS]), 1)
}

fn apc_air(prover: &Prover) -> usize {
    let (air, _) = prover.labels.airs.iter().next().expect("there is an APC");
    *air
}

fn trace(context: &mut Context, air: usize) -> &mut RowMajorMatrix<F> {
    let (_, air_context) = context
        .per_trace
        .iter_mut()
        .find(|(id, _)| *id == air)
        .expect("the AIR has a trace");
    &mut air_context.common_main
}

fn cell(trace: &mut RowMajorMatrix<F>, row: usize, column: usize) -> &mut F {
    &mut trace.values[row * trace.width + column]
}

fn column(prover: &Prover, air: usize, name: &str) -> usize {
    prover.labels.columns[&air]
        .iter()
        .position(|column| column == name)
        .expect("the AIR has the column")
}

fn refusal(prover: &Prover, context: &Context) -> Unsatisfied {
    match prover.mock(context) {
        Err(MockError::Unsatisfied(unsatisfied)) => *unsatisfied,
        other => panic!("the traces are wrong, but the mock prover says {other:?}"),
    }
}

#[test]
fn an_execution_is_accepted_for_its_program_and_no_other() {
    let program = loops(&[ROUNDS]);
    let mut prover = prover();
    let mut context = prover.traces();
    let air = apc_air(&prover);
    let apc_trace = trace(&mut context, air);
    assert_eq!(
        apc_trace.values.len() / apc_trace.width,
        8,
        "five calls, padded"
    );
    prover.mock(&context).expect("the traces are right");
    let proof = prover.prove(context).expect("the traces are right");
    let verified = verify_segments(&prover.vm.engine, &prover.vk, std::slice::from_ref(&proof))
        .expect("the proof is right");

    // The commitment that comes out is that of the rewritten program, not of the original one.
    let memory_config = &prover.vm.config().as_ref().memory_config;
    let commitment = |exe: &VmExe<F>| {
        let trace = prover.vm.commit_program_on_device(&exe.program);
        compute_exe_commit_from_mem_config(&trace.commitment, exe, memory_config)
    };
    assert_eq!(verified.exe_commit, commitment(&prover.exe));
    assert_ne!(verified.exe_commit, commitment(&program.exe));
    let other = Prover::new(&loops(&[ROUNDS + 1]), 1);
    assert_ne!(verified.exe_commit, commitment(&other.exe));

    // The key of a VM without the APC, or with another one, does not verify it.
    let plain = VmCircuitConfig::<Config>::create_airs(prover.vm.config().inner())
        .expect("the configuration is consistent")
        .keygen(prover.vm.engine.config());
    assert!(prover.vm.engine.verify(&plain.get_vk(), &proof).is_err());
    let two_loops = loops(&[2, ROUNDS]);
    let other_apc = Prover::new(&two_loops, 1);
    assert!(prover.vm.engine.verify(&other_apc.vk, &proof).is_err());
}

#[test]
fn traces_of_another_program_are_refused() {
    let program = loops(&[ROUNDS]);
    let mut prover = prover();
    // The traces of the calls, with the original program: nothing there has the APC's opcode.
    let original = prover.vm.commit_program_on_device(&program.exe.program);
    prover.vm.load_program(original);
    let context = prover.traces();
    let unsatisfied = refusal(&prover, &context);
    assert!(unsatisfied
        .messages
        .iter()
        .all(|message| message.bus.contains("program")));
    assert!(!prover.accepts(context));
}

#[test]
fn tampered_cells_are_refused() {
    let mut prover = prover();
    let air = apc_air(&prover);
    let mut context = prover.traces();
    let columns = trace(&mut context, air).width;
    let mut free = vec![];
    for column in 0..columns {
        let value = *cell(trace(&mut context, air), 1, column);
        *cell(trace(&mut context, air), 1, column) = value + F::from_u32(3);
        match prover.mock(&context) {
            Ok(_) => free.push(prover.labels.columns[&air][column].clone()),
            Err(MockError::Unsatisfied(unsatisfied)) => {
                let apc = &prover.labels.airs[&air];
                let named = unsatisfied.constraints.iter().any(|violation| {
                    violation.air == *apc && violation.row == 1 && violation.rows == 1
                }) || unsatisfied.messages.iter().any(|message| {
                    message
                        .contributions
                        .iter()
                        .any(|contribution| contribution.air == *apc && contribution.row == 1)
                });
                assert!(named, "column {column}: {unsatisfied}");
            }
            Err(other) => panic!("column {column}: {other}"),
        }
        *cell(trace(&mut context, air), 1, column) = value;
    }
    // Witnesses that nothing needs on this row.
    assert_eq!(free, Vec::<String>::new());
    prover.mock(&context).expect("all cells are restored");

    for column in [0, columns / 2, columns - 1] {
        let mut context = prover.traces();
        *cell(trace(&mut context, air), 1, column) += F::from_u32(3);
        assert!(!prover.accepts(context), "column {column}");
    }
}

#[test]
fn wrong_periphery_multiplicities_are_refused() {
    let mut prover = prover();
    for (air_name, bus, change) in [
        ("VariableRangeCheckerAir", "variable range", F::ONE),
        ("VariableRangeCheckerAir", "variable range", -F::ONE),
        ("BitwiseOperationLookupAir", "bitwise", F::ONE),
        ("BitwiseOperationLookupAir", "bitwise", -F::ONE),
    ] {
        let table = prover.air(air_name);
        let multiplicities: Vec<usize> = prover.labels.columns[&table]
            .iter()
            .enumerate()
            .filter(|(_, name)| name.starts_with("mult"))
            .map(|(column, _)| column)
            .collect();
        let mut context = prover.traces();
        let table_trace = trace(&mut context, table);
        let used = (0..table_trace.values.len() / table_trace.width)
            .flat_map(|row| multiplicities.iter().map(move |column| (row, *column)))
            .find(|(row, column)| *cell(table_trace, *row, *column) != F::ZERO);
        let (row, multiplicity) = used.expect("the program uses the table");
        *cell(table_trace, row, multiplicity) += change;
        let unsatisfied = refusal(&prover, &context);
        assert_eq!(unsatisfied.violated_constraints, 0, "{unsatisfied}");
        assert_eq!(unsatisfied.unbalanced_messages, 1, "{unsatisfied}");
        assert!(unsatisfied.messages[0].bus.contains(bus));
        assert!(!prover.accepts(context));
    }
}

#[test]
fn a_row_more_or_less_than_the_calls_is_refused() {
    let mut prover = prover();
    let air = apc_air(&prover);
    let is_valid = column(&prover, air, "is_valid");
    let program_air = prover.air("ProgramAir");
    let pc = prover.exe.program.instructions_and_debug_infos.iter();
    let call = pc
        .clone()
        .position(|slot| {
            slot.as_ref()
                .is_some_and(|(instruction, _)| instruction.opcode.as_usize() >= 0x10_0000)
        })
        .expect("the program calls the APC");

    for (from, to) in [(ROUNDS as usize - 1, ROUNDS as usize), (7, 2)] {
        let mut context = prover.traces();
        // Copy a live row over a padding row, or a padding row over a live one.
        let apc_trace = trace(&mut context, air);
        let width = apc_trace.width;
        let row = apc_trace.values[from * width..][..width].to_vec();
        let change = row[is_valid] - apc_trace.values[to * width + is_valid];
        assert_ne!(change, F::ZERO);
        apc_trace.values[to * width..][..width].copy_from_slice(&row);
        let unsatisfied = refusal(&prover, &context);
        assert_eq!(unsatisfied.violated_constraints, 0, "{unsatisfied}");
        for bus in ["execution", "program"] {
            assert!(
                unsatisfied
                    .messages
                    .iter()
                    .any(|message| message.bus.contains(bus)),
                "{unsatisfied}"
            );
        }
        // Also with the program's own count brought in line.
        *cell(trace(&mut context, program_air), call, 0) += change;
        let unsatisfied = refusal(&prover, &context);
        assert!(unsatisfied
            .messages
            .iter()
            .any(|message| message.bus.contains("execution")));
        assert!(!prover.accepts(context));
    }
}

/// A block that computes in registers only: most memory accesses are optimized away, their time is not.
fn registers_only() -> GuestProgram {
    let mut program = Assembler::default();
    program.alu_immediate(BaseAluOpcode::ADD, 5, 0, 1);
    program.alu_immediate(BaseAluOpcode::ADD, 6, 0, 3);
    let body = program.label();
    for _ in 0..40 {
        program.alu(BaseAluOpcode::ADD, 5, 5, 5);
    }
    program.alu_immediate(BaseAluOpcode::ADD, 7, 7, 1);
    program.branch_not_equal(7, 6, body);
    program.terminate()
}

#[test]
fn no_row_outruns_the_bound_on_interactions() {
    let program = registers_only();
    let (airs, apcs) = build(&program, 1);
    let interactions = apcs[0].machine.bus_interactions.len();
    let mut prover = Prover::with_apcs(&program, &airs, apcs);
    let binding = prover.vm.config().apcs()[0].binding();
    assert_eq!(binding.timestamp_advance, 40 * 3 + 3 + 2);
    assert!(
        interactions < binding.timestamp_advance as usize,
        "the program is to make an APC whose time outruns its {interactions} interactions"
    );
    // The verifying key counts at least one interaction for each tick…
    let air = apc_air(&prover);
    let apc_vk = &prover.vk.inner.per_air[air];
    assert_eq!(
        apc_vk.num_interactions(),
        binding.timestamp_advance as usize
    );
    // … in the bound that the verifier puts on the trace heights.
    let bounded = prover
        .vk
        .inner
        .trace_height_constraints
        .iter()
        .any(|bound| {
            bound.threshold <= F::ORDER_U32
                && prover
                    .vk
                    .inner
                    .per_air
                    .iter()
                    .zip(&bound.coefficients)
                    .all(|(air, coefficient)| *coefficient as usize >= air.num_interactions())
        });
    assert!(bounded);
    let context = prover.traces();
    prover.mock(&context).expect("the traces are right");
    assert!(prover.accepts(context));
}

#[test]
fn apcs_keep_the_security_level() {
    let program = registers_only();
    let (airs, apcs) = build(&program, 1);
    let config = ApcVmConfig::new(
        common::inner_config(),
        airs.buses.clone(),
        apcs,
        BusKernel::default(),
    )
    .expect("powdr's APCs are sound");
    let params = app_params_with_100_bits_security(MAX_APP_LOG_STACKED_HEIGHT);
    let pk = VmCircuitConfig::<Config>::create_airs(&config)
        .expect("the configuration is consistent")
        .keygen(&Config::default_from_params(params));
    let bits = SoundnessCalculator::calculate_from_vk(&pk.get_vk()).total_bits;
    assert!(bits >= 100.0, "{bits}");
}

#[test]
fn an_apc_of_another_vm_is_refused() {
    let (airs, apcs) = build(&registers_only(), 1);
    let with = |change: fn(&mut Autoprecompile)| {
        let mut apc = apcs[0].clone();
        change(&mut apc);
        ApcVmConfig::new(
            common::inner_config(),
            airs.buses.clone(),
            vec![apc],
            BusKernel::default(),
        )
        .expect_err("the APC is of another VM")
    };
    let error = with(|apc| apc.instructions[0].opcode = 0xffff);
    assert!(
        matches!(&error, ApcVmError::UnknownInstruction { instruction, .. } if instruction.contains("0xffff")),
        "{error}"
    );
    let error = with(|apc| apc.original_airs[0] = 1000);
    assert!(
        matches!(&error, ApcVmError::OtherVm { air: 1000, .. }),
        "{error}"
    );
}

#[test]
fn several_segments_with_an_apc_in_one_and_not_in_the_next() {
    // Segments are cut every thousand instructions at the earliest. The first loop's body is called 1,500 times;
    // the second loop, called as often, is another APC.
    let mut prover = Prover::new(&loops(&[1500, 1501]), 2);
    let apcs: Vec<usize> = prover.labels.airs.keys().copied().collect();
    let mut called = vec![];
    let mut proofs = vec![];
    let mut segments = 0;
    prover.for_each_segment(Some(1), |prover, _, context| {
        segments += 1;
        prover.mock(&context).expect("the traces are right");
        called.push(
            apcs.iter()
                .map(|apc| context.per_trace.iter().any(|(air, _)| air == apc))
                .collect::<Vec<_>>(),
        );
        proofs.push(prover.prove(context).expect("the traces are right"));
    });
    assert!(segments >= 3, "{called:?}");
    assert!(
        called.windows(2).any(|pair| pair[0]
            .iter()
            .zip(&pair[1])
            .any(|(now, next)| *now && !*next)),
        "some APC is called in one segment and not in the next: {called:?}"
    );
    let verify = |proofs: &[_]| verify_segments(&prover.vm.engine, &prover.vk, proofs);
    verify(&proofs).expect("the proofs are right");

    // A segment left out, or two exchanged, breaks the chain of pc and memory.
    let mut missing = proofs.clone();
    missing.remove(1);
    assert!(verify(&missing).is_err());
    let mut exchanged = proofs.clone();
    exchanged.swap(0, 1);
    assert!(verify(&exchanged).is_err());
}
