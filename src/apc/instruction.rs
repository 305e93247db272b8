//! An OpenVM instruction as powdr sees it: ordered, printable, serializable in canonical form.

use std::fmt;

use openvm_circuit::arch::instructions::{
    instruction::{Instruction, NUM_OPERANDS},
    program::DEFAULT_PC_STEP,
    LocalOpcode, SystemOpcode, VmOpcode,
};
use p3_field::{PrimeCharacteristicRing, PrimeField32};
use powdr_autoprecompiles::blocks::{Instruction as PowdrInstruction, PcStep};
use powdr_number::BabyBearField;
use serde::{Deserialize, Serialize};

use super::isa;
use crate::bus::F;

/// One instruction of a block: its opcode and its operands `a` to `g` as canonical field elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ApcInstruction {
    /// The global opcode.
    pub opcode: usize,
    /// The operands `a, b, c, d, e, f, g`, canonical.
    pub operands: [u32; NUM_OPERANDS],
}

impl ApcInstruction {
    /// What stands in for a hole in the program: an instruction that no APC may contain.
    pub fn hole() -> Self {
        Self {
            opcode: SystemOpcode::TERMINATE.global_opcode_usize(),
            operands: [0; NUM_OPERANDS],
        }
    }

    /// The same instruction in OpenVM's form.
    pub fn to_openvm(&self) -> Instruction<F> {
        let [a, b, c, d, e, f, g] = self.operands.map(F::from_u32);
        Instruction::new(VmOpcode::from_usize(self.opcode), a, b, c, d, e, f, g)
    }
}

impl From<&Instruction<F>> for ApcInstruction {
    fn from(instruction: &Instruction<F>) -> Self {
        let Instruction {
            opcode,
            a,
            b,
            c,
            d,
            e,
            f,
            g,
        } = instruction;
        Self {
            opcode: opcode.as_usize(),
            operands: [a, b, c, d, e, f, g].map(PrimeField32::as_canonical_u32),
        }
    }
}

impl fmt::Display for ApcInstruction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match isa::opcode_name(self.opcode) {
            Some(name) => write!(formatter, "{name}")?,
            None => write!(formatter, "opcode {:#x}", self.opcode)?,
        }
        let used = self
            .operands
            .iter()
            .rposition(|&operand| operand != 0)
            .map_or(0, |last| last + 1);
        for &operand in &self.operands[..used] {
            // Negative immediates are large field elements; people read them better with their sign.
            if operand > F::ORDER_U32 / 2 {
                write!(formatter, " -{}", F::ORDER_U32 - operand)?;
            } else {
                write!(formatter, " {operand}")?;
            }
        }
        Ok(())
    }
}

impl PcStep for ApcInstruction {
    fn pc_step() -> u32 {
        DEFAULT_PC_STEP
    }
}

impl PowdrInstruction<BabyBearField> for ApcInstruction {
    /// The message of OpenVM's program bus: `[pc, opcode, a, b, c, d, e, f, g]`.
    fn pc_lookup_row(&self, pc: u64) -> Vec<BabyBearField> {
        [pc, self.opcode as u64]
            .into_iter()
            .chain(self.operands.iter().map(|&operand| u64::from(operand)))
            .map(BabyBearField::from)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openvm_form_round_trips() {
        let instruction = Instruction::<F>::from_isize(VmOpcode::from_usize(0x200), 4, 8, -3, 1, 0);
        let ours = ApcInstruction::from(&instruction);
        assert_eq!(ours.to_openvm(), instruction);
        assert_eq!(ours.to_string(), "ADD 4 8 -3 1");
        assert_eq!(
            ours.pc_lookup_row(12)[..3],
            [12u64, 0x200, 4].map(BabyBearField::from)
        );
    }
}
