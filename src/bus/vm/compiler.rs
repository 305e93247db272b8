//! Expressions → stack bytecode, folded on the way.
//!
//! Folds at emission: `x * 0 → 0`, `x * 1 → x`, `x * (-1) → -x`, `x ± 0 → x`, `0 - x → -x`, and operations on constants.
//! The deeper operand goes first, so that the stack need of an expression is logarithmic in its size.

use p3_field::{PrimeCharacteristicRing, PrimeField32};
use powdr_autoprecompiles::expression::AlgebraicExpression;
use powdr_expression::{
    AlgebraicBinaryOperation, AlgebraicBinaryOperator, AlgebraicUnaryOperation,
    AlgebraicUnaryOperator,
};

use super::{
    Interaction, Program, Span, ADD, INVERT_OR_ZERO, MUL, MULTIPLICITY_IS_ONE, NEG, PUSH_COLUMN,
    PUSH_CONSTANT, STACK_DEPTH, SUB,
};
use crate::bus::{
    error::BusError,
    field::to_f,
    interaction::{ColumnOrder, CountingInteractions, Expression, Multiplicity},
    F,
};

/// A folded expression.
enum Folded {
    Constant(F),
    Column(u32),
    Negation(Box<Node>),
    Operation(u32, Box<Node>, Box<Node>),
}

struct Node {
    folded: Folded,
    /// Stack entries that evaluating it needs.
    depth: usize,
}

impl Node {
    fn constant(value: F) -> Self {
        Self {
            folded: Folded::Constant(value),
            depth: 1,
        }
    }

    fn as_constant(&self) -> Option<F> {
        match self.folded {
            Folded::Constant(value) => Some(value),
            _ => None,
        }
    }

    fn negate(self) -> Self {
        match self.folded {
            Folded::Constant(value) => Self::constant(-value),
            Folded::Negation(inner) => *inner,
            _ => Self {
                depth: self.depth,
                folded: Folded::Negation(Box::new(self)),
            },
        }
    }

    fn operation(operation: u32, left: Self, right: Self) -> Self {
        // The second operand is evaluated on top of the first's value.
        let in_order = left.depth.max(right.depth + 1);
        let swapped = right.depth.max(left.depth + 1);
        Self {
            depth: in_order.min(swapped),
            folded: Folded::Operation(operation, Box::new(left), Box::new(right)),
        }
    }

    fn emit(&self, code: &mut Vec<u32>) {
        match &self.folded {
            Folded::Constant(value) => code.extend([PUSH_CONSTANT, value.as_canonical_u32()]),
            Folded::Column(index) => code.extend([PUSH_COLUMN, *index]),
            Folded::Negation(inner) => {
                inner.emit(code);
                code.push(NEG);
            }
            Folded::Operation(operation, left, right) => {
                if right.depth > left.depth {
                    right.emit(code);
                    if *operation == SUB {
                        // l - r = -r + l
                        code.push(NEG);
                        left.emit(code);
                        code.push(ADD);
                    } else {
                        left.emit(code);
                        code.push(*operation);
                    }
                } else {
                    left.emit(code);
                    right.emit(code);
                    code.push(*operation);
                }
            }
        }
    }
}

fn fold(
    expression: &Expression,
    columns: &ColumnOrder,
    interaction: usize,
) -> Result<Node, BusError> {
    let fold = |expression| fold(expression, columns, interaction);
    Ok(match expression {
        AlgebraicExpression::Number(value) => Node::constant(to_f(*value)),
        AlgebraicExpression::Reference(reference) => {
            let index = columns
                .index(reference.id)
                .ok_or_else(|| BusError::UnknownColumn {
                    interaction,
                    column: reference.name.to_string(),
                    poly_id: reference.id,
                })?;
            Node {
                folded: Folded::Column(u32::try_from(index).map_err(|_| BusError::TooLarge {
                    interaction,
                    what: "a column index",
                    value: index,
                    limit: u32::MAX as usize,
                })?),
                depth: 1,
            }
        }
        AlgebraicExpression::UnaryOperation(AlgebraicUnaryOperation { op, expr }) => match op {
            AlgebraicUnaryOperator::Minus => fold(expr)?.negate(),
        },
        AlgebraicExpression::BinaryOperation(AlgebraicBinaryOperation { left, op, right }) => {
            let (left, right) = (fold(left)?, fold(right)?);
            let constants = (left.as_constant(), right.as_constant());
            match op {
                AlgebraicBinaryOperator::Add => match constants {
                    (Some(left), Some(right)) => Node::constant(left + right),
                    (Some(F::ZERO), None) => right,
                    (None, Some(F::ZERO)) => left,
                    _ => Node::operation(ADD, left, right),
                },
                AlgebraicBinaryOperator::Sub => match constants {
                    (Some(left), Some(right)) => Node::constant(left - right),
                    (Some(F::ZERO), None) => right.negate(),
                    (None, Some(F::ZERO)) => left,
                    _ => Node::operation(SUB, left, right),
                },
                AlgebraicBinaryOperator::Mul => match constants {
                    (Some(left), Some(right)) => Node::constant(left * right),
                    (Some(F::ZERO), None) | (None, Some(F::ZERO)) => Node::constant(F::ZERO),
                    (Some(F::ONE), None) => right,
                    (None, Some(F::ONE)) => left,
                    (Some(F::NEG_ONE), None) => right.negate(),
                    (None, Some(F::NEG_ONE)) => left.negate(),
                    _ => Node::operation(MUL, left, right),
                },
            }
        }
    })
}

/// Appends the bytecode of an expression over `columns`, and returns its span. Also used for derived columns.
pub fn emit(
    expression: &Expression,
    columns: &ColumnOrder,
    interaction: usize,
    code: &mut Vec<u32>,
) -> Result<Span, BusError> {
    let node = fold(expression, columns, interaction)?;
    if node.depth > STACK_DEPTH {
        return Err(BusError::TooLarge {
            interaction,
            what: "the stack need of an expression",
            value: node.depth,
            limit: STACK_DEPTH,
        });
    }
    let start = code.len();
    node.emit(code);
    let word = |value: usize| {
        u32::try_from(value).map_err(|_| BusError::TooLarge {
            interaction,
            what: "the bytecode",
            value,
            limit: u32::MAX as usize,
        })
    };
    Ok(Span {
        start: word(start)?,
        length: word(code.len() - start)?,
    })
}

/// The bytecode of `dividend / divisor`, or zero where the divisor is zero, for derived columns.
pub fn emit_quotient_or_zero(
    dividend: &Expression,
    divisor: &Expression,
    columns: &ColumnOrder,
    code: &mut Vec<u32>,
) -> Result<(), BusError> {
    emit(dividend, columns, 0, code)?;
    emit(divisor, columns, 0, code)?;
    code.extend([INVERT_OR_ZERO, MUL]);
    Ok(())
}

impl Program {
    /// Compiles the interactions.
    ///
    /// # Errors
    /// [`BusError::TooLarge`] for an expression that needs more than [`STACK_DEPTH`] stack entries.
    pub fn compile(interactions: &CountingInteractions) -> Result<Self, BusError> {
        let columns = interactions.columns();
        let mut code = Vec::new();
        let mut compiled = Vec::with_capacity(interactions.interactions().len());
        for interaction in interactions.interactions() {
            let mut emit = |expression| emit(expression, columns, interaction.index, &mut code);
            let (flags, multiplicity) = match &interaction.multiplicity {
                Multiplicity::One => (MULTIPLICITY_IS_ONE, Span::default()),
                Multiplicity::Expression(expression) => (0, emit(expression)?),
            };
            compiled.push(Interaction {
                table: interaction.table as u32,
                flags,
                multiplicity,
                first: emit(&interaction.arguments[0])?,
                second: emit(&interaction.arguments[1])?,
                selector: interaction
                    .selector
                    .as_ref()
                    .map_or(Ok(Span::default()), emit)?,
            });
        }
        Ok(Self {
            code,
            interactions: compiled,
            indices: interactions
                .interactions()
                .iter()
                .map(|i| i.index)
                .collect(),
            kinds: interactions
                .interactions()
                .iter()
                .map(|i| i.table)
                .collect(),
            tables: *interactions.tables(),
            width: columns.width(),
        })
    }
}
