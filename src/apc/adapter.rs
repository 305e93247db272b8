//! The types that instantiate powdr's autoprecompile pipeline for OpenVM.

use std::{fmt::Display, hash::Hash, sync::Arc};

use powdr_autoprecompiles::{
    adapter::{Adapter, AdapterApc, AdapterApcWithStats},
    execution::ExecutionState,
    pgo::ApcCandidate,
};
use powdr_number::BabyBearField;

use super::{
    air::{AirIndex, LookupBus, OriginalAirs},
    bus_interaction_handler::OpenVmBusInteractionHandler,
    instruction::ApcInstruction,
    isa,
    memory::OpenVmMemoryBusInteraction,
    program::GuestProgram,
};

/// powdr's `Adapter` for OpenVM.
pub struct OpenVmAdapter;

/// powdr can restrict an APC to execution states it has seen ("optimistic" precompiles). We build none, so there
/// is no such state.
pub enum NoExecutionState {}

impl ExecutionState for NoExecutionState {
    type RegisterAddress = u32;
    type Value = u32;

    fn pc(&self) -> u32 {
        match *self {}
    }

    fn value_limb(value: u32, limb_index: usize) -> u32 {
        (value >> (8 * limb_index)) & 0xff
    }

    fn reg(&self, _address: &u32) -> u32 {
        match *self {}
    }

    fn global_clk(&self) -> usize {
        match *self {}
    }
}

impl Adapter for OpenVmAdapter {
    type Field = BabyBearField;
    type PowdrField = BabyBearField;
    type InstructionHandler = OriginalAirs;
    type BusInteractionHandler = OpenVmBusInteractionHandler;
    type Program = GuestProgram;
    type Instruction = ApcInstruction;
    type MemoryBusInteraction<V: Ord + Clone + Eq + Display + Hash> = OpenVmMemoryBusInteraction<V>;
    type CustomBusTypes = LookupBus;
    type ApcStats = ();
    type AirId = AirIndex;
    type ExecutionState = NoExecutionState;

    fn into_field(value: BabyBearField) -> BabyBearField {
        value
    }

    fn from_field(value: BabyBearField) -> BabyBearField {
        value
    }

    /// powdr calls this once for every candidate it has built, which is where progress is reported.
    fn apc_stats(_apc: Arc<AdapterApc<Self>>, original_airs: &OriginalAirs) {
        original_airs.apc_built();
    }

    fn is_branching(instruction: &ApcInstruction) -> bool {
        isa::is_branching(instruction.opcode)
    }

    fn is_allowed(instruction: &ApcInstruction) -> bool {
        isa::is_allowed(instruction.opcode)
    }
}

/// A candidate's cost and value in trace cells: OpenVM 2.0 proves interactions by GKR, without trace columns.
pub struct CellCandidate(AdapterApcWithStats<OpenVmAdapter>);

impl ApcCandidate<OpenVmAdapter> for CellCandidate {
    fn create(apc_with_stats: AdapterApcWithStats<OpenVmAdapter>) -> Self {
        Self(apc_with_stats)
    }

    fn inner(&self) -> &AdapterApcWithStats<OpenVmAdapter> {
        &self.0
    }

    fn into_inner(self) -> AdapterApcWithStats<OpenVmAdapter> {
        self.0
    }

    fn cost_before_opt(&self) -> usize {
        self.0.evaluation_result().before.main_columns
    }

    fn cost_after_opt(&self) -> usize {
        self.0.evaluation_result().after.main_columns
    }

    fn value_per_use(&self) -> usize {
        self.cost_before_opt().saturating_sub(self.cost_after_opt())
    }
}
