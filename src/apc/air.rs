//! The original AIRs: constraints and interactions extracted out of OpenVM's own chips, and the opcodes they serve.

use std::collections::{btree_map::Entry as MapEntry, BTreeMap};

use itertools::Itertools;
use openvm_circuit::arch::{
    AirInventory, AirRefWithColumns, SystemConfig, VmBuilder, VmCircuitConfig, VmExecutionConfig,
};
use openvm_circuit_primitives::{
    bitwise_op_lookup::BitwiseOperationLookupAir, range_tuple::RangeTupleCheckerAir,
    var_range::VariableRangeCheckerAir,
};
use openvm_instructions::riscv::{RV32_MEMORY_AS, RV32_REGISTER_AS};
use openvm_stark_backend::{
    air_builders::symbolic::{
        get_symbolic_builder, symbolic_expression::SymbolicExpression, symbolic_variable::Entry,
        SymbolicConstraints,
    },
    keygen::types::TraceWidth,
    StarkEngine, StarkProtocolConfig,
};
use openvm_stark_sdk::config::baby_bear_poseidon2::BabyBearPoseidon2Config;
use powdr_autoprecompiles::{
    bus_map::{BusMap, BusType},
    evaluation::AirStats,
    expression::{AlgebraicExpression, AlgebraicReference},
    expression_conversion::algebraic_to_grouped_expression,
    symbolic_machine::{SymbolicBusInteraction, SymbolicMachine},
    DegreeBound, InstructionHandler,
};
use powdr_constraint_solver::grouped_expression::GroupedExpression;
use powdr_number::BabyBearField;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::{
    autoprecompile::PROGRAM_BUS_OPERANDS, error::ApcError, instruction::ApcInstruction, isa,
};
use crate::bus::{
    field::{canonical, from_f},
    table::{
        BitwiseLookupTable, PeripheryTables, RangeTupleCheckerTable, VariableRangeCheckerTable,
    },
    F,
};

/// Position of an original AIR among the extension AIRs of the wrapped VM configuration, in insertion order
/// (`AirInventory::ext_airs`). Names are no keys: two AIRs of one type share theirs.
pub type AirIndex = usize;

/// The lookup buses that powdr itself does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LookupBus {
    /// `[value, max_bits]`.
    VariableRangeChecker,
    /// `[v0, v1]`.
    RangeTupleChecker,
    /// `[x, y, z, selector]`.
    BitwiseLookup,
}

impl std::fmt::Display for LookupBus {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            LookupBus::VariableRangeChecker => "VARIABLE_RANGE_CHECKER",
            LookupBus::RangeTupleChecker => "TUPLE_RANGE_CHECKER",
            LookupBus::BitwiseLookup => "BITWISE_LOOKUP",
        })
    }
}

/// The system's buses and the periphery tables, read off an AIR inventory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VmBuses {
    /// `[pc, timestamp]`.
    pub execution: u64,
    /// `[address space, pointer, data × 4, timestamp]`.
    pub memory: u64,
    /// `[pc, opcode, a, b, c, d, e, f, g]`.
    pub program: u64,
    /// The periphery tables, with their buses.
    pub tables: PeripheryTables,
    /// Address spaces whose cells are bytes: every instruction that writes there proves it.
    pub byte_address_spaces: Vec<u32>,
}

impl VmBuses {
    /// Reads bus indices and table sizes off the inventory's AIRs.
    pub fn from_inventory(inventory: &AirInventory<BabyBearPoseidon2Config>) -> Self {
        let port = inventory.system().port();
        let range_checker: &VariableRangeCheckerAir = inventory.range_checker();
        let range_tuple = inventory.find_air::<RangeTupleCheckerAir<2>>().next();
        let bitwise = inventory.find_air::<BitwiseOperationLookupAir<8>>().next();
        Self {
            execution: port.execution_bus.index().into(),
            memory: port.memory_bridge.memory_bus().index().into(),
            program: port.program_bus.index().into(),
            tables: PeripheryTables {
                variable_range_checker: Some(VariableRangeCheckerTable {
                    bus_id: range_checker.bus.index().into(),
                    range_max_bits: range_checker.range_max_bits() as u32,
                }),
                range_tuple_checker: range_tuple.map(|air| RangeTupleCheckerTable {
                    bus_id: air.bus.inner.index.into(),
                    sizes: air.bus.sizes,
                }),
                bitwise_lookup: bitwise.map(|air| BitwiseLookupTable {
                    bus_id: air.bus.inner.index.into(),
                }),
            },
            byte_address_spaces: vec![RV32_REGISTER_AS, RV32_MEMORY_AS],
        }
    }

    /// The same as powdr's bus map.
    pub fn bus_map(&self) -> BusMap<LookupBus> {
        let lookups = [
            (
                self.tables.variable_range_checker.map(|table| table.bus_id),
                LookupBus::VariableRangeChecker,
            ),
            (
                self.tables.range_tuple_checker.map(|table| table.bus_id),
                LookupBus::RangeTupleChecker,
            ),
            (
                self.tables.bitwise_lookup.map(|table| table.bus_id),
                LookupBus::BitwiseLookup,
            ),
        ];
        BusMap::from_id_type_pairs(
            [
                (self.execution, BusType::ExecutionBridge),
                (self.memory, BusType::Memory),
                (self.program, BusType::PcLookup),
            ]
            .into_iter()
            .chain(
                lookups
                    .into_iter()
                    .filter_map(|(id, bus)| Some((id?, BusType::Other(bus)))),
            ),
        )
    }
}

/// One original AIR whose rows stand for single instructions.
#[derive(Clone, Debug)]
pub struct OriginalAir {
    /// The AIR's name (its type), for people.
    pub name: String,
    /// Number of main columns.
    pub width: usize,
    /// Constraints and interactions; column `i` is the reference with id `i`.
    pub machine: SymbolicMachine<BabyBearField>,
    /// What a row costs.
    pub stats: AirStats,
}

/// The original AIRs of a VM configuration, with what is needed to build APCs from them.
pub struct OriginalAirs {
    airs: BTreeMap<AirIndex, OriginalAir>,
    air_of_opcode: FxHashMap<usize, AirIndex>,
    /// The buses.
    pub buses: VmBuses,
    degree_bound: DegreeBound,
    on_apc_built: Option<Box<dyn Fn() + Send + Sync>>,
}

impl OriginalAirs {
    /// Extracts the AIRs of every allowed instruction from a VM configuration.
    ///
    /// `builder` and `engine` are only needed to learn which AIR serves which executor; no proof is made.
    /// An AIR that an APC cannot take in (several rows an instruction, preprocessed or cached columns,
    /// public values, buses that powdr knows nothing of) makes its opcodes ineligible.
    pub fn extract<E, VB>(engine: &E, builder: &VB, config: &VB::VmConfig) -> Result<Self, ApcError>
    where
        E: StarkEngine<SC = BabyBearPoseidon2Config>,
        VB: VmBuilder<E>,
    {
        use openvm_stark_backend::prover::ProverDevice;

        let inventory = VmCircuitConfig::<BabyBearPoseidon2Config>::create_airs(config)?;
        let executors = VmExecutionConfig::<F>::create_executors(config)?;
        let complex =
            builder.create_chip_complex(config, inventory.clone(), engine.device().device_ctx())?;
        let executor_to_air = &complex.inventory.executor_idx_to_insertion_idx;
        let buses = VmBuses::from_inventory(&inventory);

        let mut airs = BTreeMap::new();
        let mut air_of_opcode = FxHashMap::default();
        for (opcode, &executor) in executors
            .instruction_lookup
            .iter()
            .sorted_by_key(|(opcode, _)| opcode.as_usize())
        {
            let opcode = opcode.as_usize();
            if !isa::is_allowed(opcode) {
                continue;
            }
            let Some(&air_index) = executor_to_air.get(executor as usize) else {
                continue;
            };
            let Some(air) = inventory.ext_airs().get(air_index) else {
                continue;
            };
            if let MapEntry::Vacant(entry) = airs.entry(air_index) {
                match extract_air(air, &buses) {
                    Ok(original) => entry.insert(original),
                    Err(reason) => {
                        tracing::debug!("AIR {} cannot be part of an APC: {reason}", air.name());
                        continue;
                    }
                };
            }
            air_of_opcode.insert(opcode, air_index);
        }

        let system: &SystemConfig = config.as_ref();
        Ok(Self {
            airs,
            air_of_opcode,
            buses,
            degree_bound: DegreeBound {
                identities: system.max_constraint_degree,
                bus_interactions: system.max_constraint_degree - 1,
            },
            on_apc_built: None,
        })
    }

    /// Calls `callback` whenever powdr has finished an APC candidate (from any of its threads).
    pub fn on_apc_built(&mut self, callback: impl Fn() + Send + Sync + 'static) {
        self.on_apc_built = Some(Box::new(callback));
    }

    pub(super) fn apc_built(&self) {
        if let Some(callback) = &self.on_apc_built {
            callback();
        }
    }

    /// The AIR with this index, if an APC may contain its instructions.
    pub fn air(&self, index: AirIndex) -> Option<&OriginalAir> {
        self.airs.get(&index)
    }

    /// All AIRs, by index.
    pub fn airs(&self) -> impl Iterator<Item = (AirIndex, &OriginalAir)> {
        self.airs.iter().map(|(index, air)| (*index, air))
    }

    /// The AIR that serves an opcode, if an APC may contain it.
    pub fn air_of_opcode(&self, opcode: usize) -> Option<AirIndex> {
        self.air_of_opcode.get(&opcode).copied()
    }
}

impl InstructionHandler for OriginalAirs {
    type Field = BabyBearField;
    type Instruction = ApcInstruction;
    type AirId = AirIndex;

    fn degree_bound(&self) -> DegreeBound {
        self.degree_bound
    }

    fn get_instruction_air_and_id(
        &self,
        instruction: &Self::Instruction,
    ) -> (Self::AirId, &SymbolicMachine<Self::Field>) {
        let index = self.air_of_opcode[&instruction.opcode];
        (index, &self.airs[&index].machine)
    }

    fn get_instruction_air_stats(&self, instruction: &Self::Instruction) -> AirStats {
        self.airs[&self.air_of_opcode[&instruction.opcode]].stats
    }
}

/// The AIR as a machine over its own columns, or why its rows cannot stand for single instructions in an APC.
fn extract_air(
    air: &AirRefWithColumns<BabyBearPoseidon2Config>,
    buses: &VmBuses,
) -> Result<OriginalAir, &'static str> {
    type Val = <BabyBearPoseidon2Config as StarkProtocolConfig>::F;
    let preprocessed = openvm_stark_backend::p3_air::BaseAir::<Val>::preprocessed_trace(&**air)
        .map(|trace| trace.width);
    let width = TraceWidth {
        preprocessed,
        cached_mains: air.cached_main_widths(),
        common_main: air.common_main_width(),
    };
    let columns = width.common_main;
    if width.preprocessed.is_some()
        || !width.cached_mains.is_empty()
        || air.num_public_values() != 0
    {
        return Err("it has preprocessed columns, cached columns or public values");
    }
    let symbolic = get_symbolic_builder(&**air, &width).constraints();
    let names = air
        .columns()
        .filter(|names| names.len() == columns)
        .unwrap_or_else(|| {
            (0..columns)
                .map(|index| format!("column_{index}"))
                .collect()
        });
    let references = names
        .into_iter()
        .enumerate()
        .map(|(index, name)| {
            AlgebraicExpression::Reference(AlgebraicReference {
                name: name.into(),
                id: index as u64,
            })
        })
        .collect_vec();
    let machine = convert_machine(&symbolic, &references)
        .ok_or("its constraints look beyond the row they stand on")?;
    // powdr numbers a machine's columns by their references, so every column has to occur.
    if machine.main_columns().count() != columns {
        return Err("it has a column that nothing refers to");
    }
    check_interactions(&machine, buses)?;
    Ok(OriginalAir {
        name: air.name(),
        width: columns,
        stats: AirStats::new(&machine),
        machine,
    })
}

/// Checks what powdr takes for granted of an instruction's interactions: that there is one lookup of the program; that
/// it receives the state, then sends the next one; that its memory accesses, a receive and a send each, come in the
/// order of time; and that it reaches no other bus than those whose meaning the bus interaction handler knows.
fn check_interactions(
    machine: &SymbolicMachine<BabyBearField>,
    buses: &VmBuses,
) -> Result<(), &'static str> {
    type Interaction = SymbolicBusInteraction<BabyBearField>;
    type Grouped = GroupedExpression<BabyBearField, AlgebraicReference>;
    let grouped = |expression: &AlgebraicExpression<BabyBearField>| -> Grouped {
        algebraic_to_grouped_expression(expression)
    };
    let on = |bus: u64| {
        machine
            .bus_interactions
            .iter()
            .filter(move |interaction| interaction.id == bus)
            .collect_vec()
    };
    let opposite = |receive: &Interaction, send: &Interaction| {
        (grouped(&receive.mult) + grouped(&send.mult)).try_to_number()
            == Some(BabyBearField::from(0u32))
    };

    let known = |bus: u64| {
        [buses.execution, buses.memory, buses.program].contains(&bus)
            || buses.tables.table_of_bus(bus).is_some()
    };
    if !machine
        .bus_interactions
        .iter()
        .all(|interaction| known(interaction.id))
    {
        return Err("it interacts with a bus of unknown meaning");
    }
    match on(buses.program).as_slice() {
        [lookup] if lookup.args.len() == 2 + PROGRAM_BUS_OPERANDS => {}
        _ => return Err("it does not look one instruction up in the program"),
    }
    let from_timestamp = match on(buses.execution).as_slice() {
        [receive, send] if opposite(receive, send) => match (&*receive.args, &*send.args) {
            ([_, from_timestamp], [_, _]) => grouped(from_timestamp),
            _ => return Err("its states are not pairs of pc and timestamp"),
        },
        _ => return Err("it does not receive one state and send one"),
    };
    let accesses = on(buses.memory);
    let mut earliest = 0;
    for access in accesses.chunks(2) {
        let [receive, send] = access else {
            return Err("it does not send to memory what it receives from there");
        };
        let (Some((_, received)), Some((sent_timestamp, sent))) =
            (receive.args.split_last(), send.args.split_last())
        else {
            return Err("it sends an empty message to memory");
        };
        let same_address = received.len() == sent.len()
            && received.len() > 2
            && (0..2).all(|part| grouped(&received[part]) == grouped(&sent[part]));
        if !opposite(receive, send) || !same_address {
            return Err("it does not send to memory what it receives from there");
        }
        let delay = (grouped(sent_timestamp) - from_timestamp.clone())
            .try_to_number()
            .map(canonical)
            .filter(|&delay| delay >= earliest)
            .ok_or("its memory accesses are not in the order of time")?;
        earliest = delay + 1;
    }
    Ok(())
}

fn convert_machine(
    symbolic: &SymbolicConstraints<F>,
    columns: &[AlgebraicExpression<BabyBearField>],
) -> Option<SymbolicMachine<BabyBearField>> {
    Some(SymbolicMachine {
        constraints: symbolic
            .constraints
            .iter()
            .map(|constraint| Some(convert_expression(constraint, columns)?.into()))
            .collect::<Option<_>>()?,
        bus_interactions: symbolic
            .interactions
            .iter()
            .map(|interaction| {
                Some(SymbolicBusInteraction {
                    id: interaction.bus_index.into(),
                    mult: convert_expression(&interaction.count, columns)?,
                    args: interaction
                        .message
                        .iter()
                        .map(|argument| convert_expression(argument, columns))
                        .collect::<Option<_>>()?,
                })
            })
            .collect::<Option<_>>()?,
        derived_columns: vec![],
    })
}

/// `None` for anything but the columns of the row itself.
fn convert_expression(
    expression: &SymbolicExpression<F>,
    columns: &[AlgebraicExpression<BabyBearField>],
) -> Option<AlgebraicExpression<BabyBearField>> {
    let convert = |expression| convert_expression(expression, columns);
    Some(match expression {
        SymbolicExpression::Constant(value) => AlgebraicExpression::Number(from_f(*value)),
        SymbolicExpression::Variable(variable) => match variable.entry {
            Entry::Main {
                part_index: 0,
                offset: 0,
            } => columns.get(variable.index)?.clone(),
            _ => return None,
        },
        SymbolicExpression::Add { x, y, .. } => convert(x)? + convert(y)?,
        SymbolicExpression::Sub { x, y, .. } => convert(x)? - convert(y)?,
        SymbolicExpression::Mul { x, y, .. } => convert(x)? * convert(y)?,
        SymbolicExpression::Neg { x, .. } => -convert(x)?,
        SymbolicExpression::IsFirstRow
        | SymbolicExpression::IsLastRow
        | SymbolicExpression::IsTransition => return None,
    })
}
