//! A guest program: the transpiled executable, and the jump targets that bound its blocks.

use std::{
    collections::BTreeSet,
    panic::{catch_unwind, AssertUnwindSafe},
};

use openvm_circuit::arch::instructions::{exe::VmExe, program::DEFAULT_PC_STEP};
use openvm_platform::memory::MEM_SIZE;
use openvm_transpiler::{elf::Elf, transpiler::Transpiler, FromElf};
use powdr_autoprecompiles::{
    blocks::{collect_basic_blocks, BasicBlock, Program},
    execution_profile::ExecutionProfile,
};

use super::{
    adapter::OpenVmAdapter, autoprecompile::Autoprecompile, error::ApcError,
    instruction::ApcInstruction,
};
use crate::bus::F;

/// A transpiled guest with what is known of its control flow.
#[derive(Clone)]
pub struct GuestProgram {
    /// The executable as OpenVM runs it without APCs.
    pub exe: VmExe<F>,
    /// The pcs that jumps go to, as far as they are known. A missing one costs speed, not correctness: the
    /// instructions of a block stay in the program behind its first one, and a jump into its middle runs them.
    pub jump_targets: BTreeSet<u64>,
}

impl GuestProgram {
    /// Reads and transpiles a RISC-V ELF, without looking for jump targets: enough to run it without APCs.
    pub fn exe_from_elf(elf: &[u8], transpiler: Transpiler<F>) -> Result<VmExe<F>, ApcError> {
        let decoded = Elf::decode(elf, MEM_SIZE as u32)
            .map_err(|error| ApcError::Elf(format!("{error:#}")))?;
        let words = decoded.instructions.clone();
        if let Err(error) = transpiler.transpile(&words) {
            // The transpiler does not say where it stopped: find the first word it cannot take.
            return Err(match first_unsupported(&words, &transpiler) {
                Some(index) => ApcError::UnsupportedInstruction {
                    pc: first_pc(elf)?.wrapping_add(DEFAULT_PC_STEP * index as u32),
                    word: words[index],
                },
                None => ApcError::Transpile(error.to_string()),
            });
        }
        VmExe::from_elf(decoded, transpiler).map_err(|error| ApcError::Transpile(error.to_string()))
    }

    /// Reads and transpiles a RISC-V ELF that kept its relocations (`--emit-relocs`), or is position independent.
    pub fn from_elf(elf: &[u8], transpiler: Transpiler<F>) -> Result<Self, ApcError> {
        let exe = Self::exe_from_elf(elf, transpiler)?;
        Ok(Self {
            exe,
            jump_targets: jump_targets(elf)?,
        })
    }

    /// The program's basic blocks, single-instruction blocks included.
    pub fn basic_blocks(&self) -> Vec<BasicBlock<ApcInstruction>> {
        collect_basic_blocks::<OpenVmAdapter>(self, &self.jump_targets)
    }

    /// The program's basic blocks, where blocks also end at every pc that the profiled execution jumped to.
    pub fn basic_blocks_of_execution(
        &self,
        profile: &ExecutionProfile,
    ) -> Vec<BasicBlock<ApcInstruction>> {
        let step = u64::from(DEFAULT_PC_STEP);
        let mut targets = self.jump_targets.clone();
        targets.extend(profile.pc_list.first());
        targets.extend(
            profile
                .pc_list
                .windows(2)
                .filter(|pcs| pcs[1] != pcs[0] + step)
                .map(|pcs| pcs[1]),
        );
        collect_basic_blocks::<OpenVmAdapter>(self, &targets)
    }
}

/// The pc of the first instruction word: the lowest address of an executable segment.
fn first_pc(elf: &[u8]) -> Result<u32, ApcError> {
    let parsed = goblin::elf::Elf::parse(elf).map_err(|error| ApcError::Elf(error.to_string()))?;
    parsed
        .program_headers
        .iter()
        .filter(|header| header.p_type == goblin::elf::program_header::PT_LOAD)
        .filter(|header| header.is_executable())
        .map(|header| header.p_vaddr as u32)
        .min()
        .ok_or_else(|| ApcError::Elf("it has no executable segment".to_string()))
}

fn first_unsupported(words: &[u32], transpiler: &Transpiler<F>) -> Option<usize> {
    // Each extension looks at a window that starts with the word it takes, so the longest prefix that
    // transpiles ends before the first word that does not.
    let transpiles = |length: usize| transpiler.transpile(&words[..length]).is_ok();
    let (mut good, mut bad) = (0, words.len());
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if transpiles(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    (bad > good).then_some(good)
}

/// The addresses that code or data of the ELF refers to, which powdr reads off its relocations.
fn jump_targets(elf: &[u8]) -> Result<BTreeSet<u64>, ApcError> {
    // `powdr-riscv-elf` states what it refuses by panicking.
    let labels = catch_unwind(AssertUnwindSafe(|| {
        powdr_riscv_elf::load_elf_from_buffer(elf)
            .text_labels()
            .clone()
    }))
    .map_err(|payload| ApcError::JumpTargets(super::panic_message(&*payload)))?;
    Ok(labels.into_iter().map(u64::from).collect())
}

impl Program<ApcInstruction> for GuestProgram {
    fn base_pc(&self) -> u64 {
        self.exe.program.pc_base.into()
    }

    fn instructions(&self) -> Box<dyn Iterator<Item = ApcInstruction> + '_> {
        Box::new(
            self.exe
                .program
                .instructions_and_debug_infos
                .iter()
                .map(|slot| match slot {
                    Some((instruction, _)) => instruction.into(),
                    None => ApcInstruction::hole(),
                }),
        )
    }

    fn length(&self) -> u32 {
        self.exe.program.len() as u32
    }
}

/// The program with every APC's first instruction replaced by the APC's opcode, all operands zero.
///
/// The rest of a block stays, unreachable: blocks end at every jump target.
///
/// # Errors
/// [`ApcError::ForeignApc`] if an APC does not stand for the instructions that the program has at its pc.
pub fn rewrite_program(exe: &VmExe<F>, apcs: &[Autoprecompile]) -> Result<VmExe<F>, ApcError> {
    let original = &exe.program;
    let mut rewritten = exe.clone();
    for apc in apcs {
        let index = |pc: u32| (pc.wrapping_sub(original.pc_base) / DEFAULT_PC_STEP) as usize;
        for (position, instruction) in apc.instructions.iter().enumerate() {
            let pc = apc.start_pc.wrapping_add(DEFAULT_PC_STEP * position as u32);
            let same = original
                .get_instruction_and_debug_info(index(pc))
                .is_some_and(|(present, _)| ApcInstruction::from(present) == *instruction);
            if !same {
                return Err(ApcError::ForeignApc {
                    name: apc.name.clone(),
                    pc,
                });
            }
        }
        let first = rewritten
            .program
            .instructions_and_debug_infos
            .get_mut(index(apc.start_pc))
            .ok_or_else(|| ApcError::ForeignApc {
                name: apc.name.clone(),
                pc: apc.start_pc,
            })?;
        *first = Some((apc.call_instruction(), None));
    }
    Ok(rewritten)
}
