//! Building APCs of programs assembled by hand.

use std::collections::BTreeSet;

use crate::common::{inner_config, loops, small_params, Assembler, Engine};
use openvm_apc::{
    apc::{
        build_apcs, execution_profile, rewrite_program, ApcError, ApcSettings, Autoprecompile,
        GuestProgram, OriginalAirs, Pgo, APC_OPCODE_OFFSET,
    },
    bus::F,
    vm::binding::Binding,
};
use openvm_circuit::arch::instructions::{exe::VmExe, program::Program};
use openvm_rv32im_circuit::Rv32ImCpuBuilder;
use openvm_rv32im_transpiler::BaseAluOpcode;
use openvm_stark_backend::StarkEngine;
use p3_field::PrimeCharacteristicRing;
use powdr_autoprecompiles::{
    execution_profile::ExecutionProfile,
    expression::{AlgebraicEvaluator, MappingRowEvaluator},
    InstructionHandler,
};
use powdr_number::BabyBearField;

fn original_airs() -> OriginalAirs {
    OriginalAirs::extract::<Engine, _>(
        &Engine::new(small_params()),
        &Rv32ImCpuBuilder,
        &inner_config(),
    )
    .expect("RV32IM has original AIRs")
}

fn profile(program: &GuestProgram) -> ExecutionProfile {
    execution_profile(&inner_config(), &program.exe, vec![]).expect("the program runs")
}

fn settings(autoprecompiles: u64, pgo: Pgo) -> ApcSettings {
    ApcSettings {
        autoprecompiles,
        pgo,
        ..Default::default()
    }
}

fn build(program: &GuestProgram, settings: &ApcSettings) -> Vec<Autoprecompile> {
    let profile = (settings.pgo != Pgo::None).then(|| profile(program));
    build_apcs(program, profile.as_ref(), &original_airs(), settings).expect("powdr builds it")
}

fn pcs(apcs: &[Autoprecompile]) -> Vec<u32> {
    apcs.iter().map(|apc| apc.start_pc).collect()
}

fn json(apcs: &[Autoprecompile]) -> String {
    serde_json::to_string(apcs).expect("APCs have no maps with odd keys")
}

#[test]
fn an_apc_is_complete_and_bound_to_its_block() {
    let program = loops(&[5, 9]);
    let airs = original_airs();
    let profile = profile(&program);
    let apcs = build_apcs(&program, Some(&profile), &airs, &settings(2, Pgo::Cell))
        .expect("powdr builds it");
    assert_eq!(apcs.len(), 2);
    for (index, apc) in apcs.iter().enumerate() {
        assert_eq!(apc.opcode, APC_OPCODE_OFFSET + index);
        assert_eq!(apc.name, format!("Autoprecompile_{:#010x}", apc.start_pc));
        assert_eq!(
            Some(&apc.profile_executions),
            profile.pc_count.get(&u64::from(apc.start_pc))
        );
        // The block's instructions, in the program's words, with a substitution list and an AIR each.
        for (position, instruction) in apc.instructions.iter().enumerate() {
            let slot = apc.start_pc as usize / 4 + position;
            let (original, _) = program
                .exe
                .program
                .get_instruction_and_debug_info(slot)
                .expect("the program has the block");
            assert_eq!(instruction.to_openvm(), *original);
        }
        assert_eq!(apc.substitutions.len(), apc.instructions.len());
        assert_eq!(apc.original_airs.len(), apc.instructions.len());
        let width: usize = apc
            .original_airs
            .iter()
            .map(|&air| airs.air(air).expect("it serves an instruction").width)
            .sum();
        assert_eq!(apc.original_width, width);
        assert!(apc.width() < width, "an APC saves columns");

        // Every column comes from somewhere, once: from an original row, or by derivation.
        let columns: Vec<u64> = apc.columns.iter().map(|column| column.poly_id).collect();
        let referenced: Vec<u64> = apc.machine.main_columns().map(|column| column.id).collect();
        assert_eq!(columns, referenced);
        let mut sources = vec![];
        for (air, substitutions) in apc.original_airs.iter().zip(&apc.substitutions) {
            let original = airs.air(*air).expect("it serves an instruction");
            for substitution in substitutions {
                assert!(substitution.original_poly_index < original.width);
                sources.push(substitution.apc_poly_id);
            }
        }
        sources.extend(
            apc.machine
                .derived_columns
                .iter()
                .filter(|derived| derived.is_new)
                .map(|derived| derived.variable.id),
        );
        let distinct: BTreeSet<u64> = sources.iter().copied().collect();
        assert_eq!(distinct.len(), sources.len(), "no column has two sources");
        assert_eq!(distinct, columns.iter().copied().collect());
        assert_eq!(apc.column_indices().len(), apc.width());

        let bound = airs.degree_bound();
        assert!(apc.machine.degree() <= bound.identities);
        Binding::of(apc, &airs.buses).expect("powdr's machines are bound");
        assert!(padding_is_inert(apc));
    }
}

/// Whether a row of zeros satisfies every constraint and takes part in no interaction.
fn padding_is_inert(apc: &Autoprecompile) -> bool {
    let zero = BabyBearField::from(0u32);
    let zeros = vec![zero; apc.width()];
    let indices = apc.column_indices();
    let row = MappingRowEvaluator::new(&zeros, &indices);
    let constraints = &apc.machine.constraints;
    let interactions = &apc.machine.bus_interactions;
    constraints
        .iter()
        .all(|constraint| row.eval_expr(&constraint.expr) == zero)
        && interactions
            .iter()
            .all(|interaction| row.eval_expr(&interaction.mult) == zero)
}

#[test]
fn rankings_differ_and_skip_takes_from_the_top() {
    let program = loops(&[2, 9, 4]);
    let bodies: Vec<u32> = program.jump_targets.iter().map(|&pc| pc as u32).collect();
    let by_executions = build(&program, &settings(2, Pgo::Instruction));
    assert_eq!(by_executions[0].profile_executions, 9);
    assert!(bodies.contains(&by_executions[0].start_pc));
    let skipped = build(
        &program,
        &ApcSettings {
            skip: 1,
            ..settings(1, Pgo::Instruction)
        },
    );
    assert_eq!(pcs(&skipped), pcs(&by_executions)[1..]);
    // The longest block has the most subtractions, and the fewest rounds but one.
    let by_length = build(&program, &settings(1, Pgo::None));
    let longest = by_length[0].instructions.len();
    assert!(by_executions
        .iter()
        .all(|apc| apc.instructions.len() <= longest));
    assert_eq!(by_length[0].profile_executions, 0);
}

#[test]
fn more_than_the_program_has_is_what_it_has() {
    let program = loops(&[3]);
    let all = build(&program, &settings(u64::MAX, Pgo::Cell));
    assert!(!all.is_empty() && all.len() < 10);
    for apc in &all {
        assert!(apc.instructions.len() >= 2);
        assert!(apc.profile_executions > 0);
    }
    let skipped = ApcSettings {
        skip: u64::MAX,
        ..settings(u64::MAX, Pgo::Instruction)
    };
    assert!(build(&program, &skipped).is_empty());
    assert!(build(&program, &settings(0, Pgo::Cell)).is_empty());
    let narrow = ApcSettings {
        max_columns: Some(all[0].width()),
        ..settings(u64::MAX, Pgo::Cell)
    };
    let narrow = build(&program, &narrow);
    assert!(narrow.iter().map(Autoprecompile::width).sum::<usize>() <= all[0].width());
    assert!(narrow.len() < all.len());
}

#[test]
fn the_same_program_gives_the_same_apcs() {
    let program = loops(&[3, 7]);
    let first = build(&program, &settings(3, Pgo::Cell));
    let second = build(&program, &settings(3, Pgo::Cell));
    assert_eq!(json(&first), json(&second));
    let read: Vec<Autoprecompile> =
        serde_json::from_str(&json(&first)).expect("it was written by serde");
    assert_eq!(json(&read), json(&first));
}

#[test]
fn jumps_that_nobody_told_of_are_seen_in_the_profile() {
    let known = loops(&[6]);
    let unknown = GuestProgram {
        jump_targets: BTreeSet::new(),
        ..known.clone()
    };
    let settings = settings(1, Pgo::Instruction);
    assert_eq!(
        json(&build(&unknown, &settings)),
        json(&build(&known, &settings))
    );
}

#[test]
fn a_block_that_cannot_be_built_is_left_out() {
    use BaseAluOpcode::{ADD, XOR};
    const TARGET: usize = 28;
    let mut program = Assembler::default();
    program.alu_immediate(ADD, 5, 0, 1);
    program.alu(XOR, 6, 5, 5);
    program.branch_not_equal(5, 0, TARGET);
    // Behind the jump: the longest block, with an instruction that no row of its AIR can stand for (the address space
    // of its second operand is neither registers nor immediate).
    let odd = program.pc() as u32;
    for _ in 0..4 {
        program.alu(ADD, 5, 5, 5);
    }
    let target = program.label();
    program.alu(ADD, 6, 6, 6);
    program.alu(XOR, 6, 6, 5);
    let mut program = program.terminate();
    assert_eq!(target, TARGET);
    let (slot, _) = program.exe.program.instructions_and_debug_infos[odd as usize / 4]
        .as_mut()
        .expect("there is an instruction");
    slot.e = F::from_u32(7);

    for (count, expected) in [(5, vec![0, TARGET as u32]), (1, vec![0])] {
        let apcs = build_apcs(
            &program,
            None,
            &original_airs(),
            &settings(count, Pgo::None),
        )
        .expect("the other blocks can be built");
        assert_eq!(pcs(&apcs), expected);
    }
}

#[test]
fn a_ranking_by_profile_needs_one() {
    let program = loops(&[3]);
    for pgo in [Pgo::Cell, Pgo::Instruction] {
        let refused = build_apcs(&program, None, &original_airs(), &settings(1, pgo));
        assert!(matches!(refused, Err(ApcError::MissingProfile)));
    }
    // A profile of another program is no reason to panic.
    let foreign = ExecutionProfile {
        pc_count: [(0x40_0000, 1)].into(),
        pc_list: vec![0x40_0000],
    };
    let refused = build_apcs(
        &program,
        Some(&foreign),
        &original_airs(),
        &settings(1, Pgo::Cell),
    );
    assert!(matches!(refused, Err(ApcError::Optimizer(_))));
}

#[test]
fn candidates_are_written_where_asked() {
    let program = loops(&[3]);
    let directory = tempfile::tempdir().expect("the platform has one");
    let inspected = ApcSettings {
        candidates_directory: Some(directory.path().join("candidates")),
        ..settings(1, Pgo::Cell)
    };
    assert_eq!(
        json(&build(&program, &inspected)),
        json(&build(&program, &settings(1, Pgo::Cell)))
    );
    let written = std::fs::read_to_string(directory.path().join("candidates/apc_candidates.json"))
        .expect("powdr has written it");
    let written: serde_json::Value = serde_json::from_str(&written).expect("it is JSON");
    assert!(written["apcs"]
        .as_array()
        .is_some_and(|apcs| !apcs.is_empty()));

    let file = directory.path().join("file");
    std::fs::write(&file, "").expect("the directory is ours");
    let refused = build_apcs(
        &program,
        Some(&profile(&program)),
        &original_airs(),
        &ApcSettings {
            candidates_directory: Some(file.join("below")),
            ..settings(1, Pgo::Cell)
        },
    );
    assert!(matches!(refused, Err(ApcError::CandidatesDirectory { .. })));
}

#[test]
fn rewriting_replaces_first_instructions_of_the_right_program_only() {
    let program = loops(&[5, 9]);
    let apcs = build(&program, &settings(2, Pgo::Instruction));
    let rewritten = rewrite_program(&program.exe, &apcs).expect("it is their program");
    let before = &program.exe.program.instructions_and_debug_infos;
    let after = &rewritten.program.instructions_and_debug_infos;
    assert_eq!(before.len(), after.len());
    for (slot, (before, after)) in before.iter().zip(after).enumerate() {
        let apc = apcs.iter().find(|apc| apc.start_pc as usize == 4 * slot);
        match apc {
            Some(apc) => {
                let (call, _) = after.as_ref().expect("the call stands there");
                assert_eq!(*call, apc.call_instruction());
                assert_eq!(call.opcode.as_usize(), apc.opcode);
            }
            None => assert_eq!(
                before.as_ref().map(|slot| &slot.0),
                after.as_ref().map(|slot| &slot.0)
            ),
        }
    }

    let other = loops(&[5, 8]);
    let refused = rewrite_program(&loops(&[1]).exe, &apcs);
    assert!(matches!(refused, Err(ApcError::ForeignApc { .. })));
    // The loops' bodies are those of the other program too: its bounds are set outside.
    assert!(rewrite_program(&other.exe, &apcs).is_ok());
    // A program that begins elsewhere, and an empty one.
    let mut moved = program.exe.clone();
    moved.program.pc_base = 0x1000;
    assert!(matches!(
        rewrite_program(&moved, &apcs),
        Err(ApcError::ForeignApc { .. })
    ));
    let empty = VmExe::new(Program::from_instructions(&[]));
    assert!(matches!(
        rewrite_program(&empty, &apcs),
        Err(ApcError::ForeignApc { .. })
    ));
}

#[test]
fn a_profile_lists_every_pc_to_the_end() {
    let program = loops(&[4]);
    let profile = profile(&program);
    let end = (program.exe.program.len() as u64 - 1) * 4;
    assert_eq!(profile.pc_list.first(), Some(&0));
    assert_eq!(profile.pc_list.last(), Some(&end));
    let body = *program.jump_targets.first().expect("there is a loop");
    assert_eq!(profile.pc_count[&body], 4);
    let total: u32 = profile.pc_count.values().sum();
    assert_eq!(total as usize, profile.pc_list.len());

    // Running off the program is an error that says where.
    let mut endless = program.exe.clone();
    endless.program.instructions_and_debug_infos.pop();
    let error = execution_profile(&inner_config(), &endless, vec![]);
    assert!(matches!(error, Err(ApcError::Profile { pc, .. }) if u64::from(pc) == end));
}
