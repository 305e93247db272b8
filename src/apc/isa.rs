//! Which instructions an APC may contain, which end a block, and what they are called.
//!
//! Allowed are the RV32IM instructions whose AIRs constrain one row per instruction. Hint stores,
//! phantoms, `TERMINATE` and the instructions of the other extensions (keccak, sha2, bigint, algebra, …)
//! stay outside: their AIRs span several rows, or act on more than registers and memory. A VM with such
//! extensions is fine; those instructions merely end a block.

use openvm_circuit::arch::instructions::{LocalOpcode, SystemOpcode};
use openvm_rv32im_transpiler::{
    BaseAluOpcode, BranchEqualOpcode, BranchLessThanOpcode, DivRemOpcode, LessThanOpcode,
    MulHOpcode, MulOpcode, Rv32AuipcOpcode, Rv32JalLuiOpcode, Rv32JalrOpcode, Rv32LoadStoreOpcode,
    ShiftOpcode,
};

/// What an instruction may do to the pc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlFlow {
    /// The next instruction follows.
    Falls,
    /// The block ends here.
    Branches,
}

/// The allowed opcodes: global opcode, name, control flow.
fn allowed_opcode(opcode: usize) -> Option<(&'static str, ControlFlow)> {
    use ControlFlow::{Branches, Falls};
    macro_rules! find {
        ($($class:ident { $($variant:ident),+ } $flow:ident),+ $(,)?) => {
            $($(
                if opcode == $class::$variant.global_opcode_usize() {
                    return Some((stringify!($variant), $flow));
                }
            )+)+
        };
    }
    find! {
        BaseAluOpcode { ADD, SUB, XOR, OR, AND } Falls,
        ShiftOpcode { SLL, SRL, SRA } Falls,
        LessThanOpcode { SLT, SLTU } Falls,
        Rv32LoadStoreOpcode { LOADW, LOADBU, LOADHU, STOREW, STOREH, STOREB, LOADB, LOADH } Falls,
        BranchEqualOpcode { BEQ, BNE } Branches,
        BranchLessThanOpcode { BLT, BLTU, BGE, BGEU } Branches,
        Rv32JalLuiOpcode { JAL } Branches,
        Rv32JalLuiOpcode { LUI } Falls,
        Rv32JalrOpcode { JALR } Branches,
        Rv32AuipcOpcode { AUIPC } Falls,
        MulOpcode { MUL } Falls,
        MulHOpcode { MULH, MULHSU, MULHU } Falls,
        DivRemOpcode { DIV, DIVU, REM, REMU } Falls,
    }
    None
}

/// Whether an APC may contain the instruction with this global opcode.
pub fn is_allowed(opcode: usize) -> bool {
    allowed_opcode(opcode).is_some()
}

/// Whether the instruction with this global opcode ends a block.
pub fn is_branching(opcode: usize) -> bool {
    matches!(allowed_opcode(opcode), Some((_, ControlFlow::Branches)))
}

/// The name of the opcode, if it is one an APC may contain, or a system opcode.
pub fn opcode_name(opcode: usize) -> Option<&'static str> {
    if opcode == SystemOpcode::TERMINATE.global_opcode_usize() {
        return Some("TERMINATE");
    }
    if opcode == SystemOpcode::PHANTOM.global_opcode_usize() {
        return Some("PHANTOM");
    }
    allowed_opcode(opcode).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use openvm_rv32im_transpiler::Rv32HintStoreOpcode;

    use super::*;

    #[test]
    fn branches_end_blocks_and_hints_stay_outside() {
        assert!(is_branching(Rv32JalLuiOpcode::JAL.global_opcode_usize()));
        assert!(!is_branching(Rv32JalLuiOpcode::LUI.global_opcode_usize()));
        assert!(is_allowed(Rv32LoadStoreOpcode::LOADH.global_opcode_usize()));
        assert!(!is_allowed(
            Rv32HintStoreOpcode::HINT_STOREW.global_opcode_usize()
        ));
        assert!(!is_allowed(SystemOpcode::PHANTOM.global_opcode_usize()));
        assert_eq!(
            opcode_name(DivRemOpcode::REMU.global_opcode_usize()),
            Some("REMU")
        );
    }
}
