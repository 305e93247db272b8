//! Which bus interactions count, into which table, with which expressions; proofs of static multiplicity.

use std::collections::BTreeMap;

use powdr_autoprecompiles::{
    expression::AlgebraicExpression, symbolic_machine::SymbolicBusInteraction,
};
use powdr_expression::{
    AlgebraicBinaryOperation, AlgebraicBinaryOperator, AlgebraicUnaryOperation,
};
use powdr_number::BabyBearField;

use super::{
    error::BusError,
    field::canonical,
    table::{PeripheryTables, TableKind},
};

/// Expressions of interactions.
pub type Expression = AlgebraicExpression<BabyBearField>;

/// The order of the columns of an APC trace: column ids to column indices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnOrder {
    index_of: BTreeMap<u64, usize>,
}

impl ColumnOrder {
    /// The columns in the order of their ids in the iterator.
    pub fn new(poly_ids: impl IntoIterator<Item = u64>) -> Self {
        Self {
            index_of: poly_ids
                .into_iter()
                .enumerate()
                .map(|(index, id)| (id, index))
                .collect(),
        }
    }

    /// The index of the column with this id.
    pub fn index(&self, poly_id: u64) -> Option<usize> {
        self.index_of.get(&poly_id).copied()
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.index_of.len()
    }
}

/// The multiplicity of an interaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Multiplicity {
    /// Provably one on every live row.
    One,
    /// Evaluated row by row.
    Expression(Expression),
}

/// An interaction that counts into a periphery table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountingInteraction {
    /// Its index among all interactions of the APC, for messages.
    pub index: usize,
    /// The table.
    pub table: TableKind,
    /// How often a row counts.
    pub multiplicity: Multiplicity,
    /// The two arguments that the bin is made of: `[value, max_bits]`, `[v0, v1]` or `[x, y]`.
    pub arguments: [Expression; 2],
    /// The selector, for the bitwise lookup.
    pub selector: Option<Expression>,
}

/// The counting interactions of an APC, in their order, over its columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountingInteractions {
    interactions: Vec<CountingInteraction>,
    columns: ColumnOrder,
    tables: PeripheryTables,
}

impl CountingInteractions {
    /// Picks the interactions on the periphery tables' buses out of all interactions of an APC.
    ///
    /// `is_valid` is the id of the column that is one on every live row. The xor argument of the bitwise lookup is
    /// dropped: the bin does not depend on it.
    pub fn new(
        interactions: &[SymbolicBusInteraction<BabyBearField>],
        columns: &ColumnOrder,
        is_valid: Option<u64>,
        tables: &PeripheryTables,
    ) -> Result<Self, BusError> {
        let mut counting = Vec::new();
        for (index, interaction) in interactions.iter().enumerate() {
            let Some(table) = tables.table_of_bus(interaction.id) else {
                continue;
            };
            let (arguments, selector) = match (table, interaction.args.as_slice()) {
                (
                    TableKind::VariableRangeChecker | TableKind::RangeTupleChecker,
                    [first, second],
                ) => ([first.clone(), second.clone()], None),
                (TableKind::BitwiseLookup, [x, y, _, selector]) => {
                    ([x.clone(), y.clone()], Some(selector.clone()))
                }
                (_, arguments) => {
                    return Err(BusError::ArgumentCount {
                        interaction: index,
                        table,
                        found: arguments.len(),
                    })
                }
            };
            let used = arguments.iter().chain(&selector).chain([&interaction.mult]);
            for expression in used {
                check_columns(expression, columns, index)?;
            }
            let multiplicity = if is_one(&interaction.mult, is_valid) {
                Multiplicity::One
            } else {
                Multiplicity::Expression(interaction.mult.clone())
            };
            counting.push(CountingInteraction {
                index,
                table,
                multiplicity,
                arguments,
                selector,
            });
        }
        Ok(Self {
            interactions: counting,
            columns: columns.clone(),
            tables: *tables,
        })
    }

    /// The interactions, in their order.
    pub fn interactions(&self) -> &[CountingInteraction] {
        &self.interactions
    }

    /// The column order that the expressions are over.
    pub fn columns(&self) -> &ColumnOrder {
        &self.columns
    }

    /// The same interactions in another order, a permutation of their positions.
    pub(super) fn permuted(&self, order: &[usize]) -> Self {
        Self {
            interactions: order
                .iter()
                .map(|&position| self.interactions[position].clone())
                .collect(),
            columns: self.columns.clone(),
            tables: self.tables,
        }
    }

    /// The tables.
    pub fn tables(&self) -> &PeripheryTables {
        &self.tables
    }
}

fn check_columns(
    expression: &Expression,
    columns: &ColumnOrder,
    interaction: usize,
) -> Result<(), BusError> {
    match expression {
        AlgebraicExpression::Number(_) => Ok(()),
        AlgebraicExpression::Reference(reference) => columns
            .index(reference.id)
            .map(|_| ())
            .ok_or_else(|| BusError::UnknownColumn {
                interaction,
                column: reference.name.to_string(),
                poly_id: reference.id,
            }),
        AlgebraicExpression::BinaryOperation(AlgebraicBinaryOperation { left, right, .. }) => {
            check_columns(left, columns, interaction)?;
            check_columns(right, columns, interaction)
        }
        AlgebraicExpression::UnaryOperation(AlgebraicUnaryOperation { expr, .. }) => {
            check_columns(expr, columns, interaction)
        }
    }
}

/// Whether the expression is provably one on live rows: the constant 1, the column `is_valid`, products of those.
fn is_one(expression: &Expression, is_valid: Option<u64>) -> bool {
    match expression {
        AlgebraicExpression::Number(value) => canonical(*value) == 1,
        AlgebraicExpression::Reference(reference) => Some(reference.id) == is_valid,
        AlgebraicExpression::BinaryOperation(AlgebraicBinaryOperation {
            left,
            op: AlgebraicBinaryOperator::Mul,
            right,
        }) => is_one(left, is_valid) && is_one(right, is_valid),
        AlgebraicExpression::BinaryOperation(_) | AlgebraicExpression::UnaryOperation(_) => false,
    }
}
