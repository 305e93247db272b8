//! Executing an APC: its original instructions, one after the other, as one instruction.

use std::{
    any::type_name,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use openvm_circuit::{
    arch::{
        instructions::instruction::Instruction, AnyEnum, ExecuteFunc, ExecutionCtxTrait,
        ExecutionError, ExecutorInventory, InterpreterExecutor, InterpreterMeteredExecutor,
        MeteredExecutionCtxTrait, PreflightExecutor, StaticProgramError, VmExecState, VmStateMut,
    },
    system::memory::online::{GuestMemory, TracingMemory},
};

use super::{
    arena::ApcArena,
    records::{OriginalArenas, RecordStore},
};
use crate::{
    apc::{Autoprecompile, PC_STEP},
    bus::F,
    trace::plan::OriginalRow,
    trace::TracePlan,
};

/// Executes one APC. `E` is the executor type of the wrapped VM.
pub struct ApcExecutor<E> {
    apc: Arc<Autoprecompile>,
    plan: Arc<TracePlan>,
    /// The widths of the plan's AIRs.
    planned_widths: Vec<usize>,
    records: Arc<RecordStore>,
    originals: Arc<ExecutorInventory<E>>,
    instructions: Vec<Step>,
    /// Widths of the AIRs of instructions of which no column survived.
    discarded_widths: Vec<usize>,
    blocks: Mutex<HashMap<BlockKey, Arc<dyn std::any::Any + Send + Sync>>>,
}

/// One original instruction.
struct Step {
    instruction: Instruction<F>,
    /// Index into the original executors.
    executor: usize,
    arena: StepArena,
}

/// Where an instruction's record goes.
#[derive(Clone, Copy)]
enum StepArena {
    /// Index into [`OriginalArenas::arenas`].
    Kept(usize),
    /// Index into [`OriginalArenas::discarded`].
    Discarded(usize),
}

/// What a block's pre-computed handlers depend on: the execution context's type, and the AIR that is metered.
type BlockKey = (&'static str, Option<usize>);

impl<E> ApcExecutor<E> {
    /// `widths` are those of the original AIRs, by index; `originals` are executors of the wrapped VM, created anew.
    /// `None` if an instruction or an AIR of the APC is not among them.
    pub fn new(
        apc: Arc<Autoprecompile>,
        plan: Arc<TracePlan>,
        records: Arc<RecordStore>,
        originals: Arc<ExecutorInventory<E>>,
        widths: &[usize],
    ) -> Option<Self> {
        let mut discarded_airs: Vec<usize> = Vec::new();
        let instructions = apc
            .instructions
            .iter()
            .zip(&plan.rows)
            .zip(&apc.original_airs)
            .map(|((instruction, row), &air)| {
                let instruction = instruction.to_openvm();
                let executor = *originals.instruction_lookup.get(&instruction.opcode)? as usize;
                let arena = match row {
                    Some(OriginalRow { air, .. }) => StepArena::Kept(*air),
                    None => {
                        let position = discarded_airs.iter().position(|&known| known == air);
                        StepArena::Discarded(position.unwrap_or_else(|| {
                            discarded_airs.push(air);
                            discarded_airs.len() - 1
                        }))
                    }
                };
                Some(Step {
                    instruction,
                    executor,
                    arena,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Self {
            planned_widths: plan
                .airs
                .iter()
                .map(|planned| widths.get(planned.air).copied())
                .collect::<Option<_>>()?,
            discarded_widths: discarded_airs
                .into_iter()
                .map(|air| widths.get(air).copied())
                .collect::<Option<_>>()?,
            apc,
            plan,
            records,
            originals,
            instructions,
            blocks: Mutex::default(),
        })
    }

    fn pc_of(&self, index: usize) -> u32 {
        self.apc.start_pc + PC_STEP * index as u32
    }

    fn open_arenas<RA: ApcArena>(&self, calls: usize) -> OriginalArenas<RA> {
        OriginalArenas {
            arenas: self
                .plan
                .airs
                .iter()
                .zip(&self.planned_widths)
                .map(|(planned, &width)| RA::with_capacity(calls * planned.rows_per_call, width))
                .collect(),
            discarded: self
                .discarded_widths
                .iter()
                .map(|&width| RA::with_capacity(1, width))
                .collect(),
        }
    }

    /// The block's handlers for one execution context, made once and kept as long as the executor.
    fn block<Ctx>(&self, metered_air: Option<usize>) -> Result<*const Block, StaticProgramError>
    where
        E: InterpreterExecutor<F>,
        Ctx: ExecutionCtxTrait,
    {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (type_name::<Ctx>(), metered_air);
        if let Some(block) = blocks.get(&key) {
            if let Some(block) = block.downcast_ref::<Block>() {
                return Ok(block);
            }
        }
        let mut steps = Vec::with_capacity(self.instructions.len());
        for (index, step) in self.instructions.iter().enumerate() {
            let executor = &self.originals.executors[step.executor];
            // 16-byte words, so that every executor's data is aligned, as in OpenVM's own buffer.
            let words = executor.pre_compute_size().div_ceil(size_of::<u128>());
            let mut data = vec![0u128; words.max(1)].into_boxed_slice();
            // SAFETY: `u128`s are initialized bytes without padding; the borrow ends before `data` is moved, and
            // moving a box does not move what it points to.
            let bytes = unsafe {
                std::slice::from_raw_parts_mut(
                    data.as_mut_ptr().cast::<u8>(),
                    size_of_val::<[u128]>(&data),
                )
            };
            // The *pure* handler, also when metering: it reports memory accesses to its context, but no rows of
            // the original AIRs, which do not grow.
            let handler: ExecuteFunc<F, Ctx> =
                executor.pre_compute(self.pc_of(index), &step.instruction, bytes)?;
            steps.push(BlockStep {
                handler: handler as *const (),
                data,
            });
        }
        let block = Arc::new(Block { steps, metered_air });
        let pointer: *const Block = &*block;
        blocks.insert(key, block);
        Ok(pointer)
    }
}

/// The pre-computed handlers of a block's instructions.
struct Block {
    steps: Vec<BlockStep>,
    metered_air: Option<usize>,
}

struct BlockStep {
    /// An `ExecuteFunc<F, Ctx>`, for the `Ctx` that the block was made for.
    handler: *const (),
    data: Box<[u128]>,
}

// SAFETY: a handler is a function pointer, its data is plain bytes that nobody writes to after the block is made.
unsafe impl Send for BlockStep {}
// SAFETY: as above.
unsafe impl Sync for BlockStep {}

/// What OpenVM's interpreter keeps for us per instruction: a pointer to the block, which the executor owns. The
/// interpreter borrows the executors for as long as it lives.
type BlockPointer = *const Block;

/// # Safety
/// `pre_compute` must hold a [`BlockPointer`] to a live block that was made for `Ctx`.
unsafe fn execute_block<Ctx: ExecutionCtxTrait>(
    pre_compute: *const u8,
    state: &mut VmExecState<F, GuestMemory, Ctx>,
) {
    // SAFETY: by this function's contract.
    let block: &Block = unsafe { &*pre_compute.cast::<BlockPointer>().read_unaligned() };
    for step in &block.steps {
        // SAFETY: the handler was made as an `ExecuteFunc<F, Ctx>` for this very `Ctx`.
        let handler =
            unsafe { std::mem::transmute::<*const (), ExecuteFunc<F, Ctx>>(step.handler) };
        // SAFETY: the data was initialized by the executor that gave the handler.
        unsafe { handler(step.data.as_ptr().cast(), state) };
        if !matches!(state.exit_code, Ok(None)) {
            return;
        }
    }
}

/// # Safety
/// As [`execute_block`]; the block must have been made with a metered AIR.
unsafe fn execute_block_metered<Ctx: MeteredExecutionCtxTrait>(
    pre_compute: *const u8,
    state: &mut VmExecState<F, GuestMemory, Ctx>,
) {
    // SAFETY: by this function's contract.
    let block: &Block = unsafe { &*pre_compute.cast::<BlockPointer>().read_unaligned() };
    if let Some(air) = block.metered_air {
        state.ctx.on_height_change(air, 1);
    }
    // SAFETY: by this function's contract.
    unsafe { execute_block(pre_compute, state) };
}

fn store_pointer(data: &mut [u8], block: BlockPointer) {
    data[..size_of::<BlockPointer>()].copy_from_slice(&(block as usize).to_ne_bytes());
}

impl<E: InterpreterExecutor<F>> InterpreterExecutor<F> for ApcExecutor<E> {
    fn pre_compute_size(&self) -> usize {
        size_of::<BlockPointer>()
    }

    fn pre_compute<Ctx>(
        &self,
        _pc: u32,
        _instruction: &Instruction<F>,
        data: &mut [u8],
    ) -> Result<ExecuteFunc<F, Ctx>, StaticProgramError>
    where
        Ctx: ExecutionCtxTrait,
    {
        store_pointer(data, self.block::<Ctx>(None)?);
        Ok(execute_block::<Ctx>)
    }
}

impl<E: InterpreterExecutor<F>> InterpreterMeteredExecutor<F> for ApcExecutor<E> {
    fn metered_pre_compute_size(&self) -> usize {
        size_of::<BlockPointer>()
    }

    fn metered_pre_compute<Ctx>(
        &self,
        air_index: usize,
        _pc: u32,
        _instruction: &Instruction<F>,
        data: &mut [u8],
    ) -> Result<ExecuteFunc<F, Ctx>, StaticProgramError>
    where
        Ctx: MeteredExecutionCtxTrait,
    {
        store_pointer(data, self.block::<Ctx>(Some(air_index))?);
        Ok(execute_block_metered::<Ctx>)
    }
}

impl<E, RA> PreflightExecutor<F, RA> for ApcExecutor<E>
where
    RA: ApcArena,
    E: PreflightExecutor<F, RA>,
{
    fn execute(
        &self,
        state: VmStateMut<F, TracingMemory, RA>,
        _instruction: &Instruction<F>,
    ) -> Result<(), ExecutionError> {
        let VmStateMut {
            pc,
            memory,
            streams,
            rng,
            ctx: apc_arena,
            metrics,
        } = state;
        let width = self.apc.width();
        let capacity = apc_arena.call_capacity(width);
        let (token, result) = self.records.with_arenas::<RA, _>(
            std::ptr::from_ref::<RA>(apc_arena) as usize,
            apc_arena.is_empty(),
            || self.open_arenas(capacity),
            |arenas| {
                for step in &self.instructions {
                    let arena = match step.arena {
                        StepArena::Kept(index) => &mut arenas.arenas[index],
                        StepArena::Discarded(index) => {
                            let arena = &mut arenas.discarded[index];
                            arena.reset();
                            arena
                        }
                    };
                    self.originals.executors[step.executor].execute(
                        VmStateMut::new(pc, memory, streams, rng, arena, metrics),
                        &step.instruction,
                    )?;
                }
                Ok::<(), ExecutionError>(())
            },
        );
        result?;
        apc_arena.push_call(width, token);
        Ok(())
    }

    fn get_opcode_name(&self, _opcode: usize) -> String {
        self.apc.name.clone()
    }
}

/// An executor of a VM with APCs: one of the wrapped VM's, or an APC's.
pub enum ApcVmExecutor<E> {
    /// One of the wrapped VM's own.
    Original(E),
    /// An APC's.
    Apc(ApcExecutor<E>),
}

impl<E> From<E> for ApcVmExecutor<E> {
    fn from(executor: E) -> Self {
        Self::Original(executor)
    }
}

impl<E> From<ApcExecutor<E>> for ApcVmExecutor<E> {
    fn from(executor: ApcExecutor<E>) -> Self {
        Self::Apc(executor)
    }
}

impl<E: AnyEnum> AnyEnum for ApcVmExecutor<E>
where
    ApcExecutor<E>: 'static,
{
    fn as_any_kind(&self) -> &dyn std::any::Any {
        match self {
            Self::Original(executor) => executor.as_any_kind(),
            Self::Apc(executor) => executor,
        }
    }

    fn as_any_kind_mut(&mut self) -> &mut dyn std::any::Any {
        match self {
            Self::Original(executor) => executor.as_any_kind_mut(),
            Self::Apc(executor) => executor,
        }
    }
}

impl<E: 'static> AnyEnum for ApcExecutor<E> {
    fn as_any_kind(&self) -> &dyn std::any::Any {
        self
    }

    fn as_any_kind_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// Calls the same method on whichever executor it is.
macro_rules! either {
    ($self:ident, $executor:ident => $call:expr) => {
        match $self {
            ApcVmExecutor::Original($executor) => $call,
            ApcVmExecutor::Apc($executor) => $call,
        }
    };
}

impl<E: InterpreterExecutor<F>> InterpreterExecutor<F> for ApcVmExecutor<E> {
    fn pre_compute_size(&self) -> usize {
        either!(self, executor => executor.pre_compute_size())
    }

    fn pre_compute<Ctx>(
        &self,
        pc: u32,
        instruction: &Instruction<F>,
        data: &mut [u8],
    ) -> Result<ExecuteFunc<F, Ctx>, StaticProgramError>
    where
        Ctx: ExecutionCtxTrait,
    {
        either!(self, executor => executor.pre_compute(pc, instruction, data))
    }
}

impl<E> InterpreterMeteredExecutor<F> for ApcVmExecutor<E>
where
    E: InterpreterExecutor<F> + InterpreterMeteredExecutor<F>,
{
    fn metered_pre_compute_size(&self) -> usize {
        either!(self, executor => executor.metered_pre_compute_size())
    }

    fn metered_pre_compute<Ctx>(
        &self,
        air_index: usize,
        pc: u32,
        instruction: &Instruction<F>,
        data: &mut [u8],
    ) -> Result<ExecuteFunc<F, Ctx>, StaticProgramError>
    where
        Ctx: MeteredExecutionCtxTrait,
    {
        either!(self, executor => executor.metered_pre_compute(air_index, pc, instruction, data))
    }
}

impl<E, RA> PreflightExecutor<F, RA> for ApcVmExecutor<E>
where
    RA: ApcArena,
    E: PreflightExecutor<F, RA>,
{
    fn execute(
        &self,
        state: VmStateMut<F, TracingMemory, RA>,
        instruction: &Instruction<F>,
    ) -> Result<(), ExecutionError> {
        either!(self, executor => executor.execute(state, instruction))
    }

    fn get_opcode_name(&self, opcode: usize) -> String {
        match self {
            Self::Original(executor) => executor.get_opcode_name(opcode),
            Self::Apc(executor) => {
                <ApcExecutor<E> as PreflightExecutor<F, RA>>::get_opcode_name(executor, opcode)
            }
        }
    }
}
