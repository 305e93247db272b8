//! Random bus interactions, random traces: every kernel and every schedule against the reference, and the reference
//! against counts that are known because the trace was made to produce them.
//!
//! A nightly-sized run: `PROPTEST_CASES=1000000 cargo test --release --test bus_constructed`.
//! Cases that once failed are kept in `tests/bus_constructed.regressions` and run first.

mod bus_common;

use bus_common::{field_value, Mix, MODULUS};
use openvm_apc::bus::{
    dag::{self, Schedule},
    kernel::OutOfTable,
    reference,
    table::{BitwiseLookupTable, RangeTupleCheckerTable, TableKind, VariableRangeCheckerTable},
    vm, BusError, BusKernel, BusProgram, ColumnOrder, CountingInteractions, Histograms,
    PeripheryTables, TraceView, F,
};
use powdr_autoprecompiles::{
    expression::{AlgebraicExpression, AlgebraicReference},
    symbolic_machine::SymbolicBusInteraction,
};
use powdr_expression::{
    AlgebraicBinaryOperation, AlgebraicBinaryOperator, AlgebraicUnaryOperation,
    AlgebraicUnaryOperator,
};
use powdr_number::BabyBearField;
use proptest::{collection::vec, option, prelude::*, test_runner::FileFailurePersistence};

type Expression = AlgebraicExpression<BabyBearField>;
type Interaction = SymbolicBusInteraction<BabyBearField>;

/// Nodes of an expanded expression tree, and its depth: what keeps a case quick, and within the device's stack.
const MAX_TREE_NODES: usize = 160;
const MAX_TREE_DEPTH: usize = 13;

// ---------------------------------------------------------------------------------------------------------------------
// Recipes: what proptest draws and shrinks. Every number is valid: indices are taken modulo what exists.
// ---------------------------------------------------------------------------------------------------------------------

/// A node over earlier nodes, so that subtrees are shared.
#[derive(Clone, Debug)]
enum NodeRecipe {
    Constant(u32),
    Column(usize),
    Add(usize, usize),
    Sub(usize, usize),
    Mul(usize, usize),
    Neg(usize),
}

/// How an argument is made to have the value that the case wants it to have.
#[derive(Clone, Debug)]
enum ArgumentRecipe {
    /// The same constant in every row.
    Constant,
    /// A column of its own.
    Column,
    /// `node + column`, `node - column`, `column - node`, `constant * column + node`, `-(column + node)`,
    /// `is_valid * column + node`, `(column + node) * 1 - 0`, by the first number.
    Adjusted(u8, usize),
    /// The very expression of an earlier argument, if that one's values may stand here.
    Earlier(usize),
}

#[derive(Clone, Debug)]
enum MultiplicityRecipe {
    One,
    IsValid,
    IsValidTimesIsValid,
    OneTimesIsValid,
    Constant(u32),
    Column,
    Node(usize),
}

#[derive(Clone, Debug)]
enum LookupRecipe {
    RangeCheck {
        bits: u32,
        bits_as: ArgumentRecipe,
        value: ArgumentRecipe,
    },
    Tuple {
        first: ArgumentRecipe,
        second: ArgumentRecipe,
    },
    Bitwise {
        x: ArgumentRecipe,
        y: ArgumentRecipe,
        selector: u32,
        selector_as: ArgumentRecipe,
    },
    /// On a bus that does not count, with an argument over a column that the trace does not have.
    Other,
}

#[derive(Clone, Debug)]
struct Recipe {
    range_max_bits: Option<u32>,
    tuple_sizes: Option<[u32; 2]>,
    bitwise: bool,
    free_columns: usize,
    nodes: Vec<NodeRecipe>,
    lookups: Vec<(LookupRecipe, MultiplicityRecipe)>,
    height: usize,
    /// Live rows, in 256ths of the height; 256 is all of them.
    live: usize,
    seed: u64,
}

fn constants() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => Just(0),
        4 => Just(1),
        4 => Just(MODULUS - 1),
        2 => 2u32..70_000,
        1 => 0..MODULUS,
    ]
}

fn node() -> impl Strategy<Value = NodeRecipe> {
    let index = 0usize..64;
    prop_oneof![
        2 => constants().prop_map(NodeRecipe::Constant),
        4 => index.clone().prop_map(NodeRecipe::Column),
        4 => (index.clone(), index.clone()).prop_map(|(x, y)| NodeRecipe::Add(x, y)),
        3 => (index.clone(), index.clone()).prop_map(|(x, y)| NodeRecipe::Sub(x, y)),
        3 => (index.clone(), index.clone()).prop_map(|(x, y)| NodeRecipe::Mul(x, y)),
        2 => index.prop_map(NodeRecipe::Neg),
    ]
}

fn argument() -> impl Strategy<Value = ArgumentRecipe> {
    prop_oneof![
        1 => Just(ArgumentRecipe::Constant),
        2 => Just(ArgumentRecipe::Column),
        6 => (0u8..7, 0usize..64).prop_map(|(shape, node)| ArgumentRecipe::Adjusted(shape, node)),
        3 => (0usize..64).prop_map(ArgumentRecipe::Earlier),
    ]
}

fn mostly_constant() -> impl Strategy<Value = ArgumentRecipe> {
    prop_oneof![3 => Just(ArgumentRecipe::Constant), 2 => argument()]
}

fn multiplicity() -> impl Strategy<Value = MultiplicityRecipe> {
    prop_oneof![
        2 => Just(MultiplicityRecipe::One),
        2 => Just(MultiplicityRecipe::IsValid),
        1 => Just(MultiplicityRecipe::IsValidTimesIsValid),
        1 => Just(MultiplicityRecipe::OneTimesIsValid),
        2 => constants().prop_map(MultiplicityRecipe::Constant),
        2 => Just(MultiplicityRecipe::Column),
        3 => (0usize..64).prop_map(MultiplicityRecipe::Node),
    ]
}

fn lookup() -> impl Strategy<Value = LookupRecipe> {
    prop_oneof![
        4 => (0u32..18, mostly_constant(), argument()).prop_map(|(bits, bits_as, value)| {
            LookupRecipe::RangeCheck { bits, bits_as, value }
        }),
        3 => (argument(), argument())
            .prop_map(|(first, second)| LookupRecipe::Tuple { first, second }),
        4 => (argument(), argument(), 0u32..2, mostly_constant()).prop_map(
            |(x, y, selector, selector_as)| LookupRecipe::Bitwise { x, y, selector, selector_as }
        ),
        1 => Just(LookupRecipe::Other),
    ]
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let tables = (
        option::weighted(0.9, prop_oneof![6 => 0u32..9, 1 => 9u32..18]),
        option::weighted(
            0.8,
            prop_oneof![6 => [1u32..40, 1u32..40], 1 => Just([256, 2048])],
        ),
        prop::bool::weighted(0.8),
    );
    let heights = prop_oneof![
        4 => Just(1usize),
        4 => Just(2),
        4 => Just(3),
        4 => Just(8),
        1 => Just(1024),
    ];
    let live = prop_oneof![1 => Just(0usize), 3 => Just(256), 3 => 0usize..=256];
    (
        tables,
        0usize..8,
        vec(node(), 0..32),
        vec((lookup(), multiplicity()), 0..14),
        heights,
        live,
        any::<u64>(),
    )
        .prop_map(
            |(
                (range_max_bits, tuple_sizes, bitwise),
                free_columns,
                nodes,
                lookups,
                height,
                live,
                seed,
            )| Recipe {
                range_max_bits,
                tuple_sizes,
                bitwise,
                free_columns,
                nodes,
                lookups,
                height,
                live,
                seed,
            },
        )
}

// ---------------------------------------------------------------------------------------------------------------------
// Cases: the recipe carried out.
// ---------------------------------------------------------------------------------------------------------------------

/// A column of a case, by its position in the order in which columns were made.
#[derive(Clone, Debug)]
enum ColumnRole {
    IsValid,
    /// Any value.
    Free,
    /// Makes the argument with this number have its wanted value.
    Adjusts(usize),
}

/// An argument: its expression, and the values (lowest, one past the highest) that it is made to have.
#[derive(Clone, Debug)]
struct Argument {
    expression: Expression,
    lowest: u32,
    end: u32,
    shape: ArgumentShape,
}

#[derive(Clone, Debug)]
enum ArgumentShape {
    Constant,
    /// The column has the wanted value plus `from_node` times the node's, times `factor`.
    Column {
        node: Option<Expression>,
        from_node: i8,
        factor: u32,
    },
    /// Whatever the argument with this number has.
    Same(usize),
}

struct Lookup {
    table: TableKind,
    arguments: [usize; 2],
    selector: Option<usize>,
    multiplicity: Expression,
}

struct Case {
    tables: PeripheryTables,
    interactions: Vec<Interaction>,
    columns: ColumnOrder,
    /// For each column as made, its id.
    ids: Vec<u64>,
    roles: Vec<ColumnRole>,
    arguments: Vec<Argument>,
    /// The counting interactions, with the positions of their arguments.
    lookups: Vec<Lookup>,
    height: usize,
    live_rows: usize,
    seed: u64,
}

struct CaseBuilder {
    mix: Mix,
    ids: Vec<u64>,
    roles: Vec<ColumnRole>,
    nodes: Vec<Expression>,
    arguments: Vec<Argument>,
}

impl CaseBuilder {
    fn column(&mut self, role: ColumnRole) -> Expression {
        let id = 1000 + 7 * self.ids.len() as u64;
        self.ids.push(id);
        self.roles.push(role);
        column(id)
    }

    fn node(&self, index: usize) -> Expression {
        match self.nodes.len() {
            0 => number(3),
            count => self.nodes[index % count].clone(),
        }
    }

    /// Makes an argument with values in `lowest..end`, and returns its number.
    fn argument(&mut self, recipe: &ArgumentRecipe, lowest: u32, end: u32) -> usize {
        let position = self.arguments.len();
        let own_column = |node, from_node, factor| ArgumentShape::Column {
            node,
            from_node,
            factor,
        };
        let (expression, shape) = match recipe {
            ArgumentRecipe::Constant => {
                let value = lowest + self.mix.below(end - lowest);
                self.arguments.push(Argument {
                    expression: number(value),
                    lowest: value,
                    end: value + 1,
                    shape: ArgumentShape::Constant,
                });
                return position;
            }
            ArgumentRecipe::Earlier(index) if position > 0 => {
                let earlier = index % position;
                let Argument {
                    expression,
                    lowest: earlier_lowest,
                    end: earlier_end,
                    ..
                } = self.arguments[earlier].clone();
                if lowest <= earlier_lowest && earlier_end <= end {
                    self.arguments.push(Argument {
                        expression,
                        lowest: earlier_lowest,
                        end: earlier_end,
                        shape: ArgumentShape::Same(earlier),
                    });
                    return position;
                }
                let column = self.column(ColumnRole::Adjusts(position));
                (column, own_column(None, 0, 1))
            }
            ArgumentRecipe::Earlier(_) | ArgumentRecipe::Column => {
                let column = self.column(ColumnRole::Adjusts(position));
                (column, own_column(None, 0, 1))
            }
            ArgumentRecipe::Adjusted(shape, index) => {
                let node = self.node(*index);
                let column = self.column(ColumnRole::Adjusts(position));
                let is_valid = self.is_valid();
                let (expression, from_node, factor) = match shape {
                    // wanted = node + column
                    0 => (node.clone() + column, -1, 1),
                    // wanted = node - column, so column = -(wanted - node)
                    1 => (node.clone() - column, -1, MODULUS - 1),
                    // wanted = column - node
                    2 => (column - node.clone(), 1, 1),
                    // wanted = 3 * column + node, so column = (wanted - node) / 3
                    3 => (number(3) * column + node.clone(), -1, inverse(3)),
                    // wanted = -(column + node), so column = -(wanted + node)
                    4 => (-(column + node.clone()), 1, MODULUS - 1),
                    // is_valid is one on live rows
                    5 => (is_valid * column + node.clone(), -1, 1),
                    _ => ((column + node.clone()) * number(1) - number(0), -1, 1),
                };
                (expression, own_column(Some(node), from_node, factor))
            }
        };
        self.arguments.push(Argument {
            expression,
            lowest,
            end,
            shape,
        });
        position
    }

    fn is_valid(&self) -> Expression {
        column(self.ids[0])
    }

    fn multiplicity(&mut self, recipe: &MultiplicityRecipe) -> Expression {
        match recipe {
            MultiplicityRecipe::One => number(1),
            MultiplicityRecipe::IsValid => self.is_valid(),
            MultiplicityRecipe::IsValidTimesIsValid => self.is_valid() * self.is_valid(),
            MultiplicityRecipe::OneTimesIsValid => number(1) * self.is_valid(),
            MultiplicityRecipe::Constant(value) => number(*value),
            MultiplicityRecipe::Column => self.column(ColumnRole::Free),
            MultiplicityRecipe::Node(index) => self.node(*index),
        }
    }
}

impl Case {
    fn build(recipe: &Recipe) -> Self {
        let mut mix = Mix::new(recipe.seed);
        // Bus ids in any order.
        let first_id = mix.below(100) as u64;
        let tables = PeripheryTables {
            variable_range_checker: recipe.range_max_bits.map(|range_max_bits| {
                VariableRangeCheckerTable {
                    bus_id: first_id + 2,
                    range_max_bits,
                }
            }),
            range_tuple_checker: recipe.tuple_sizes.map(|sizes| RangeTupleCheckerTable {
                bus_id: first_id,
                sizes,
            }),
            bitwise_lookup: recipe.bitwise.then_some(BitwiseLookupTable {
                bus_id: first_id + 1,
            }),
        };
        let mut builder = CaseBuilder {
            mix,
            ids: vec![],
            roles: vec![],
            nodes: vec![],
            arguments: vec![],
        };
        builder.column(ColumnRole::IsValid);
        let mut free: Vec<Expression> = (0..recipe.free_columns)
            .map(|_| builder.column(ColumnRole::Free))
            .collect();
        free.push(builder.is_valid());
        for node in &recipe.nodes {
            let column = |index: usize| free[index % free.len()].clone();
            let earlier = |index: usize| match builder.nodes.len() {
                0 => column(index),
                count => builder.nodes[index % count].clone(),
            };
            let expression = match node {
                NodeRecipe::Constant(value) => number(*value),
                NodeRecipe::Column(index) => column(*index),
                NodeRecipe::Add(x, y) => earlier(*x) + earlier(*y),
                NodeRecipe::Sub(x, y) => earlier(*x) - earlier(*y),
                NodeRecipe::Mul(x, y) => earlier(*x) * earlier(*y),
                NodeRecipe::Neg(x) => -earlier(*x),
            };
            let (nodes, depth) = tree_size(&expression);
            builder
                .nodes
                .push(if nodes <= MAX_TREE_NODES && depth <= MAX_TREE_DEPTH - 3 {
                    expression
                } else {
                    column(builder.nodes.len())
                });
        }
        let mut interactions = vec![];
        let mut lookups = vec![];
        for (lookup, multiplicity) in &recipe.lookups {
            let multiplicity = builder.multiplicity(multiplicity);
            let unknown_column = column(3);
            let other = || Interaction {
                id: first_id + 3,
                mult: unknown_column.clone(),
                args: vec![unknown_column.clone(); 3],
            };
            let (table, arguments, selector) = match lookup {
                LookupRecipe::RangeCheck {
                    bits,
                    bits_as,
                    value,
                } => {
                    let Some(range_max_bits) = recipe.range_max_bits else {
                        interactions.push(other());
                        continue;
                    };
                    let fewest = bits % (range_max_bits + 1);
                    let bits = builder.argument(bits_as, fewest, range_max_bits + 1);
                    let fewest = builder.arguments[bits].lowest;
                    let value = builder.argument(value, 0, 1 << fewest);
                    (TableKind::VariableRangeChecker, [value, bits], None)
                }
                LookupRecipe::Tuple { first, second } => {
                    let Some(sizes) = recipe.tuple_sizes else {
                        interactions.push(other());
                        continue;
                    };
                    let first = builder.argument(first, 0, sizes[0]);
                    let second = builder.argument(second, 0, sizes[1]);
                    (TableKind::RangeTupleChecker, [first, second], None)
                }
                LookupRecipe::Bitwise {
                    x,
                    y,
                    selector,
                    selector_as,
                } => {
                    if !recipe.bitwise {
                        interactions.push(other());
                        continue;
                    }
                    let x = builder.argument(x, 0, 256);
                    let y = builder.argument(y, 0, 256);
                    let selector = builder.argument(selector_as, *selector, 2);
                    (TableKind::BitwiseLookup, [x, y], Some(selector))
                }
                LookupRecipe::Other => {
                    interactions.push(other());
                    continue;
                }
            };
            let expression = |argument: usize| builder.arguments[argument].expression.clone();
            let mut args = arguments.map(expression).to_vec();
            if let Some(selector) = selector {
                // The xor argument is nobody's business: a column that does not exist must not be looked at.
                args.push(unknown_column);
                args.push(expression(selector));
            }
            interactions.push(Interaction {
                id: first_id
                    + match table {
                        TableKind::VariableRangeChecker => 2,
                        TableKind::RangeTupleChecker => 0,
                        TableKind::BitwiseLookup => 1,
                    },
                mult: multiplicity.clone(),
                args,
            });
            lookups.push(Lookup {
                table,
                arguments,
                selector,
                multiplicity,
            });
        }
        // Any order of columns.
        let mut order = builder.ids.clone();
        for position in (1..order.len()).rev() {
            let other = builder.mix.below(position as u32 + 1) as usize;
            order.swap(position, other);
        }
        Self {
            tables,
            interactions,
            columns: ColumnOrder::new(order),
            ids: builder.ids,
            roles: builder.roles,
            arguments: builder.arguments,
            lookups,
            height: recipe.height,
            live_rows: (recipe.live * recipe.height).div_ceil(256),
            seed: recipe.seed,
        }
    }

    fn counting(&self) -> CountingInteractions {
        CountingInteractions::new(
            &self.interactions,
            &self.columns,
            Some(self.ids[0]),
            &self.tables,
        )
        .expect("the case is well-formed")
    }

    /// A trace on which all lookups are in their tables, rubbish after the live rows; and the counts it produces.
    fn valid_trace(&self) -> (Vec<F>, Histograms) {
        let width = self.columns.width();
        let mut mix = Mix::new(self.seed ^ 0x7261_6365);
        let mut trace: Vec<F> = (0..width * self.height)
            .map(|_| field_value(mix.below(MODULUS)))
            .collect();
        let mut histograms = Histograms::zeros(&self.tables);
        let index = |id| self.columns.index(id).expect("the case's own column");
        let mut values = vec![0u32; width];
        for row in 0..self.live_rows {
            for (role, &id) in self.roles.iter().zip(&self.ids) {
                values[index(id)] = match role {
                    ColumnRole::IsValid => 1,
                    ColumnRole::Free => match mix.below(4) {
                        0 => mix.below(MODULUS),
                        1 => 0,
                        2 => mix.below(256),
                        _ => mix.below(3),
                    },
                    ColumnRole::Adjusts(_) => 0,
                };
            }
            let mut wanted = vec![0u32; self.arguments.len()];
            let columns_of: Vec<Option<u64>> = {
                let mut columns = vec![None; self.arguments.len()];
                for (role, &id) in self.roles.iter().zip(&self.ids) {
                    if let ColumnRole::Adjusts(argument) = role {
                        columns[*argument] = Some(id);
                    }
                }
                columns
            };
            for (position, argument) in self.arguments.iter().enumerate() {
                let values_left = argument.end - argument.lowest;
                wanted[position] = match mix.below(8) {
                    0 => argument.lowest,
                    1 => argument.end - 1,
                    _ => argument.lowest + mix.below(values_left),
                };
                match &argument.shape {
                    ArgumentShape::Constant => {}
                    ArgumentShape::Same(earlier) => wanted[position] = wanted[*earlier],
                    ArgumentShape::Column {
                        node,
                        from_node,
                        factor,
                    } => {
                        // Nodes are over free columns, which are all set.
                        let node = node
                            .as_ref()
                            .map_or(0, |node| evaluate(node, &|id| values[index(id)]));
                        let sum = match from_node {
                            1 => add(wanted[position], node),
                            -1 => add(wanted[position], negate(node)),
                            _ => wanted[position],
                        };
                        let id = columns_of[position].expect("an adjusted argument has a column");
                        values[index(id)] = multiply(sum, *factor);
                    }
                }
            }
            for (column, &value) in values.iter().enumerate() {
                trace[column * self.height + row] = field_value(value);
            }
            for lookup in &self.lookups {
                let multiplicity = evaluate(&lookup.multiplicity, &|id| values[index(id)]);
                let [first, second] = lookup.arguments.map(|argument| wanted[argument]);
                let selector = lookup.selector.map_or(0, |argument| wanted[argument]);
                // The formulas of the tables, once more.
                let (counts, bin) = match lookup.table {
                    TableKind::VariableRangeChecker => (
                        &mut histograms.variable_range_checker,
                        (1 << second) + first - 1,
                    ),
                    TableKind::RangeTupleChecker => (
                        &mut histograms.range_tuple_checker,
                        first * self.tables.range_tuple_checker.expect("used").sizes[1] + second,
                    ),
                    TableKind::BitwiseLookup => (
                        &mut histograms.bitwise_lookup,
                        first * 256 + second + 65536 * selector,
                    ),
                };
                let count = &mut counts[bin as usize];
                *count = count.wrapping_add(multiplicity);
            }
        }
        (trace, histograms)
    }

    /// All lookups that a trace is broken at.
    fn broken_lookups(&self, counting: &CountingInteractions, trace: &[F]) -> Vec<BusError> {
        let view = self.view(trace);
        let mut broken = vec![];
        for row in 0..self.live_rows {
            let value = |expression: &Expression| {
                evaluate(expression, &|id| {
                    let column = self.columns.index(id).expect("the case's own column");
                    openvm_apc::bus::field::canonical(openvm_apc::bus::field::from_f(
                        view.get(column, row),
                    ))
                })
            };
            for (lookup, interaction) in self.lookups.iter().zip(counting.interactions()) {
                let multiplicity = value(&lookup.multiplicity);
                let arguments = lookup
                    .arguments
                    .map(|argument| value(&self.arguments[argument].expression));
                let selector = lookup
                    .selector
                    .map(|argument| value(&self.arguments[argument].expression));
                if multiplicity != 0
                    && self
                        .tables
                        .bin(lookup.table, arguments, selector.unwrap_or(0))
                        .is_none()
                {
                    broken.push(BusError::OutOfTable {
                        interaction: interaction.index,
                        table: lookup.table,
                        row,
                        arguments: arguments.into_iter().chain(selector).collect(),
                        multiplicity,
                    });
                }
            }
        }
        broken
    }

    fn view<'a>(&self, trace: &'a [F]) -> TraceView<'a> {
        TraceView::new(trace, self.columns.width(), self.height)
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Expressions and their values, independently of the crate.
// ---------------------------------------------------------------------------------------------------------------------

fn number(value: u32) -> Expression {
    Expression::Number(BabyBearField::from(value))
}

fn column(id: u64) -> Expression {
    Expression::Reference(AlgebraicReference {
        name: format!("column_{id}").into(),
        id,
    })
}

fn add(x: u32, y: u32) -> u32 {
    ((u64::from(x) + u64::from(y)) % u64::from(MODULUS)) as u32
}

fn negate(x: u32) -> u32 {
    (MODULUS - x) % MODULUS
}

fn multiply(x: u32, y: u32) -> u32 {
    (u64::from(x) * u64::from(y) % u64::from(MODULUS)) as u32
}

/// By Fermat.
fn inverse(x: u32) -> u32 {
    let (mut result, mut power, mut exponent) = (1, x, MODULUS - 2);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiply(result, power);
        }
        power = multiply(power, power);
        exponent >>= 1;
    }
    result
}

fn evaluate(expression: &Expression, value: &impl Fn(u64) -> u32) -> u32 {
    match expression {
        Expression::Number(value) => openvm_apc::bus::field::canonical(*value),
        Expression::Reference(reference) => value(reference.id),
        Expression::BinaryOperation(AlgebraicBinaryOperation { left, op, right }) => {
            let (left, right) = (evaluate(left, value), evaluate(right, value));
            match op {
                AlgebraicBinaryOperator::Add => add(left, right),
                AlgebraicBinaryOperator::Sub => add(left, negate(right)),
                AlgebraicBinaryOperator::Mul => multiply(left, right),
            }
        }
        Expression::UnaryOperation(AlgebraicUnaryOperation {
            op: AlgebraicUnaryOperator::Minus,
            expr,
        }) => negate(evaluate(expr, value)),
    }
}

/// Nodes and depth of an expression tree.
fn tree_size(expression: &Expression) -> (usize, usize) {
    match expression {
        Expression::Number(_) | Expression::Reference(_) => (1, 1),
        Expression::BinaryOperation(AlgebraicBinaryOperation { left, right, .. }) => {
            let (left, right) = (tree_size(left), tree_size(right));
            (1 + left.0 + right.0, 1 + left.1.max(right.1))
        }
        Expression::UnaryOperation(AlgebraicUnaryOperation { expr, .. }) => {
            let (nodes, depth) = tree_size(expr);
            (nodes + 1, depth + 1)
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Properties.
// ---------------------------------------------------------------------------------------------------------------------

/// Every program that there is for the interactions, with a name.
fn all_programs(counting: &CountingInteractions) -> Vec<(String, BusProgram)> {
    let mut programs = vec![];
    for kernel in BusKernel::ALL {
        let program = kernel.compile(counting).expect("the case fits");
        assert_eq!(
            program,
            kernel.compile(&counting.clone()).expect("the case fits"),
            "compilation is a function of the interactions"
        );
        programs.push((kernel.to_string(), (*program).clone()));
    }
    for schedule in Schedule::ALL {
        let program = dag::Program::compile(counting, schedule).expect("the case fits");
        assert!(
            program.live_maximum() <= program.slots(),
            "{schedule:?}: {} values alive in {} slots",
            program.live_maximum(),
            program.slots()
        );
        programs.push((format!("{schedule:?}"), BusProgram::Dag(program)));
        let reordered = dag::reordered(counting).expect("the case fits");
        let program = dag::Program::compile(&reordered, schedule).expect("the case fits");
        programs.push((format!("{schedule:?}, reordered"), BusProgram::Dag(program)));
    }
    programs
}

/// Zeros again, in the same memory.
fn clear(histograms: &mut Histograms) {
    histograms.variable_range_checker.fill(0);
    histograms.range_tuple_checker.fill(0);
    histograms.bitwise_lookup.fill(0);
}

fn config() -> ProptestConfig {
    let mut config = ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 1_500;
    }
    config
}

proptest! {
    #![proptest_config(config())]

    /// On valid traces every program counts what the trace was made for, checking or not.
    #[test]
    fn all_kernels_count_what_the_trace_was_made_for(recipe in recipe()) {
        let case = Case::build(&recipe);
        let counting = case.counting();
        prop_assert_eq!(counting.interactions().len(), case.lookups.len());
        let (trace, expected) = case.valid_trace();
        let view = case.view(&trace);

        let mut counts = Histograms::zeros(&case.tables);
        reference::replay(&counting, view, case.live_rows, &mut counts)?;
        prop_assert!(counts == expected, "reference: other counts than the trace was made for");

        for (name, program) in all_programs(&counting) {
            for mode in [OutOfTable::Report, OutOfTable::Drop] {
                clear(&mut counts);
                program.replay(view, case.live_rows, &mut counts, mode)?;
                prop_assert!(counts == expected, "{name}, {mode:?}: other counts than the trace was made for");
            }
        }
    }

    /// On broken traces every program reports a lookup that is broken; and without checking counts all others.
    #[test]
    fn all_kernels_report_broken_traces(
        recipe in recipe(),
        hits in vec((any::<u32>(), any::<u32>(), constants()), 1..4),
    ) {
        let case = Case::build(&recipe);
        let counting = case.counting();
        let (mut trace, _) = case.valid_trace();
        for (column, row, value) in hits {
            let width = case.columns.width();
            let column = column as usize % width;
            let is_valid = case.columns.index(case.ids[0]) == Some(column);
            if case.live_rows > 0 && !is_valid {
                trace[column * case.height + row as usize % case.live_rows] = field_value(value);
            }
        }
        let view = case.view(&trace);
        let broken = case.broken_lookups(&counting, &trace);
        let check = |name: &str, result: Result<(), BusError>| match result {
            Ok(()) => {
                prop_assert!(broken.is_empty(), "{name} lets {:?} pass", broken[0]);
                Ok(())
            }
            Err(error) => {
                prop_assert!(broken.contains(&error), "{name}: {error}, but broken are {broken:?}");
                Ok(())
            }
        };
        let mut histograms = Histograms::zeros(&case.tables);
        check("reference", reference::replay(&counting, view, case.live_rows, &mut histograms))?;
        let mut first: Option<Histograms> = None;
        for (name, program) in all_programs(&counting) {
            check(&name, program.replay(view, case.live_rows, &mut histograms, OutOfTable::Report))?;
            clear(&mut histograms);
            program.replay(view, case.live_rows, &mut histograms, OutOfTable::Drop)?;
            let first = first.get_or_insert_with(|| histograms.clone());
            prop_assert!(histograms == *first, "{name}: other counts than the first kernel's");
        }
    }

    /// Another order of the columns is another program, but not another count.
    #[test]
    fn column_order_does_not_matter(recipe in recipe()) {
        let case = Case::build(&recipe);
        let (trace, expected) = case.valid_trace();
        let reversed_ids: Vec<u64> = {
            let mut ids = case.ids.clone();
            ids.sort_by_key(|&id| std::cmp::Reverse(case.columns.index(id)));
            ids
        };
        let columns = ColumnOrder::new(reversed_ids);
        let reversed: Vec<F> = trace.chunks(case.height).rev().flatten().copied().collect();
        let counting = CountingInteractions::new(
            &case.interactions,
            &columns,
            Some(case.ids[0]),
            &case.tables,
        )?;
        for kernel in BusKernel::ALL {
            let mut counts = Histograms::zeros(&case.tables);
            kernel.compile(&counting)?.replay(
                TraceView::new(&reversed, columns.width(), case.height),
                case.live_rows,
                &mut counts,
                OutOfTable::Report,
            )?;
            prop_assert!(counts == expected, "{kernel}");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// What random cases do not reach: the edges of the encodings, by hand.
// ---------------------------------------------------------------------------------------------------------------------

const TABLES: PeripheryTables = PeripheryTables {
    range_tuple_checker: None,
    ..PeripheryTables::OPENVM_DEFAULT
};

fn range_check(value: Expression) -> Interaction {
    Interaction {
        id: 3,
        mult: number(1),
        args: vec![value, number(17)],
    }
}

fn counting(interactions: &[Interaction], width: usize) -> CountingInteractions {
    CountingInteractions::new(
        interactions,
        &ColumnOrder::new(0..width as u64),
        None,
        &TABLES,
    )
    .expect("well-formed")
}

/// The codec has 16 bits for a column index.
#[test]
fn the_last_column_that_fits_and_the_first_that_does_not() {
    let width = 65_537;
    for schedule in Schedule::ALL {
        let last = counting(&[range_check(column(65_535) + column(65_534))], width);
        let program = dag::Program::compile(&last, schedule).expect("it fits");
        let mut trace = vec![field_value(0); width];
        trace[65_535] = field_value(40_000);
        trace[65_534] = field_value(7);
        let view = TraceView::new(&trace, width, 1);
        let mut counts = Histograms::zeros(&TABLES);
        program
            .replay(view, 1, &mut counts, OutOfTable::Report)
            .expect("in the table");
        assert_eq!(counts.variable_range_checker[(1 << 17) + 40_007 - 1], 1);

        for too_far in [range_check(column(65_536)), range_check(-column(65_536))] {
            let error = dag::Program::compile(&counting(&[too_far], width), schedule)
                .expect_err("column 65,536 has 17 bits");
            assert!(
                matches!(
                    error,
                    BusError::TooLarge {
                        value: 65_536,
                        limit: 65_535,
                        ..
                    }
                ),
                "{error}"
            );
        }
    }
    // The bytecode has a word for it.
    let program = vm::Program::compile(&counting(&[range_check(column(65_536))], width));
    assert!(program.is_ok());
}

/// The codec has 20 bits for a slot, and would mask what does not fit.
#[test]
fn more_slots_than_the_codec_can_name_are_an_error() {
    // Each interaction's sum is an output of its own, pinned to the end.
    let count = (1u64 << 20) + 1;
    let width = 1449;
    let pairs = (0..width).flat_map(|x| (x + 1..width).map(move |y| (x, y)));
    let interactions: Vec<Interaction> = pairs
        .take(count as usize)
        .map(|(x, y)| range_check(column(x) + column(y)))
        .collect();
    assert_eq!(interactions.len(), count as usize);
    let counting = counting(&interactions, width as usize);
    let pinned = Schedule::ALL[1];
    assert_eq!(pinned.dispatch, dag::Dispatch::Pinned);
    let error = dag::Program::compile(&counting, pinned).expect_err("2^20 + 1 slots");
    assert!(
        matches!(error, BusError::TooLarge { value, .. } if value == count as usize),
        "{error}"
    );
    // Dispatched early, one slot is enough.
    let early = dag::Program::compile(&counting, Schedule::ALL[3]).expect("it fits");
    assert_eq!(early.slots(), 1);
}

/// A balanced sum of `2^levels` different products, which needs `levels` stack entries more than a product.
fn balanced(levels: u32, next: &mut u64) -> Expression {
    if levels == 0 {
        *next += 1;
        return column(*next % 7) * column(*next % 5);
    }
    let left = balanced(levels - 1, next);
    let right = balanced(levels - 1, next);
    if levels.is_multiple_of(2) {
        left + right
    } else {
        left - right
    }
}

/// The deepest expression that the device's stack takes, and the first that it does not.
#[test]
fn an_expression_too_deep_for_the_stack_is_an_error() {
    let deepest = vm::STACK_DEPTH as u32 - 2;
    let program = vm::Program::compile(&counting(&[range_check(balanced(deepest, &mut 0))], 7));
    assert!(program.is_ok(), "{program:?}");
    let error = vm::Program::compile(&counting(&[range_check(balanced(deepest + 1, &mut 0))], 7))
        .expect_err("one level more");
    assert!(matches!(error, BusError::TooLarge { .. }), "{error}");
}

/// A chain is no deep stack, whichever way it leans.
#[test]
fn long_chains_need_little_stack() {
    let chain = |lean_right: bool| {
        (1..400u64).fold(column(0), |chain, index| {
            let next = column(index % 7);
            match (lean_right, index % 3) {
                (false, 0) => chain + next,
                (false, _) => chain - next,
                (true, 0) => next + chain,
                (true, _) => next - chain,
            }
        })
    };
    let mut trace: Vec<F> = [3, 1, 4, 1, 5, 9, 2].map(field_value).to_vec();
    for lean_right in [false, true] {
        // Adjust by a column of its own, so that the value is in the table.
        let sum = evaluate(&chain(lean_right), &|id| [3, 1, 4, 1, 5, 9, 2][id as usize]);
        let counting = counting(&[range_check(chain(lean_right) + column(7))], 8);
        trace.truncate(7);
        trace.push(field_value(add(1234, negate(sum))));
        for (name, program) in all_programs(&counting) {
            let mut counts = Histograms::zeros(&TABLES);
            program
                .replay(
                    TraceView::new(&trace, 8, 1),
                    1,
                    &mut counts,
                    OutOfTable::Report,
                )
                .expect("in the table");
            assert_eq!(
                counts.variable_range_checker[(1 << 17) + 1234 - 1],
                1,
                "{name}"
            );
        }
    }
}

/// Lookups with the wrong number of arguments, and columns that do not exist, do not compile.
#[test]
fn malformed_interactions_are_errors() {
    let new = |interaction: Interaction| {
        CountingInteractions::new(
            &[range_check(number(0)), interaction],
            &ColumnOrder::new(0..2),
            None,
            &TABLES,
        )
        .expect_err("malformed")
    };
    for (id, arguments) in [(3, 1), (3, 3), (6, 3), (6, 5)] {
        let error = new(Interaction {
            id,
            mult: number(1),
            args: vec![number(0); arguments],
        });
        assert!(
            matches!(error, BusError::ArgumentCount { interaction: 1, found, .. } if found == arguments),
            "{error}"
        );
    }
    let error = new(range_check(column(1) * (number(2) - column(9))));
    assert!(
        matches!(
            error,
            BusError::UnknownColumn {
                interaction: 1,
                poly_id: 9,
                ..
            }
        ),
        "{error}"
    );
    let error = new(Interaction {
        id: 3,
        mult: column(5),
        args: vec![number(0), number(1)],
    });
    assert!(
        matches!(error, BusError::UnknownColumn { poly_id: 5, .. }),
        "{error}"
    );
}

/// A trace of another shape is not read.
#[test]
fn a_trace_of_another_shape_is_an_error() {
    let counting = counting(&[range_check(column(0))], 2);
    let trace = [field_value(1); 8];
    let shapes = [
        (&trace[..], 2, 4, 5),
        (&trace[..], 4, 2, 2),
        (&trace[..7], 2, 4, 4),
        (&trace[..], 2, 3, 3),
    ];
    for (values, width, height, live_rows) in shapes {
        let view = TraceView::new(values, width, height);
        let mut counts = Histograms::zeros(&TABLES);
        let mut results = vec![reference::replay(&counting, view, live_rows, &mut counts)];
        for (_, program) in all_programs(&counting) {
            results.push(program.replay(view, live_rows, &mut counts, OutOfTable::Drop));
        }
        for result in results {
            assert!(matches!(result, Err(BusError::Shape { .. })), "{result:?}");
        }
        assert_eq!(counts, Histograms::zeros(&TABLES));
    }
}
