//! One AIR of a segment: its constraints and interactions, evaluated on the trace.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Mutex,
};

use openvm_stark_backend::{
    air_builders::symbolic::{
        symbolic_variable::Entry, SymbolicConstraintsDag, SymbolicExpressionNode,
    },
    prover::{
        AirProvingContext, ColMajorMatrix, DeviceDataTransporter, DeviceStarkProvingKey,
        MatrixDimensions,
    },
    StarkEngine, StarkProtocolConfig,
};
use p3_field::PrimeField64;

use super::{balance::fingerprint, ConstraintViolation};
use crate::{bus::dag::children, vm::Labels};

/// An expression is cut off after this many characters.
const MAX_EXPRESSION_LENGTH: usize = 400;
/// An expression is cut off below this many levels.
const MAX_EXPRESSION_DEPTH: usize = 200;
/// At most this many cells that a violated constraint reads are shown.
const MAX_CELLS: usize = 24;
/// Field elements that one thread's node values may take (1 MiB).
const NODE_VALUES: usize = 1 << 18;

/// One AIR with its traces on the host.
pub(super) struct AirCheck<'a, F> {
    name: &'a str,
    pub(super) dag: &'a SymbolicConstraintsDag<F>,
    preprocessed: Option<ColMajorMatrix<F>>,
    /// The cached main traces, then the common one.
    pub(super) main: Vec<ColMajorMatrix<F>>,
    public_values: &'a [F],
    pub(super) height: usize,
    columns: Option<&'a [String]>,
}

impl<'a, F: PrimeField64> AirCheck<'a, F> {
    pub(super) fn new<E>(
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
    pub(super) fn chunks(&self) -> Vec<Range<usize>> {
        let rows = (NODE_VALUES / self.dag.constraints.nodes.len().max(1)).clamp(1, 1024);
        (0..self.height)
            .step_by(rows)
            .map(|start| start..(start + rows).min(self.height))
            .collect()
    }

    /// Values of all nodes of the dag on some rows, node-major: `values[node * rows.len() + row - rows.start]`.
    pub(super) fn evaluate(&self, rows: Range<usize>) -> Vec<F> {
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
    pub(super) fn find_violations(
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
    pub(super) fn for_each_message(
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

    pub(super) fn describe(
        &self,
        constraint: usize,
        row: usize,
        rows: usize,
    ) -> ConstraintViolation {
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
pub(super) fn signed<F: PrimeField64>(value: F) -> i64 {
    let value = value.as_canonical_u64();
    if value > F::ORDER_U64 / 2 {
        -((F::ORDER_U64 - value) as i64)
    } else {
        value as i64
    }
}
