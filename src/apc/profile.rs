//! The execution profile: which pcs a run goes through, in order.

use std::collections::HashMap;

use openvm_circuit::arch::{
    instructions::{exe::VmExe, LocalOpcode, SystemOpcode},
    Executor, Streams, SystemConfig, VmExecutionConfig, VmExecutor, VmState,
};
use powdr_autoprecompiles::execution_profile::ExecutionProfile;

use super::error::ApcError;
use crate::bus::F;

/// Runs the program to its end on the interpreter, one instruction at a time, and notes every pc.
///
/// Stock OpenVM tells nobody the pcs it executes; single steps do, at about six million instructions a second.
pub fn execution_profile<VC>(
    config: &VC,
    exe: &VmExe<F>,
    input: impl Into<Streams<F>>,
) -> Result<ExecutionProfile, ApcError>
where
    VC: VmExecutionConfig<F> + AsRef<SystemConfig> + Clone,
    VC::Executor: Executor<F>,
{
    let executor = VmExecutor::<F, VC>::new(config.clone())?;
    let instance = executor.instance(exe)?;
    let mut state = VmState::initial(config.as_ref(), &exe.init_memory, exe.pc_start, input);
    let terminate = SystemOpcode::TERMINATE.global_opcode();
    let mut pc_list = Vec::new();
    // Every step opens a span: without a subscriber they cost nothing.
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || loop {
        let pc = state.pc();
        pc_list.push(u64::from(pc));
        let index = pc.wrapping_sub(exe.program.pc_base) / super::PC_STEP;
        let terminates = exe
            .program
            .get_instruction_and_debug_info(index as usize)
            .is_some_and(|(instruction, _)| instruction.opcode == terminate);
        if terminates {
            return Ok::<(), ApcError>(());
        }
        state = instance
            .execute_from_state(state, Some(1))
            .map_err(|source| ApcError::Profile { pc, source })?;
    })?;
    let mut pc_count = HashMap::new();
    for &pc in &pc_list {
        *pc_count.entry(pc).or_insert(0u32) += 1;
    }
    Ok(ExecutionProfile { pc_count, pc_list })
}
