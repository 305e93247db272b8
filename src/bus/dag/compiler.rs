//! Expressions → dag → rules → encoded words and output descriptors.

use std::sync::Arc;

use openvm_stark_backend::air_builders::symbolic::{
    symbolic_expression::SymbolicExpression,
    symbolic_variable::{Entry, SymbolicVariable},
    SymbolicDagBuilder, SymbolicExpressionDag, SymbolicExpressionNode,
};
use p3_field::PrimeField32;
use powdr_autoprecompiles::expression::AlgebraicExpression;
use powdr_expression::{
    AlgebraicBinaryOperation, AlgebraicBinaryOperator, AlgebraicUnaryOperation,
    AlgebraicUnaryOperator,
};
use rustc_hash::FxHashMap;

use super::{
    rules::{Codec, Rule, Source, SymbolicRulesBuilder},
    Dispatch, Interaction, Output, Program, Schedule, SharedColumns, MAX_COLUMNS, MAX_SLOTS,
    MULTIPLICITY_IS_ONE, OUTPUT_COLUMN, OUTPUT_CONSTANT, OUTPUT_SLOT,
};
use crate::bus::{
    error::BusError,
    field::to_f,
    interaction::{
        ColumnOrder, CountingInteraction, CountingInteractions, Expression, Multiplicity,
    },
    F,
};

/// Builds the dag.
struct DagBuilder<'a> {
    columns: &'a ColumnOrder,
    builder: SymbolicDagBuilder<F>,
    /// The builder remembers expressions by their address: while it lives, none may be freed, or another expression at
    /// the same address would silently get the freed one's node.
    kept_alive: Vec<Arc<SymbolicExpression<F>>>,
}

impl DagBuilder<'_> {
    fn add(&mut self, expression: &Expression, interaction: usize) -> Result<usize, BusError> {
        let expression = Arc::new(self.convert(expression, interaction)?);
        let node = self.builder.add_expr(&expression);
        self.kept_alive.push(expression);
        Ok(node)
    }

    fn convert(
        &mut self,
        expression: &Expression,
        interaction: usize,
    ) -> Result<SymbolicExpression<F>, BusError> {
        Ok(match expression {
            AlgebraicExpression::Number(value) => SymbolicExpression::Constant(to_f(*value)),
            AlgebraicExpression::Reference(reference) => {
                let index =
                    self.columns
                        .index(reference.id)
                        .ok_or_else(|| BusError::UnknownColumn {
                            interaction,
                            column: reference.name.to_string(),
                            poly_id: reference.id,
                        })?;
                if index >= MAX_COLUMNS {
                    return Err(BusError::TooLarge {
                        interaction,
                        what: "a column index",
                        value: index,
                        limit: MAX_COLUMNS - 1,
                    });
                }
                let entry = Entry::Main {
                    part_index: 0,
                    offset: 0,
                };
                SymbolicExpression::Variable(SymbolicVariable::new(entry, index))
            }
            AlgebraicExpression::BinaryOperation(AlgebraicBinaryOperation { left, op, right }) => {
                let x = Arc::new(self.convert(left, interaction)?);
                let y = Arc::new(self.convert(right, interaction)?);
                let (left, right) = (x.degree_multiple(), y.degree_multiple());
                match op {
                    AlgebraicBinaryOperator::Add => SymbolicExpression::Add {
                        x,
                        y,
                        degree_multiple: left.max(right),
                    },
                    AlgebraicBinaryOperator::Sub => SymbolicExpression::Sub {
                        x,
                        y,
                        degree_multiple: left.max(right),
                    },
                    AlgebraicBinaryOperator::Mul => SymbolicExpression::Mul {
                        x,
                        y,
                        degree_multiple: left + right,
                    },
                }
            }
            AlgebraicExpression::UnaryOperation(AlgebraicUnaryOperation { op, expr }) => match op {
                AlgebraicUnaryOperator::Minus => {
                    let x = Arc::new(self.convert(expr, interaction)?);
                    SymbolicExpression::Neg {
                        degree_multiple: x.degree_multiple(),
                        x,
                    }
                }
            },
        })
    }
}

/// An interaction's operands as nodes of the dag; `None` for what it does not have.
pub(super) struct Operands {
    pub(super) multiplicity: Option<usize>,
    pub(super) arguments: [usize; 2],
    pub(super) selector: Option<usize>,
}

impl Operands {
    pub(super) fn nodes(&self) -> impl Iterator<Item = usize> + '_ {
        self.multiplicity
            .into_iter()
            .chain(self.arguments)
            .chain(self.selector)
    }
}

/// The dag of all operands, interaction after interaction.
pub(super) fn build_dag(
    interactions: &[CountingInteraction],
    columns: &ColumnOrder,
) -> Result<(Vec<SymbolicExpressionNode<F>>, Vec<Operands>), BusError> {
    let mut builder = DagBuilder {
        columns,
        builder: SymbolicDagBuilder::new(),
        kept_alive: Vec::new(),
    };
    let operands = interactions
        .iter()
        .map(|interaction| {
            let mut add = |expression| builder.add(expression, interaction.index);
            Ok(Operands {
                multiplicity: match &interaction.multiplicity {
                    Multiplicity::One => None,
                    Multiplicity::Expression(expression) => Some(add(expression)?),
                },
                arguments: [
                    add(&interaction.arguments[0])?,
                    add(&interaction.arguments[1])?,
                ],
                selector: interaction.selector.as_ref().map(add).transpose()?,
            })
        })
        .collect::<Result<Vec<_>, BusError>>()?;
    Ok((builder.builder.nodes, operands))
}

impl Program {
    /// Compiles the interactions with a schedule.
    ///
    /// # Errors
    /// [`BusError::TooLarge`] for a column or a slot that the codec cannot name.
    pub fn compile(
        interactions: &CountingInteractions,
        schedule: Schedule,
    ) -> Result<Self, BusError> {
        let ordered = interactions.interactions();
        let (nodes, operands) = build_dag(ordered, interactions.columns())?;
        let mut constraint_idx: Vec<usize> = operands.iter().flat_map(Operands::nodes).collect();
        constraint_idx.sort_unstable();
        constraint_idx.dedup();
        let node_count = nodes.len();
        let dag = SymbolicExpressionDag {
            nodes,
            constraint_idx,
        };

        // The node after which an interaction has all its operands. Interactions are dispatched in their order, so
        // none before its predecessor.
        let mut last_node = 0;
        let complete: Vec<usize> = operands
            .iter()
            .map(|operands| {
                last_node = operands.nodes().fold(last_node, usize::max);
                last_node
            })
            .collect();
        let held = operands
            .iter()
            .zip(&complete)
            .flat_map(|(operands, &last)| {
                let until = match schedule.dispatch {
                    Dispatch::Pinned => node_count,
                    // The last operand may not take the slot of another: only the next node may.
                    Dispatch::Early => last + 1,
                };
                operands.nodes().map(move |node| (node, until))
            });
        let buffer_vars = schedule.shared_columns == SharedColumns::Buffered;
        let mut builder = SymbolicRulesBuilder::new(&dag, buffer_vars).hold_until(held);
        let scheduled = if node_count == 0 {
            None
        } else {
            builder.set_range(0, node_count);
            Some(builder.to_rules())
        };
        let (rules, slots, rule_of_node) = match scheduled {
            Some(scheduled) => (
                scheduled.rules,
                scheduled.buffer_size,
                scheduled.dag_idx_to_rule_idx,
            ),
            None => (vec![], 0, FxHashMap::default()),
        };
        if slots > MAX_SLOTS {
            return Err(BusError::TooLarge {
                interaction: ordered.first().map_or(0, |interaction| interaction.index),
                what: "the number of slots",
                value: slots,
                limit: MAX_SLOTS,
            });
        }
        let rule_of = |node: usize| {
            *rule_of_node
                .get(&node)
                .expect("every operand is an output of the dag")
        };
        let output = |node: usize| output_of(&rules[rule_of(node)].inner);
        // A rule that fills no slot is a bare column or a constant, which its users read themselves: nothing to run.
        let mut kept_before = Vec::with_capacity(rules.len() + 1);
        let mut encoded = Vec::with_capacity(rules.len());
        for rule in &rules {
            kept_before.push(encoded.len());
            if !matches!(rule.inner, Rule::Variable(_)) {
                encoded.push(rule.encode());
            }
        }
        kept_before.push(encoded.len());
        let dispatch_after = |last: usize| match schedule.dispatch {
            Dispatch::Pinned => encoded.len(),
            // `last` is the node of some operand, of this interaction or of one before it.
            Dispatch::Early => kept_before[rule_of(last) + 1],
        };
        let compiled = ordered
            .iter()
            .zip(&operands)
            .zip(&complete)
            .map(|((interaction, operands), &last)| Interaction {
                table: interaction.table as u32,
                flags: match operands.multiplicity {
                    None => MULTIPLICITY_IS_ONE,
                    Some(_) => 0,
                },
                multiplicity: operands.multiplicity.map_or(Output::constant(1), output),
                first: output(operands.arguments[0]),
                second: output(operands.arguments[1]),
                selector: operands.selector.map_or(Output::constant(0), output),
                // The codec's slots end below 2^20, and so do the rules that fill them many times over.
                dispatch_after: dispatch_after(last) as u32,
            })
            .collect::<Vec<_>>();
        Ok(Self {
            schedule,
            rules: encoded,
            interactions: compiled,
            slots,
            nodes: node_count,
            indices: ordered
                .iter()
                .map(|interaction| interaction.index)
                .collect(),
            kinds: ordered
                .iter()
                .map(|interaction| interaction.table)
                .collect(),
            tables: *interactions.tables(),
            width: interactions.columns().width(),
        })
    }
}

/// Where a rule leaves its value.
fn output_of(rule: &Rule<F>) -> Output {
    let in_slot = |source: &Source<F>| match source {
        Source::Intermediate(slot) => Output {
            kind: OUTPUT_SLOT,
            value: *slot as u32,
        },
        source => unreachable!("an output is kept in a slot, not in {source:?}"),
    };
    match rule {
        Rule::Add(_, _, z) | Rule::Sub(_, _, z) | Rule::Mul(_, _, z) => in_slot(z),
        Rule::Neg(_, z) | Rule::BufferVar(_, z) => in_slot(z),
        Rule::Variable(Source::Var(variable)) => Output {
            kind: OUTPUT_COLUMN,
            value: variable.index as u32,
        },
        Rule::Variable(Source::Constant(value)) => Output {
            kind: OUTPUT_CONSTANT,
            value: value.as_canonical_u32(),
        },
        Rule::Variable(source) => unreachable!("an expression of an APC has no {source:?}"),
    }
}
