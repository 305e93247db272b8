//! The original AIRs as they come out of whole VM configurations.

use std::collections::{BTreeMap, BTreeSet};

use openvm_apc::apc::{isa, OriginalAirs, APC_OPCODE_OFFSET};
use openvm_circuit::arch::{instructions::LocalOpcode, SystemConfig, VmExecutionConfig};
use openvm_rv32im_transpiler::{
    BaseAluOpcode, BranchEqualOpcode, BranchLessThanOpcode, DivRemOpcode, LessThanOpcode,
    MulHOpcode, MulOpcode, Rv32AuipcOpcode, Rv32HintStoreOpcode, Rv32JalLuiOpcode, Rv32JalrOpcode,
    Rv32LoadStoreOpcode, ShiftOpcode,
};
use openvm_sdk_config::{SdkVmConfig, SdkVmCpuBuilder};
use openvm_stark_backend::StarkEngine;
use openvm_stark_sdk::config::{
    app_params_with_100_bits_security, baby_bear_poseidon2::BabyBearPoseidon2CpuEngine,
};
use powdr_autoprecompiles::{
    expression::{AlgebraicEvaluator, RowEvaluator},
    InstructionHandler,
};
use powdr_number::BabyBearField;

fn extract(config: &SdkVmConfig) -> OriginalAirs {
    let engine = BabyBearPoseidon2CpuEngine::new(app_params_with_100_bits_security(20));
    OriginalAirs::extract::<BabyBearPoseidon2CpuEngine, _>(&engine, &SdkVmCpuBuilder, config)
        .expect("the configuration is one of OpenVM's own")
}

/// The global opcodes of a class that has `count` of them.
fn opcodes<O: LocalOpcode>(count: usize) -> Vec<usize> {
    (O::CLASS_OFFSET..O::CLASS_OFFSET + count).collect()
}

/// The RV32IM instructions and the number of main columns of their AIRs in OpenVM 2.0.2.
fn rv32im() -> Vec<(Vec<usize>, usize)> {
    use Rv32JalLuiOpcode::{JAL, LUI};
    use Rv32LoadStoreOpcode::{LOADB, LOADH};
    let sign_extending = [LOADB, LOADH].map(|opcode| opcode.global_opcode().as_usize());
    let plain = opcodes::<Rv32LoadStoreOpcode>(8)
        .into_iter()
        .filter(|opcode| !sign_extending.contains(opcode))
        .collect();
    vec![
        (opcodes::<BaseAluOpcode>(5), 36),
        (opcodes::<ShiftOpcode>(3), 53),
        (opcodes::<LessThanOpcode>(2), 37),
        (plain, 41),
        (sign_extending.to_vec(), 36),
        (opcodes::<BranchEqualOpcode>(2), 26),
        (opcodes::<BranchLessThanOpcode>(4), 32),
        (
            [JAL, LUI]
                .map(|opcode| opcode.global_opcode().as_usize())
                .to_vec(),
            18,
        ),
        (opcodes::<Rv32JalrOpcode>(1), 28),
        (opcodes::<Rv32AuipcOpcode>(1), 20),
        (opcodes::<MulOpcode>(1), 31),
        (opcodes::<MulHOpcode>(3), 39),
        (opcodes::<DivRemOpcode>(4), 59),
    ]
}

#[test]
fn every_rv32im_instruction_has_its_air_in_every_configuration() {
    for config in [SdkVmConfig::riscv32(), SdkVmConfig::standard()] {
        let airs = extract(&config);
        let mut served = BTreeSet::new();
        let mut widths = BTreeMap::new();
        for (opcodes, width) in rv32im() {
            let indices: BTreeSet<_> = opcodes
                .iter()
                .map(|&opcode| {
                    airs.air_of_opcode(opcode)
                        .unwrap_or_else(|| panic!("opcode {opcode:#x} has no AIR"))
                })
                .collect();
            assert_eq!(indices.len(), 1, "{opcodes:x?} share one AIR");
            let index = *indices.first().expect("there is one");
            assert!(
                served.insert(index),
                "{opcodes:x?} have an AIR of their own"
            );
            let air = airs.air(index).expect("it serves an opcode");
            widths.insert(air.name.clone(), (air.width, width));
            assert_eq!(air.stats.main_columns, air.width);
        }
        for (name, (found, expected)) in &widths {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(
            airs.airs().count(),
            served.len(),
            "and no other AIR is taken"
        );
    }
}

#[test]
fn what_an_apc_cannot_hold_is_not_served() {
    let config = SdkVmConfig::standard();
    let airs = extract(&config);
    let executors = VmExecutionConfig::<openvm_apc::bus::F>::create_executors(&config)
        .expect("the configuration is one of OpenVM's own");
    let all: Vec<usize> = executors
        .instruction_lookup
        .keys()
        .map(|opcode| opcode.as_usize())
        .collect();
    assert!(all.iter().all(|&opcode| opcode < APC_OPCODE_OFFSET));
    let rv32im: BTreeSet<usize> = rv32im()
        .into_iter()
        .flat_map(|(opcodes, _)| opcodes)
        .collect();
    assert!(
        all.len() > rv32im.len() + 20,
        "the extensions bring their own"
    );
    for opcode in all {
        assert_eq!(
            airs.air_of_opcode(opcode).is_some(),
            rv32im.contains(&opcode)
        );
        assert_eq!(isa::is_allowed(opcode), rv32im.contains(&opcode));
    }
    for hint in opcodes::<Rv32HintStoreOpcode>(2) {
        assert_eq!(airs.air_of_opcode(hint), None);
    }
}

#[test]
fn padding_rows_satisfy_the_extracted_constraints_within_the_degree_bound() {
    let airs = extract(&SdkVmConfig::riscv32());
    let bound = airs.degree_bound();
    for (_, air) in airs.airs() {
        let zeros = vec![BabyBearField::from(0u32); air.width];
        let row = RowEvaluator::new(&zeros);
        for constraint in &air.machine.constraints {
            assert_eq!(
                row.eval_expr(&constraint.expr),
                BabyBearField::from(0u32),
                "{}: {constraint}",
                air.name
            );
        }
        assert!(air.machine.degree() <= bound.identities, "{}", air.name);
        for interaction in &air.machine.bus_interactions {
            assert_eq!(row.eval_expr(&interaction.mult), BabyBearField::from(0u32));
        }
        let ids: BTreeSet<u64> = air.machine.main_columns().map(|column| column.id).collect();
        assert_eq!(ids, (0..air.width as u64).collect(), "{}", air.name);
        let names: BTreeSet<String> = air
            .machine
            .main_columns()
            .map(|column| column.name.to_string())
            .collect();
        assert_eq!(names.len(), air.width, "{}: names are unique", air.name);
        assert!(
            names.iter().all(|name| !name.starts_with("column_")),
            "{}: OpenVM's own column names",
            air.name
        );
    }
}

#[test]
fn buses_and_table_sizes_are_the_configurations() {
    let plain = extract(&SdkVmConfig::riscv32()).buses;
    assert_eq!((plain.execution, plain.memory, plain.program), (0, 1, 2));
    let checker = plain
        .tables
        .variable_range_checker
        .expect("every VM has it");
    assert_eq!((checker.bus_id, checker.range_max_bits), (3, 17));
    let tuple = plain.tables.range_tuple_checker.expect("RV32M brings it");
    assert_eq!((tuple.bus_id, tuple.sizes), (7, [256, 2048]));
    assert_eq!(
        plain.tables.bitwise_lookup.expect("RV32I brings it").bus_id,
        6
    );

    // Another configuration has other sizes: the big integers want larger second values.
    let large = extract(&SdkVmConfig::standard()).buses;
    let tuple = large.tables.range_tuple_checker.expect("RV32M brings it");
    assert!(tuple.sizes[1] > 2048, "{tuple:?}");
    let ids: BTreeSet<u64> = [
        large.execution,
        large.memory,
        large.program,
        tuple.bus_id,
        large
            .tables
            .variable_range_checker
            .expect("every VM has it")
            .bus_id,
        large.tables.bitwise_lookup.expect("RV32I brings it").bus_id,
    ]
    .into();
    assert_eq!(ids.len(), 6);

    // The degree bound follows the system's.
    let mut quartic = SdkVmConfig::riscv32();
    let system: &mut SystemConfig = quartic.as_mut();
    system.max_constraint_degree = 4;
    assert_eq!(extract(&quartic).degree_bound().identities, 4);
}
