//! Building APCs of the shipped guest: the round of the keccak permutation is one block.

use openvm_apc::{
    apc::{build_apcs, execution_profile, ApcError, ApcSettings, GuestProgram, OriginalAirs, Pgo},
    bus::F,
};
use openvm_sdk_config::{SdkVmConfig, SdkVmCpuBuilder, TranspilerConfig};
use openvm_stark_backend::StarkEngine;
use openvm_stark_sdk::config::{
    app_params_with_100_bits_security, baby_bear_poseidon2::BabyBearPoseidon2CpuEngine,
};
use p3_field::PrimeCharacteristicRing;

const ELF: &[u8] = include_bytes!("../../guests/keccak/guest-keccak.elf");

fn load(elf: &[u8]) -> Result<GuestProgram, ApcError> {
    GuestProgram::from_elf(elf, SdkVmConfig::riscv32().transpiler())
}

#[test]
fn the_permutations_round_is_the_best_block() {
    let config = SdkVmConfig::riscv32();
    let program = load(ELF).expect("the guest is what this project ships");
    let input = 1u32.to_le_bytes().map(F::from_u8).to_vec();
    let profile = execution_profile(&config, &program.exe, vec![input]).expect("the guest runs");
    let engine = BabyBearPoseidon2CpuEngine::new(app_params_with_100_bits_security(20));
    let airs =
        OriginalAirs::extract::<BabyBearPoseidon2CpuEngine, _>(&engine, &SdkVmCpuBuilder, &config)
            .expect("the configuration is one of OpenVM's own");
    let settings = ApcSettings {
        autoprecompiles: 1,
        pgo: Pgo::Instruction,
        ..Default::default()
    };
    let apcs = build_apcs(&program, Some(&profile), &airs, &settings).expect("powdr builds it");
    let [round] = apcs.as_slice() else {
        panic!("one APC was asked for")
    };
    assert_eq!(round.profile_executions, 24, "rounds of one permutation");
    assert_eq!(round.instructions.len(), 677);
    assert_eq!(round.original_width, 27_521);
    // Of the machine itself, without the lookup of the call.
    let interactions = round.machine.bus_interactions.len() - 1;
    assert!(
        (1_950..=2_050).contains(&round.width()),
        "{}",
        round.width()
    );
    assert!((1_700..=1_750).contains(&interactions), "{interactions}");
}

#[test]
fn jump_targets_bound_blocks() {
    let program = load(ELF).expect("the guest is what this project ships");
    let base = u64::from(program.exe.program.pc_base);
    assert!(program
        .jump_targets
        .contains(&u64::from(program.exe.pc_start)));
    let end = base + 4 * program.exe.program.len() as u64;
    let blocks = program.basic_blocks();
    let mut pc = base;
    for block in &blocks {
        assert_eq!(block.start_pc, pc, "blocks follow one another without gaps");
        let length = block.instructions.len() as u64;
        for inner in 1..length {
            assert!(!program.jump_targets.contains(&(pc + 4 * inner)));
        }
        pc += 4 * length;
    }
    assert_eq!(pc, end);
}

/// Offsets of fields of the ELF header (32 bit).
mod header {
    pub const CLASS: usize = 4;
    pub const MACHINE: usize = 18;
    pub const SECTION_HEADER_OFFSET: std::ops::Range<usize> = 32..36;
    pub const SECTION_HEADER_COUNT: std::ops::Range<usize> = 48..52;
}

#[test]
fn what_is_no_such_elf_is_refused_with_a_reason() {
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut elf = ELF.to_vec();
        change(&mut elf);
        load(&elf).map(|_| ()).expect_err("it is refused")
    };
    for error in [
        changed(&|elf| elf.clear()),
        changed(&|elf| elf.truncate(100)),
        changed(&|elf| elf[0] = 0),
        changed(&|elf| elf[header::CLASS] = 2),
        changed(&|elf| elf[header::MACHINE] = 0x3e),
    ] {
        assert!(matches!(error, ApcError::Elf(_)), "{error:?}");
    }

    // Without sections there are no relocations: it runs, but tells no jump targets.
    let stripped = |elf: &mut Vec<u8>| {
        elf[header::SECTION_HEADER_OFFSET].fill(0);
        elf[header::SECTION_HEADER_COUNT].fill(0);
    };
    let error = changed(&stripped);
    assert!(matches!(error, ApcError::JumpTargets(_)), "{error:?}");
    assert!(error.to_string().contains("--emit-relocs"), "{error}");
    let mut elf = ELF.to_vec();
    stripped(&mut elf);
    GuestProgram::exe_from_elf(&elf, SdkVmConfig::riscv32().transpiler())
        .expect("it runs without APCs");

    // A word that no extension knows, in the middle of the code.
    let program = load(ELF).expect("the guest is what this project ships");
    let parsed = goblin::elf::Elf::parse(ELF).expect("the guest is an ELF");
    let code = parsed
        .program_headers
        .iter()
        .find(|part| part.p_type == goblin::elf::program_header::PT_LOAD && part.is_executable())
        .expect("the guest has code");
    let distance = 4 * (program.exe.program.len() / 2);
    let error = changed(&|elf| {
        let at = code.p_offset as usize + distance;
        elf[at..at + 4].copy_from_slice(&0xffff_ffffu32.to_le_bytes());
    });
    let expected = code.p_vaddr as u32 + distance as u32;
    assert!(
        matches!(error, ApcError::UnsupportedInstruction { pc, word: 0xffff_ffff } if pc == expected),
        "{error}"
    );
}
