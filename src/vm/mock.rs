//! Mock proving: checks every constraint and the balance of every bus on the full traces of a segment, without
//! committing to anything.
//!
//! What is checked is what the verifier checks: the constraints and interactions are those of the proving key, not
//! those an AIR would give when asked again. Traces come one AIR at a time from the device to the host, so that the
//! check also runs on a GPU's proving context, and no more than one trace is held twice.
//!
//! The bus balance is taken over 64-bit fingerprints: the bus, and 48 bits of a hash of the message. Two messages with
//! the same fingerprint can never turn a balanced bus into an unbalanced one; that two *unbalanced* messages cancel out
//! each other has probability 2^-48 a pair. Only when something is unbalanced the traces are walked again, to name the
//! messages.

use std::{
    collections::{hash_map::DefaultHasher, BTreeMap, BTreeSet},
    fmt::{self, Display, Formatter},
    hash::Hasher,
    ops::Range,
    sync::Mutex,
};

use itertools::Itertools;
use openvm_circuit::arch::AirRefWithColumns;
use openvm_stark_backend::{
    air_builders::symbolic::{
        symbolic_variable::Entry, SymbolicConstraintsDag, SymbolicExpressionNode,
    },
    interaction::BusIndex,
    keygen::types::LinearConstraint,
    prover::{
        AirProvingContext, ColMajorMatrix, DeviceDataTransporter, DeviceMultiStarkProvingKey,
        DeviceStarkProvingKey, MatrixDimensions, ProverBackend, ProvingContext,
    },
    StarkEngine, StarkProtocolConfig, SystemParams, Val,
};
use p3_field::{PrimeCharacteristicRing, PrimeField64};
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use thiserror::Error;

use super::ApcAir;
use crate::{apc::VmBuses, bus::dag::children};

/// At most this many violated constraints are described, and this many unbalanced messages a bus.
pub const MAX_DESCRIBED: usize = 8;
/// At most this many contributions to one unbalanced message are listed.
const MAX_CONTRIBUTIONS: usize = 8;
/// An expression is cut off after this many characters.
const MAX_EXPRESSION_LENGTH: usize = 400;
/// An expression is cut off below this many levels.
const MAX_EXPRESSION_DEPTH: usize = 200;
/// At most this many cells that a violated constraint reads are shown.
const MAX_CELLS: usize = 24;
/// Field elements that one thread's node values may take (1 MiB).
const NODE_VALUES: usize = 1 << 18;
const SHARDS: usize = 64;

/// Names for people: AIRs, their columns, and buses. Everything works without: an AIR is then called by its type, a
/// column or a bus by its index.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// Names of AIRs by AIR id, where the proving key's name (the AIR's type) does not tell which one it is.
    pub airs: BTreeMap<usize, String>,
    /// Column names of the common main trace, by AIR id.
    pub columns: BTreeMap<usize, Vec<String>>,
    /// Bus names by bus index.
    pub buses: BTreeMap<BusIndex, String>,
}

impl Labels {
    /// Takes the names off the AIRs, which have to be in the proving key's order: that of `AirInventory::into_airs`.
    pub fn from_airs<SC: StarkProtocolConfig>(
        airs: impl IntoIterator<Item = AirRefWithColumns<SC>>,
    ) -> Self {
        let mut labels = Self::default();
        for (air_id, air) in airs.into_iter().enumerate() {
            if let Some(columns) = air.columns() {
                labels.columns.insert(air_id, columns);
            }
            if let Some(apc_air) = air.as_any().downcast_ref::<ApcAir>() {
                labels.airs.insert(air_id, apc_air.apc().name.clone());
            }
        }
        labels
    }

    /// Names the buses of a VM.
    pub fn with_buses(mut self, buses: &VmBuses) -> Self {
        let tables = &buses.tables;
        let named = [
            ("execution", Some(buses.execution)),
            ("memory", Some(buses.memory)),
            ("program", Some(buses.program)),
            (
                "variable range checker",
                tables.variable_range_checker.map(|table| table.bus_id),
            ),
            (
                "range tuple checker",
                tables.range_tuple_checker.map(|table| table.bus_id),
            ),
            (
                "bitwise lookup",
                tables.bitwise_lookup.map(|table| table.bus_id),
            ),
        ];
        for (name, id) in named {
            if let Some(index) = id.and_then(|id| BusIndex::try_from(id).ok()) {
                self.buses.insert(index, name.to_string());
            }
        }
        self
    }

    pub(super) fn air<'a>(&'a self, air_id: usize, type_name: &'a str) -> &'a str {
        self.airs.get(&air_id).map_or(type_name, String::as_str)
    }

    fn bus(&self, bus: BusIndex) -> String {
        match self.buses.get(&bus) {
            Some(name) => format!("{bus} ({name})"),
            None => bus.to_string(),
        }
    }
}

/// What a passed check has looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MockReport {
    /// AIRs with a trace.
    pub airs: usize,
    /// Rows of all traces together.
    pub rows: usize,
    /// Cells of all traces together (main traces, cached ones included; no preprocessed ones).
    pub cells: usize,
    /// Constraints evaluated: for each AIR, constraints × rows.
    pub constraints: usize,
    /// Bus messages of non-zero multiplicity.
    pub messages: usize,
}

impl MockReport {
    /// Adds the report of a further segment.
    pub fn add(&mut self, other: &Self) {
        self.airs = self.airs.max(other.airs);
        self.rows += other.rows;
        self.cells += other.cells;
        self.constraints += other.constraints;
        self.messages += other.messages;
    }
}

/// Why a proof of these traces would not be made, or not be accepted.
#[derive(Debug, Error)]
pub enum MockError {
    /// The proving context and the proving key are of different VMs.
    #[error("there is a trace for AIR {air_id}, but the proving key knows only {airs} AIRs")]
    UnknownAir {
        /// Index of the AIR.
        air_id: usize,
        /// How many the proving key has.
        airs: usize,
    },
    /// Two traces for one AIR.
    #[error("AIR {air} has two traces")]
    DuplicateAir {
        /// Name of the AIR.
        air: String,
    },
    /// An AIR that every proof needs has none.
    #[error("AIR {air} has no trace, and every proof needs one")]
    MissingAir {
        /// Name of the AIR.
        air: String,
    },
    /// A part of a trace has another width than in the proving key.
    #[error("AIR {air}, {part}: {actual} columns where the proving key says {expected}")]
    Width {
        /// Name of the AIR.
        air: String,
        /// The part of its trace: common main, cached or preprocessed.
        part: String,
        /// Columns by the proving key.
        expected: usize,
        /// Columns that there are.
        actual: usize,
    },
    /// The parts of a trace differ in height.
    #[error("AIR {air}, {part}: height {actual} where the AIR's main trace has {expected}")]
    PartHeight {
        /// Name of the AIR.
        air: String,
        /// The part of its trace.
        part: String,
        /// Rows of the main trace.
        expected: usize,
        /// Rows of the part.
        actual: usize,
    },
    /// A height that the proof system does not know.
    #[error("AIR {air}: height {height} is no power of two up to 2^{max_log_height}")]
    Height {
        /// Name of the AIR.
        air: String,
        /// Rows of its trace.
        height: usize,
        /// Logarithm of the most rows.
        max_log_height: usize,
    },
    /// More or fewer cached traces than in the proving key.
    #[error("AIR {air}: {actual} cached traces where the proving key says {expected}")]
    CachedTraces {
        /// Name of the AIR.
        air: String,
        /// Cached traces by the proving key.
        expected: usize,
        /// Cached traces that there are.
        actual: usize,
    },
    /// More or fewer public values than in the proving key.
    #[error("AIR {air}: {actual} public values where the proving key says {expected}")]
    PublicValues {
        /// Name of the AIR.
        air: String,
        /// Public values by the proving key.
        expected: usize,
        /// Public values that there are.
        actual: usize,
    },
    /// The verifier bounds weighted sums of the trace heights, for the sake of the bus argument's soundness.
    #[error("the trace heights exceed the verifier's bound {index}: {value} where it allows less than {threshold}; use smaller segments")]
    TraceHeights {
        /// Position of the bound in the verifying key.
        index: usize,
        /// The weighted sum of the heights.
        value: u64,
        /// The bound, exclusive.
        threshold: u32,
    },
    /// The traces have the right shape, but are wrong.
    #[error("{0}")]
    Unsatisfied(Box<Unsatisfied>),
}

/// The constraints that do not hold and the messages that do not balance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsatisfied {
    /// Up to [`MAX_DESCRIBED`] violated constraints, each with its first row.
    pub constraints: Vec<ConstraintViolation>,
    /// How many constraints are violated somewhere, over all AIRs.
    pub violated_constraints: usize,
    /// Up to [`MAX_DESCRIBED`] unbalanced messages of each bus.
    pub messages: Vec<UnbalancedMessage>,
    /// How many messages are unbalanced, over all buses.
    pub unbalanced_messages: usize,
}

/// A constraint that is not zero on some row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstraintViolation {
    /// The AIR's name.
    pub air: String,
    /// Position in the verifying key's list of this AIR's constraints.
    pub constraint: usize,
    /// The constraint, with column names where they are known; `'` marks the next row.
    pub expression: String,
    /// The first row on which it does not hold.
    pub row: usize,
    /// On how many rows it does not hold.
    pub rows: usize,
    /// Its value on the first row, canonical.
    pub value: u64,
    /// The cells it reads on the first row: name and canonical value. At most 24.
    pub cells: Vec<(String, u64)>,
}

/// A bus message that is not received as often as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnbalancedMessage {
    /// Index and, where known, name of the bus.
    pub bus: String,
    /// The message, canonical.
    pub message: Vec<u64>,
    /// Sum of its multiplicities, as the representative of smallest absolute value.
    pub sum: i64,
    /// Who sends (positive) and receives (negative) it. At most 8.
    pub contributions: Vec<Contribution>,
    /// How many interactions have a part in it.
    pub interactions: usize,
}

/// One interaction's part in an unbalanced message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contribution {
    /// Name of the AIR.
    pub air: String,
    /// Row of its trace.
    pub row: usize,
    /// Position among the AIR's interactions.
    pub interaction: usize,
    /// Multiplicity, as the representative of smallest absolute value.
    pub count: i64,
}

impl Display for Unsatisfied {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} constraint(s) violated, {} bus message(s) unbalanced",
            self.violated_constraints, self.unbalanced_messages
        )?;
        for violation in &self.constraints {
            write!(f, "\n  {violation}")?;
        }
        write_more(f, self.violated_constraints, self.constraints.len())?;
        for message in &self.messages {
            write!(f, "\n  {message}")?;
        }
        write_more(f, self.unbalanced_messages, self.messages.len())
    }
}

fn write_more(f: &mut Formatter<'_>, total: usize, shown: usize) -> fmt::Result {
    match total - shown {
        0 => Ok(()),
        more => write!(f, "\n  … and {more} more"),
    }
}

impl Display for ConstraintViolation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "AIR {}, row {}, constraint {}: {} = {}",
            self.air, self.row, self.constraint, self.expression, self.value
        )?;
        if !self.cells.is_empty() {
            let cells = self
                .cells
                .iter()
                .map(|(name, value)| format!("{name} = {value}"))
                .join(", ");
            write!(f, ", where {cells}")?;
        }
        match self.rows {
            1 => Ok(()),
            rows => write!(f, " (violated on {rows} rows)"),
        }
    }
}

impl Display for UnbalancedMessage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bus {}, message {:?}: multiplicities sum to {}:",
            self.bus, self.message, self.sum
        )?;
        for contribution in &self.contributions {
            write!(
                f,
                "\n    {:+} from AIR {}, row {}, interaction {}",
                contribution.count, contribution.air, contribution.row, contribution.interaction
            )?;
        }
        match self.interactions - self.contributions.len() {
            0 => Ok(()),
            more => write!(f, "\n    … and {more} more"),
        }
    }
}

/// Checks the traces of one segment against the proving key.
///
/// # Errors
/// [`MockError::Unsatisfied`] names AIR, row and constraint, or bus, message and the AIRs that send and receive it;
/// the other variants say which trace has the wrong shape.
pub fn check<E: StarkEngine>(
    engine: &E,
    pk: &DeviceMultiStarkProvingKey<E::PB>,
    ctx: &ProvingContext<E::PB>,
    labels: &Labels,
) -> Result<MockReport, MockError> {
    check_shapes(engine.params(), pk, ctx, labels)?;

    let mut report = MockReport::default();
    let mut failure = Unsatisfied::default();
    let balance = BusBalance::default();
    for (air_id, air_ctx) in &ctx.per_trace {
        let air = AirCheck::new(engine, &pk.per_air[*air_id], air_ctx, *air_id, labels);
        let violations = Mutex::new(BTreeMap::new());
        let messages: usize = air
            .chunks()
            .into_par_iter()
            .map(|rows| {
                let values = air.evaluate(rows.clone());
                air.find_violations(&values, rows.clone(), &violations);
                balance.add(&air, &values, rows)
            })
            .sum();
        let violations = violations
            .into_inner()
            .expect("no thread panicked while it held the lock");
        failure.violated_constraints += violations.len();
        let room = MAX_DESCRIBED - failure.constraints.len();
        failure.constraints.extend(
            violations
                .into_iter()
                .take(room)
                .map(|(constraint, (row, rows))| air.describe(constraint, row, rows)),
        );
        report.airs += 1;
        report.rows += air.height;
        report.cells += air.height * air.main.iter().map(|part| part.width()).sum::<usize>();
        report.constraints += air.height * air.dag.constraints.constraint_idx.len();
        report.messages += messages;
    }

    let unbalanced = balance.unbalanced();
    failure.unbalanced_messages = unbalanced.len();
    if !unbalanced.is_empty() {
        let described = unbalanced
            .into_iter()
            .chunk_by(|fingerprint| bus_of(*fingerprint))
            .into_iter()
            .flat_map(|(_, of_bus)| of_bus.take(MAX_DESCRIBED).collect::<Vec<_>>())
            .collect();
        failure.messages = describe_messages(engine, pk, ctx, labels, &described);
    }
    if failure.violated_constraints + failure.unbalanced_messages == 0 {
        Ok(report)
    } else {
        Err(MockError::Unsatisfied(Box::new(failure)))
    }
}

/// What the verifier wants of the traces' shapes.
fn check_shapes<PB: ProverBackend>(
    params: &SystemParams,
    pk: &DeviceMultiStarkProvingKey<PB>,
    ctx: &ProvingContext<PB>,
    labels: &Labels,
) -> Result<(), MockError> {
    let mut seen = BTreeMap::new();
    for (air_id, air_ctx) in &ctx.per_trace {
        let Some(air_pk) = pk.per_air.get(*air_id) else {
            return Err(MockError::UnknownAir {
                air_id: *air_id,
                airs: pk.per_air.len(),
            });
        };
        let air = || labels.air(*air_id, &air_pk.air_name).to_string();
        let height = air_ctx.common_main.height();
        if seen.insert(*air_id, height).is_some() {
            return Err(MockError::DuplicateAir { air: air() });
        }
        let max_log_height = params.log_stacked_height();
        if !height.is_power_of_two() || height > 1 << max_log_height {
            return Err(MockError::Height {
                air: air(),
                height,
                max_log_height,
            });
        }
        let width = &air_pk.vk.params.width;
        if air_ctx.cached_mains.len() != width.cached_mains.len() {
            return Err(MockError::CachedTraces {
                air: air(),
                expected: width.cached_mains.len(),
                actual: air_ctx.cached_mains.len(),
            });
        }
        let cached = air_ctx.cached_mains.iter().map(|part| &part.trace);
        let preprocessed = air_pk.preprocessed_data.iter().map(|part| &part.trace);
        let parts = cached
            .zip(&width.cached_mains)
            .enumerate()
            .map(|(index, (matrix, width))| (format!("cached trace {index}"), matrix, *width))
            .chain([(
                "main trace".to_string(),
                &air_ctx.common_main,
                width.common_main,
            )])
            .chain(preprocessed.map(|matrix| {
                (
                    "preprocessed trace".to_string(),
                    matrix,
                    width.preprocessed.unwrap_or(0),
                )
            }));
        for (part, matrix, expected) in parts {
            if matrix.width() != expected {
                return Err(MockError::Width {
                    air: air(),
                    part,
                    expected,
                    actual: matrix.width(),
                });
            }
            if matrix.height() != height {
                return Err(MockError::PartHeight {
                    air: air(),
                    part,
                    expected: height,
                    actual: matrix.height(),
                });
            }
        }
        let expected = air_pk.vk.params.num_public_values;
        if air_ctx.public_values.len() != expected {
            return Err(MockError::PublicValues {
                air: air(),
                expected,
                actual: air_ctx.public_values.len(),
            });
        }
    }
    for (air_id, air_pk) in pk.per_air.iter().enumerate() {
        if air_pk.vk.is_required && !seen.contains_key(&air_id) {
            return Err(MockError::MissingAir {
                air: labels.air(air_id, &air_pk.air_name).to_string(),
            });
        }
    }
    check_trace_heights(&pk.trace_height_constraints, &seen)
}

fn check_trace_heights(
    bounds: &[LinearConstraint],
    heights: &BTreeMap<usize, usize>,
) -> Result<(), MockError> {
    for (index, bound) in bounds.iter().enumerate() {
        let value = heights
            .iter()
            .map(|(air_id, height)| u64::from(bound.coefficients[*air_id]) * *height as u64)
            .sum();
        if value >= u64::from(bound.threshold) {
            return Err(MockError::TraceHeights {
                index,
                value,
                threshold: bound.threshold,
            });
        }
    }
    Ok(())
}

/// One AIR with its traces on the host.
struct AirCheck<'a, F> {
    name: &'a str,
    dag: &'a SymbolicConstraintsDag<F>,
    preprocessed: Option<ColMajorMatrix<F>>,
    /// The cached main traces, then the common one.
    main: Vec<ColMajorMatrix<F>>,
    public_values: &'a [F],
    height: usize,
    columns: Option<&'a [String]>,
}

impl<'a, F: PrimeField64> AirCheck<'a, F> {
    fn new<E>(
        engine: &E,
        pk: &'a DeviceStarkProvingKey<E::PB>,
        ctx: &'a AirProvingContext<E::PB>,
        air_id: usize,
        labels: &'a Labels,
    ) -> Self
    where
        E: StarkEngine,
        E::SC: StarkProtocolConfig<F = F>,
    {
        let to_host = |matrix| engine.device().transport_matrix_from_device_to_host(matrix);
        let has_common_main = pk.vk.params.width.common_main != 0;
        Self {
            name: labels.air(air_id, &pk.air_name),
            dag: &pk.vk.symbolic_constraints,
            preprocessed: pk
                .preprocessed_data
                .as_ref()
                .map(|data| to_host(&data.trace)),
            main: ctx
                .cached_mains
                .iter()
                .map(|part| &part.trace)
                .chain(has_common_main.then_some(&ctx.common_main))
                .map(to_host)
                .collect(),
            public_values: &ctx.public_values,
            height: ctx.common_main.height(),
            columns: labels.columns.get(&air_id).map(Vec::as_slice),
        }
    }

    /// The trace's rows in pieces whose node values fit into [`NODE_VALUES`].
    fn chunks(&self) -> Vec<Range<usize>> {
        let rows = (NODE_VALUES / self.dag.constraints.nodes.len().max(1)).clamp(1, 1024);
        (0..self.height)
            .step_by(rows)
            .map(|start| start..(start + rows).min(self.height))
            .collect()
    }

    /// Values of all nodes of the dag on some rows, node-major: `values[node * rows.len() + row - rows.start]`.
    fn evaluate(&self, rows: Range<usize>) -> Vec<F> {
        let nodes = &self.dag.constraints.nodes;
        let count = rows.len();
        let mut values = F::zero_vec(nodes.len() * count);
        for (index, node) in nodes.iter().enumerate() {
            let (known, rest) = values.split_at_mut(index * count);
            let out = &mut rest[..count];
            let known = |node: usize| &known[node * count..(node + 1) * count];
            match node {
                SymbolicExpressionNode::Variable(variable) => match variable.entry {
                    Entry::Preprocessed { offset } => {
                        let matrix = self.preprocessed.as_ref().expect(
                            "keygen keeps the preprocessed trace of an AIR whose constraints read one",
                        );
                        copy_rotated(matrix.column(variable.index), rows.start + offset, out);
                    }
                    Entry::Main { part_index, offset } => {
                        let column = self.main[part_index].column(variable.index);
                        copy_rotated(column, rows.start + offset, out);
                    }
                    Entry::Public => out.fill(self.public_values[variable.index]),
                    Entry::Challenge => {
                        unreachable!("stark-backend 2 has no constraints over challenges")
                    }
                },
                SymbolicExpressionNode::IsFirstRow => {
                    if rows.start == 0 {
                        out[0] = F::ONE;
                    }
                }
                SymbolicExpressionNode::IsLastRow => {
                    if rows.end == self.height {
                        out[count - 1] = F::ONE;
                    }
                }
                SymbolicExpressionNode::IsTransition => {
                    out.fill(F::ONE);
                    if rows.end == self.height {
                        out[count - 1] = F::ZERO;
                    }
                }
                SymbolicExpressionNode::Constant(value) => out.fill(*value),
                SymbolicExpressionNode::Add {
                    left_idx,
                    right_idx,
                    ..
                } => combine(out, known(*left_idx), known(*right_idx), |x, y| x + y),
                SymbolicExpressionNode::Sub {
                    left_idx,
                    right_idx,
                    ..
                } => combine(out, known(*left_idx), known(*right_idx), |x, y| x - y),
                SymbolicExpressionNode::Mul {
                    left_idx,
                    right_idx,
                    ..
                } => combine(out, known(*left_idx), known(*right_idx), |x, y| x * y),
                SymbolicExpressionNode::Neg { idx, .. } => {
                    combine(out, known(*idx), known(*idx), |x, _| -x)
                }
            }
        }
        values
    }

    /// Notes the constraints violated on these rows: constraint → (first row, number of rows).
    fn find_violations(
        &self,
        values: &[F],
        rows: Range<usize>,
        violations: &Mutex<BTreeMap<usize, (usize, usize)>>,
    ) {
        let count = rows.len();
        for (constraint, node) in self.dag.constraints.constraint_idx.iter().enumerate() {
            let values = &values[node * count..(node + 1) * count];
            let Some(first) = values.iter().position(|value| !value.is_zero()) else {
                continue;
            };
            let violated = values.iter().filter(|value| !value.is_zero()).count();
            let mut violations = violations
                .lock()
                .expect("no thread panics while it holds the lock");
            let entry = violations
                .entry(constraint)
                .or_insert((rows.start + first, 0));
            entry.0 = entry.0.min(rows.start + first);
            entry.1 += violated;
        }
    }

    /// Calls `visit(fingerprint, row, interaction, message, count)` for every message of non-zero multiplicity.
    fn for_each_message(
        &self,
        values: &[F],
        rows: Range<usize>,
        mut visit: impl FnMut(u64, usize, usize, &[F], F),
    ) {
        let count = rows.len();
        let mut message = vec![];
        for (index, interaction) in self.dag.interactions.iter().enumerate() {
            for row in 0..count {
                let multiplicity = values[interaction.count * count + row];
                if multiplicity.is_zero() {
                    continue;
                }
                message.clear();
                message.extend(
                    interaction
                        .message
                        .iter()
                        .map(|node| values[node * count + row]),
                );
                visit(
                    fingerprint(interaction.bus_index, &message),
                    rows.start + row,
                    index,
                    &message,
                    multiplicity,
                );
            }
        }
    }

    fn describe(&self, constraint: usize, row: usize, rows: usize) -> ConstraintViolation {
        let node = self.dag.constraints.constraint_idx[constraint];
        let values = self.evaluate(row..row + 1);
        let mut expression = String::new();
        self.write_expression(node, MAX_EXPRESSION_DEPTH, &mut expression);
        let cells = self
            .variables_of(node)
            .into_iter()
            .take(MAX_CELLS)
            .map(|node| {
                let mut name = String::new();
                self.write_expression(node, 1, &mut name);
                (name, values[node].as_canonical_u64())
            })
            .collect();
        ConstraintViolation {
            air: self.name.to_string(),
            constraint,
            expression,
            row,
            rows,
            value: values[node].as_canonical_u64(),
            cells,
        }
    }

    /// The variable nodes that a node depends on.
    fn variables_of(&self, node: usize) -> Vec<usize> {
        let nodes = &self.dag.constraints.nodes;
        let mut seen = BTreeSet::new();
        let mut stack = vec![node];
        while let Some(node) = stack.pop() {
            if seen.insert(node) {
                stack.extend(children(&nodes[node]).into_iter().flatten());
            }
        }
        seen.into_iter()
            .filter(|node| matches!(nodes[*node], SymbolicExpressionNode::Variable(_)))
            .collect()
    }

    /// Appends an expression to `out`, cut off at [`MAX_EXPRESSION_LENGTH`] and below `depth` levels.
    fn write_expression(&self, node: usize, depth: usize, out: &mut String) {
        if out.len() > MAX_EXPRESSION_LENGTH || depth == 0 {
            if !out.ends_with('…') {
                out.push('…');
            }
            return;
        }
        match &self.dag.constraints.nodes[node] {
            SymbolicExpressionNode::Variable(variable) => {
                let (name, offset) = match variable.entry {
                    Entry::Preprocessed { offset } => {
                        (format!("preprocessed[{}]", variable.index), offset)
                    }
                    Entry::Main { part_index, offset } => {
                        let common = part_index + 1 == self.main.len();
                        let label = self
                            .columns
                            .filter(|_| common)
                            .and_then(|columns| columns.get(variable.index));
                        let name = match label {
                            Some(label) => label.clone(),
                            None if common => format!("column[{}]", variable.index),
                            None => format!("cached[{part_index}][{}]", variable.index),
                        };
                        (name, offset)
                    }
                    Entry::Public => (format!("public_value[{}]", variable.index), 0),
                    Entry::Challenge => (format!("challenge[{}]", variable.index), 0),
                };
                out.push_str(&name);
                (0..offset).for_each(|_| out.push('\''));
            }
            SymbolicExpressionNode::IsFirstRow => out.push_str("is_first_row"),
            SymbolicExpressionNode::IsLastRow => out.push_str("is_last_row"),
            SymbolicExpressionNode::IsTransition => out.push_str("is_transition"),
            SymbolicExpressionNode::Constant(value) => out.push_str(&signed(*value).to_string()),
            SymbolicExpressionNode::Add {
                left_idx,
                right_idx,
                ..
            } => {
                self.write_expression(*left_idx, depth - 1, out);
                out.push_str(" + ");
                self.write_expression(*right_idx, depth - 1, out);
            }
            SymbolicExpressionNode::Sub {
                left_idx,
                right_idx,
                ..
            } => {
                self.write_expression(*left_idx, depth - 1, out);
                out.push_str(" - ");
                self.write_factor(*right_idx, depth - 1, out);
            }
            SymbolicExpressionNode::Mul {
                left_idx,
                right_idx,
                ..
            } => {
                self.write_factor(*left_idx, depth - 1, out);
                out.push_str(" * ");
                self.write_factor(*right_idx, depth - 1, out);
            }
            SymbolicExpressionNode::Neg { idx, .. } => {
                out.push('-');
                self.write_factor(*idx, depth - 1, out);
            }
        }
    }

    /// An expression, in parentheses if it is a sum.
    fn write_factor(&self, node: usize, depth: usize, out: &mut String) {
        let is_sum = matches!(
            self.dag.constraints.nodes[node],
            SymbolicExpressionNode::Add { .. } | SymbolicExpressionNode::Sub { .. }
        );
        if is_sum {
            out.push('(');
        }
        self.write_expression(node, depth, out);
        if is_sum {
            out.push(')');
        }
    }
}

/// Copies `out.len()` cells of a column from row `start` on, going round at its end.
fn copy_rotated<F: Copy>(column: &[F], start: usize, out: &mut [F]) {
    let start = start % column.len();
    let first = out.len().min(column.len() - start);
    out[..first].copy_from_slice(&column[start..start + first]);
    let rest = out.len() - first;
    out[first..].copy_from_slice(&column[..rest]);
}

fn combine<F: Copy>(out: &mut [F], left: &[F], right: &[F], operation: impl Fn(F, F) -> F) {
    for ((out, left), right) in out.iter_mut().zip(left).zip(right) {
        *out = operation(*left, *right);
    }
}

/// The representative of smallest absolute value.
fn signed<F: PrimeField64>(value: F) -> i64 {
    let value = value.as_canonical_u64();
    if value > F::ORDER_U64 / 2 {
        -((F::ORDER_U64 - value) as i64)
    } else {
        value as i64
    }
}

/// Bits of a fingerprint that are the message's hash; the bus is above them.
const HASH_BITS: u32 = u64::BITS - BusIndex::BITS;

fn fingerprint<F: PrimeField64>(bus: BusIndex, message: &[F]) -> u64 {
    // SipHash with fixed keys: the same run gives the same report.
    let mut hasher = DefaultHasher::new();
    hasher.write_usize(message.len());
    for value in message {
        hasher.write_u64(value.as_canonical_u64());
    }
    (u64::from(bus) << HASH_BITS) | (hasher.finish() >> BusIndex::BITS)
}

fn bus_of(fingerprint: u64) -> u64 {
    fingerprint >> HASH_BITS
}

/// Sums of multiplicities by message fingerprint, in shards that threads lock one at a time. Sums that come to zero
/// are dropped at once, so that the memory needed is that of the messages still open.
struct BusBalance<F> {
    shards: Vec<Mutex<FxHashMap<u64, F>>>,
}

impl<F> Default for BusBalance<F> {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl<F: PrimeField64> BusBalance<F> {
    /// Adds the messages of some rows; returns how many there are.
    fn add(&self, air: &AirCheck<'_, F>, values: &[F], rows: Range<usize>) -> usize {
        let mut by_shard = vec![vec![]; SHARDS];
        air.for_each_message(values, rows, |fingerprint, _, _, _, count| {
            by_shard[fingerprint as usize % SHARDS].push((fingerprint, count));
        });
        let messages = by_shard.iter().map(Vec::len).sum();
        for (shard, added) in self.shards.iter().zip(by_shard) {
            if added.is_empty() {
                continue;
            }
            let mut sums = shard
                .lock()
                .expect("no thread panics while it holds the lock");
            for (fingerprint, count) in added {
                let sum = sums.entry(fingerprint).or_insert(F::ZERO);
                *sum += count;
                if sum.is_zero() {
                    sums.remove(&fingerprint);
                }
            }
        }
        messages
    }

    /// The fingerprints that do not sum to zero.
    fn unbalanced(self) -> BTreeSet<u64> {
        self.shards
            .into_iter()
            .flat_map(|shard| {
                shard
                    .into_inner()
                    .expect("no thread panicked while it held the lock")
                    .into_keys()
            })
            .collect()
    }
}

/// Walks the traces again to name the unbalanced messages.
fn describe_messages<E: StarkEngine>(
    engine: &E,
    pk: &DeviceMultiStarkProvingKey<E::PB>,
    ctx: &ProvingContext<E::PB>,
    labels: &Labels,
    unbalanced: &BTreeSet<u64>,
) -> Vec<UnbalancedMessage> {
    struct Found<F> {
        bus: BusIndex,
        message: Vec<F>,
        sum: F,
        contributions: Vec<(usize, usize, usize, F)>,
    }
    let found: Mutex<BTreeMap<u64, Found<Val<E::SC>>>> = Mutex::default();
    for (air_id, air_ctx) in &ctx.per_trace {
        let air = AirCheck::new(engine, &pk.per_air[*air_id], air_ctx, *air_id, labels);
        air.chunks().into_par_iter().for_each(|rows| {
            let values = air.evaluate(rows.clone());
            air.for_each_message(
                &values,
                rows,
                |fingerprint, row, interaction, message, count| {
                    if !unbalanced.contains(&fingerprint) {
                        return;
                    }
                    let mut found = found
                        .lock()
                        .expect("no thread panics while it holds the lock");
                    let entry = found.entry(fingerprint).or_insert_with(|| Found {
                        bus: air.dag.interactions[interaction].bus_index,
                        message: message.to_vec(),
                        sum: Val::<E::SC>::ZERO,
                        contributions: vec![],
                    });
                    entry.sum += count;
                    entry.contributions.push((*air_id, row, interaction, count));
                },
            );
        });
    }
    let found = found
        .into_inner()
        .expect("no thread panicked while it held the lock");
    found
        .into_values()
        .sorted_by_key(|found| found.bus)
        .map(|mut found| {
            found
                .contributions
                .sort_by_key(|(air_id, row, interaction, _)| (*air_id, *row, *interaction));
            UnbalancedMessage {
                bus: labels.bus(found.bus),
                message: found
                    .message
                    .iter()
                    .map(|value| value.as_canonical_u64())
                    .collect(),
                sum: signed(found.sum),
                interactions: found.contributions.len(),
                contributions: found
                    .contributions
                    .into_iter()
                    .take(MAX_CONTRIBUTIONS)
                    .map(|(air_id, row, interaction, count)| Contribution {
                        air: labels.air(air_id, &pk.per_air[air_id].air_name).to_string(),
                        row,
                        interaction,
                        count: signed(count),
                    })
                    .collect(),
            }
        })
        .collect()
}
