//! Random programs with traces that are solved for, so that what must be counted is known without any evaluator.

use openvm_apc::bus::{
    table::{Histograms, TableKind},
    F,
};
use p3_field::{PrimeCharacteristicRing, PrimeField32};
use powdr_autoprecompiles::{
    expression::AlgebraicExpression, symbolic_machine::SymbolicBusInteraction,
};
use powdr_number::BabyBearField;

use super::{
    case::{bus_of, constant, reference, Case, IS_VALID},
    files::HostTrace,
    programs::TABLES,
};

/// A small generator (splitmix64), so that a seed reproduces a failure anywhere.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn field(&mut self) -> F {
        F::from_u32(self.below(F::ORDER_U32.into()) as u32)
    }
}

/// How the values of lookups are chosen.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Uniform in each table.
    Random,
    /// Among the first and last bins of every bit width, and the corners of the other tables; by chance, not all of them
    /// (`edge_case` has them all).
    Edges,
    /// One bin for all rows of an interaction: contention.
    Equal,
}

/// Column of a flag that is one on some rows.
const FLAG: u64 = 1;
/// Column of small multiplicities.
const MULTIPLICITY: u64 = 2;
/// Columns of random field elements after these.
const FREE_COLUMNS: u64 = 6;

/// Builds interactions whose arguments are random expressions of degree at most 2 plus a column that corrects each to a
/// chosen value: the expected histograms come from the chosen values, and owe nothing to any evaluation of expressions.
pub fn random_case(
    random: &mut Random,
    interaction_count: usize,
    height: usize,
    live_rows: usize,
    values: Values,
) -> Case {
    let mut columns: Vec<Vec<F>> = Vec::new();
    let column = |mut value: Box<dyn FnMut() -> F + '_>| -> Vec<F> {
        (0..height)
            .map(|row| if row < live_rows { value() } else { F::ZERO })
            .collect()
    };
    columns.push(column(Box::new(|| F::ONE)));
    columns.push(column(Box::new(|| F::from_u32(random.below(2) as u32))));
    columns.push(column(Box::new(|| F::from_u32(random.below(4) as u32))));
    for _ in 0..FREE_COLUMNS {
        columns.push(column(Box::new(|| random.field())));
    }
    let mut expected = Histograms::zeros(&TABLES);
    let mut interactions = Vec::with_capacity(interaction_count);
    for index in 0..interaction_count {
        let table = TableKind::ALL[random.below(3) as usize];
        let (mult, multiplicities): (_, Vec<u32>) = match random.below(5) {
            0 => (constant(1), vec![1; live_rows]),
            1 => (reference(IS_VALID), vec![1; live_rows]),
            2 => (
                reference(IS_VALID) * reference(FLAG),
                canonical(&columns[FLAG as usize][..live_rows]),
            ),
            3 => (
                reference(MULTIPLICITY),
                canonical(&columns[MULTIPLICITY as usize][..live_rows]),
            ),
            _ => (
                reference(MULTIPLICITY) + constant(5),
                canonical(&columns[MULTIPLICITY as usize][..live_rows])
                    .into_iter()
                    .map(|value| value + 5)
                    .collect(),
            ),
        };
        // A range checker's width and a lookup's selector are usually constants; sometimes they are not.
        let constant_third = random.below(4) != 0;
        let fixed = chosen(random, table, values, index);
        let rows: Vec<[u32; 3]> = (0..live_rows)
            .map(|_| match values {
                Values::Equal => fixed,
                _ => {
                    let index = random.below(1 << 20) as usize;
                    let mut row = chosen(random, table, values, index);
                    if constant_third {
                        match table {
                            TableKind::VariableRangeChecker => {
                                row[1] = fixed[1];
                                row[0] &= (1 << fixed[1]) - 1;
                            }
                            _ => row[2] = fixed[2],
                        }
                    }
                    row
                }
            })
            .collect();
        for (row, &multiplicity) in rows.iter().zip(&multiplicities) {
            let bin = TABLES
                .bin(table, [row[0], row[1]], row[2])
                .expect("values are chosen within the table");
            expected.add(table, bin, multiplicity);
        }
        let mut argument = |position: usize, random: &mut Random| {
            let is_third = match table {
                TableKind::VariableRangeChecker => position == 1,
                _ => position == 2,
            };
            if is_third && (constant_third || matches!(values, Values::Equal)) {
                return constant(fixed[position]);
            }
            let expression = random_expression(random, 3, 2);
            let correction: Vec<F> = (0..height)
                .map(|row| match rows.get(row) {
                    Some(wanted) => {
                        F::from_u32(wanted[position]) - evaluate(&expression, &columns, row)
                    }
                    None => F::ZERO,
                })
                .collect();
            columns.push(correction);
            expression + reference(columns.len() as u64 - 1)
        };
        let args = match table {
            TableKind::BitwiseLookup => {
                let (x, y) = (argument(0, random), argument(1, random));
                let selector = argument(2, random);
                // The third argument, x ^ y, is never needed.
                vec![x, y, constant(0), selector]
            }
            _ => vec![argument(0, random), argument(1, random)],
        };
        interactions.push(SymbolicBusInteraction {
            id: bus_of(table),
            mult,
            args,
        });
        // Interactions of other buses lie between those that count, and must be ignored.
        if random.below(4) == 0 {
            interactions.push(SymbolicBusInteraction {
                id: 1,
                mult: reference(IS_VALID),
                args: vec![reference(3), reference(4)],
            });
        }
    }
    let width = columns.len();
    Case {
        interactions,
        trace: HostTrace {
            values: columns.concat(),
            height,
            width,
            live_rows,
        },
        expected,
    }
}

fn canonical(values: &[F]) -> Vec<u32> {
    values.iter().map(F::as_canonical_u32).collect()
}

/// Arguments within a table: `[value, max_bits, 0]`, `[v0, v1, 0]` or `[x, y, selector]`.
fn chosen(random: &mut Random, table: TableKind, values: Values, index: usize) -> [u32; 3] {
    let edge = matches!(values, Values::Edges);
    let mut pick = |bound: u32, bit: usize| {
        if edge {
            if (index >> bit) & 1 == 0 {
                0
            } else {
                bound - 1
            }
        } else {
            random.below(bound.into()) as u32
        }
    };
    match table {
        TableKind::VariableRangeChecker => {
            let max_bits = (index / 2 % 18) as u32;
            [pick(1 << max_bits, 0), max_bits, 0]
        }
        TableKind::RangeTupleChecker => [pick(256, 0), pick(2048, 1), 0],
        TableKind::BitwiseLookup => [pick(256, 0), pick(256, 1), pick(2, 2)],
    }
}

/// A random expression over the first columns, of degree at most `degree`.
fn random_expression(
    random: &mut Random,
    depth: u32,
    degree: u32,
) -> AlgebraicExpression<BabyBearField> {
    if depth == 0 || random.below(4) == 0 {
        return if degree == 0 || random.below(3) == 0 {
            match random.below(4) {
                0 => constant(0),
                1 => constant(1),
                2 => constant(F::ORDER_U32 - 1),
                _ => constant(random.below(F::ORDER_U32.into()) as u32),
            }
        } else {
            reference(random.below(3 + FREE_COLUMNS))
        };
    }
    match random.below(7) {
        0 | 1 => {
            random_expression(random, depth - 1, degree)
                + random_expression(random, depth - 1, degree)
        }
        2 | 3 => {
            random_expression(random, depth - 1, degree)
                - random_expression(random, depth - 1, degree)
        }
        4 => -random_expression(random, depth - 1, degree),
        _ => {
            let left = random.below(u64::from(degree) + 1) as u32;
            random_expression(random, depth - 1, left)
                * random_expression(random, depth - 1, degree - left)
        }
    }
}

/// The value of an expression on one row.
fn evaluate(expression: &AlgebraicExpression<BabyBearField>, columns: &[Vec<F>], row: usize) -> F {
    use powdr_expression::{AlgebraicBinaryOperator, AlgebraicUnaryOperator};
    match expression {
        AlgebraicExpression::Number(value) => openvm_apc::bus::field::to_f(*value),
        AlgebraicExpression::Reference(reference) => columns[reference.id as usize][row],
        AlgebraicExpression::UnaryOperation(unary) => match unary.op {
            AlgebraicUnaryOperator::Minus => -evaluate(&unary.expr, columns, row),
        },
        AlgebraicExpression::BinaryOperation(binary) => {
            let left = evaluate(&binary.left, columns, row);
            let right = evaluate(&binary.right, columns, row);
            match binary.op {
                AlgebraicBinaryOperator::Add => left + right,
                AlgebraicBinaryOperator::Sub => left - right,
                AlgebraicBinaryOperator::Mul => left * right,
            }
        }
    }
}
