//! Evaluates the interactions' expressions directly. Slow, obvious, the oracle of every test.

use p3_field::{PrimeCharacteristicRing, PrimeField32};
use powdr_autoprecompiles::expression::AlgebraicExpression;
use powdr_expression::{
    AlgebraicBinaryOperation, AlgebraicBinaryOperator, AlgebraicUnaryOperation,
    AlgebraicUnaryOperator,
};

use super::{
    error::BusError,
    field::to_f,
    interaction::{CountingInteractions, Expression, Multiplicity},
    kernel::{count, Lookup, OutOfTable},
    table::Histograms,
    trace::TraceView,
    F,
};

/// The value of an expression, given those of the columns it refers to.
pub fn evaluate(expression: &Expression, column: &impl Fn(u64) -> F) -> F {
    match expression {
        AlgebraicExpression::Number(value) => to_f(*value),
        AlgebraicExpression::Reference(reference) => column(reference.id),
        AlgebraicExpression::BinaryOperation(AlgebraicBinaryOperation { left, op, right }) => {
            let (left, right) = (evaluate(left, column), evaluate(right, column));
            match op {
                AlgebraicBinaryOperator::Add => left + right,
                AlgebraicBinaryOperator::Sub => left - right,
                AlgebraicBinaryOperator::Mul => left * right,
            }
        }
        AlgebraicExpression::UnaryOperation(AlgebraicUnaryOperation { op, expr }) => match op {
            AlgebraicUnaryOperator::Minus => -evaluate(expr, column),
        },
    }
}

/// Counts every interaction of the first `live_rows` rows, or says which has no row in its table.
pub fn replay(
    interactions: &CountingInteractions,
    trace: TraceView<'_>,
    live_rows: usize,
    histograms: &mut Histograms,
) -> Result<(), BusError> {
    trace.check(interactions.columns().width(), live_rows)?;
    for row in 0..live_rows {
        let column = |poly_id| {
            interactions
                .columns()
                .index(poly_id)
                .map_or(F::ZERO, |index| trace.get(index, row))
        };
        for interaction in interactions.interactions() {
            let multiplicity = match &interaction.multiplicity {
                Multiplicity::One => 1,
                Multiplicity::Expression(expression) => {
                    evaluate(expression, &column).as_canonical_u32()
                }
            };
            if multiplicity == 0 {
                continue;
            }
            let arguments = interaction
                .arguments
                .each_ref()
                .map(|argument| evaluate(argument, &column).as_canonical_u32());
            let selector = interaction
                .selector
                .as_ref()
                .map(|selector| evaluate(selector, &column).as_canonical_u32());
            count(
                interactions.tables(),
                Lookup {
                    interaction: interaction.index,
                    table: interaction.table,
                    row,
                    arguments,
                    selector,
                    multiplicity,
                },
                histograms,
                OutOfTable::Report,
            )?;
        }
    }
    Ok(())
}
