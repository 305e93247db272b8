//! One autoprecompile, ready to become an AIR, an executor and a chip.

use std::collections::BTreeMap;

use openvm_circuit::arch::instructions::{instruction::Instruction, VmOpcode};
use p3_field::PrimeCharacteristicRing;
use powdr_autoprecompiles::{
    adapter::AdapterApcWithStats,
    expression::{AlgebraicExpression, AlgebraicReference},
    symbolic_machine::{SymbolicBusInteraction, SymbolicMachine},
    InstructionHandler, Substitution,
};
use powdr_number::BabyBearField;
use serde::{Deserialize, Serialize};

use super::{
    adapter::OpenVmAdapter,
    air::{AirIndex, OriginalAirs},
    error::ApcError,
    instruction::ApcInstruction,
};
use crate::bus::F;

/// First opcode of the APCs. OpenVM's own extensions end below `0x1000`, its placeholder opcode is `0xdeadaf`;
/// nothing else may live in `0x100000..0x200000` of a VM that has APCs.
pub const APC_OPCODE_OFFSET: usize = 0x10_0000;

/// Operands of the program bus after `pc` and `opcode`.
pub(super) const PROGRAM_BUS_OPERANDS: usize = 7;

/// A column of the APC trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Id of the references to it in the machine's expressions.
    pub poly_id: u64,
    /// Its name: that of the original column, with the instruction's index appended.
    pub name: String,
}

/// A basic block merged into one AIR.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Autoprecompile {
    /// Unique among a program's APCs: `Autoprecompile_0x…` with the first pc.
    pub name: String,
    /// The global opcode that calls it.
    pub opcode: usize,
    /// First pc of the block.
    pub start_pc: u32,
    /// The block's original instructions; instruction `i` stood at `start_pc + 4 * i`.
    pub instructions: Vec<ApcInstruction>,
    /// Constraints and bus interactions of a row, the lookup of the call on the program bus included.
    pub machine: SymbolicMachine<BabyBearField>,
    /// The columns of the APC trace, in order.
    pub columns: Vec<Column>,
    /// Id of the column that is one on a live row and zero on padding.
    pub is_valid: u64,
    /// For each instruction, which columns of its original row go into which columns (ids) of the APC.
    pub substitutions: Vec<Vec<Substitution>>,
    /// For each instruction, the AIR that it belongs to.
    pub original_airs: Vec<AirIndex>,
    /// Main columns of the original rows of one call, summed up.
    pub original_width: usize,
    /// How often the profiled execution went through the block.
    pub profile_executions: u32,
}

impl Autoprecompile {
    pub(super) fn new(
        built: AdapterApcWithStats<OpenVmAdapter>,
        index: usize,
        profile_executions: u32,
        original_airs: &OriginalAirs,
    ) -> Result<Self, ApcError> {
        let (apc, (), evaluation) = built.into_parts();
        let apc = std::sync::Arc::unwrap_or_clone(apc);
        let start_pc = apc.block.start_pcs().first().copied().unwrap_or_default() as u32;
        let opcode = APC_OPCODE_OFFSET + index;
        let instructions: Vec<ApcInstruction> = apc
            .block
            .instructions()
            .map(|(_, instruction)| instruction.clone())
            .collect();

        let mut machine = apc.machine;
        let is_valid = execution_multiplicity(&machine, original_airs.buses.execution)
            .ok_or(ApcError::Unbound { pc: start_pc })?;
        machine.bus_interactions.push(call_lookup(
            original_airs.buses.program,
            start_pc,
            opcode,
            &is_valid,
        ));
        let columns = machine
            .main_columns()
            .map(|reference| Column {
                poly_id: reference.id,
                name: reference.name.to_string(),
            })
            .collect();
        Ok(Self {
            name: format!("Autoprecompile_{start_pc:#010x}"),
            opcode,
            start_pc,
            original_airs: instructions
                .iter()
                .map(|instruction| original_airs.get_instruction_air_and_id(instruction).0)
                .collect(),
            instructions,
            machine,
            columns,
            is_valid: is_valid.id,
            substitutions: apc.subs,
            original_width: evaluation.before.main_columns,
            profile_executions,
        })
    }

    /// The instruction that calls this APC: its opcode, all operands zero.
    pub fn call_instruction(&self) -> Instruction<F> {
        Instruction {
            opcode: VmOpcode::from_usize(self.opcode),
            a: F::ZERO,
            b: F::ZERO,
            c: F::ZERO,
            d: F::ZERO,
            e: F::ZERO,
            f: F::ZERO,
            g: F::ZERO,
        }
    }

    /// Number of columns of the APC trace.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// Column ids to column indices.
    pub fn column_indices(&self) -> BTreeMap<u64, usize> {
        self.columns
            .iter()
            .enumerate()
            .map(|(index, column)| (column.poly_id, index))
            .collect()
    }
}

/// The column that is the multiplicity of the machine's one send on the execution bus.
fn execution_multiplicity(
    machine: &SymbolicMachine<BabyBearField>,
    execution_bus: u64,
) -> Option<AlgebraicReference> {
    let mut sends = machine
        .bus_interactions
        .iter()
        .filter(|interaction| interaction.id == execution_bus)
        .filter_map(|interaction| match &interaction.mult {
            AlgebraicExpression::Reference(reference) => Some(reference.clone()),
            _ => None,
        });
    match (sends.next(), sends.next()) {
        (Some(send), None) => Some(send),
        _ => None,
    }
}

/// The lookup `[pc, opcode, 0, 0, 0, 0, 0, 0, 0]` that binds a row to the rewritten program.
fn call_lookup(
    program_bus: u64,
    start_pc: u32,
    opcode: usize,
    is_valid: &AlgebraicReference,
) -> SymbolicBusInteraction<BabyBearField> {
    SymbolicBusInteraction {
        id: program_bus,
        mult: AlgebraicExpression::Reference(is_valid.clone()),
        args: [u64::from(start_pc), opcode as u64]
            .into_iter()
            .chain([0; PROGRAM_BUS_OPERANDS])
            .map(|value| AlgebraicExpression::Number(BabyBearField::from(value)))
            .collect(),
    }
}
