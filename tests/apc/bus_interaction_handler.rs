//! What the bus interaction handler claims, held against the tables' rows.

use num_traits::{One, Zero};
use openvm_apc::{
    apc::{bus_interaction_handler::OpenVmBusInteractionHandler, VmBuses},
    bus::table::{
        BitwiseLookupTable, PeripheryTables, RangeTupleCheckerTable, VariableRangeCheckerTable,
    },
};
use powdr_autoprecompiles::{
    constraint_optimizer::IsBusStateful, range_constraint_optimizer::RangeConstraintHandler,
};
use powdr_constraint_solver::{
    constraint_system::{BusInteraction, BusInteractionHandler},
    grouped_expression::GroupedExpression,
    range_constraint::RangeConstraint,
};
use powdr_number::BabyBearField;
use proptest::prelude::*;

type Field = BabyBearField;
type Range = RangeConstraint<Field>;
type Expression = GroupedExpression<Field, &'static str>;

const MEMORY: u64 = 1;
const RANGE_CHECKER: u64 = 3;
const BITWISE: u64 = 6;
const TUPLE: u64 = 7;
const MAX_BITS: u32 = 17;
const SIZES: [u32; 2] = [256, 2048];
const LARGEST: u32 = 0x7800_0000;

fn buses() -> VmBuses {
    VmBuses {
        execution: 0,
        memory: MEMORY,
        program: 2,
        tables: PeripheryTables {
            variable_range_checker: Some(VariableRangeCheckerTable {
                bus_id: RANGE_CHECKER,
                range_max_bits: MAX_BITS,
            }),
            range_tuple_checker: Some(RangeTupleCheckerTable {
                bus_id: TUPLE,
                sizes: SIZES,
            }),
            bitwise_lookup: Some(BitwiseLookupTable { bus_id: BITWISE }),
        },
        byte_address_spaces: vec![1, 2],
    }
}

fn handler() -> OpenVmBusInteractionHandler {
    OpenVmBusInteractionHandler::new(buses())
}

/// Whether the bus has such a message, as its AIR defines it.
fn has_row(bus: u64, message: &[u32]) -> bool {
    let tables = buses().tables;
    match (bus, message) {
        (RANGE_CHECKER, &[value, max_bits]) => tables
            .variable_range_checker
            .is_some_and(|table| table.bin(value, max_bits).is_some()),
        (TUPLE, &[first, second]) => tables
            .range_tuple_checker
            .is_some_and(|table| table.bin(first, second).is_some()),
        (BITWISE, &[x, y, z, selector]) => {
            tables
                .bitwise_lookup
                .is_some_and(|table| table.bin(x, y, selector).is_some())
                && z == if selector == 1 { x ^ y } else { 0 }
        }
        _ => unreachable!("no other bus is a lookup"),
    }
}

fn interaction(bus: u64, multiplicity: Field, payload: Vec<Range>) -> BusInteraction<Range> {
    BusInteraction {
        bus_id: Range::from_value(Field::from(bus)),
        multiplicity: Range::from_value(multiplicity),
        payload,
    }
}

fn number(value: u32) -> Range {
    Range::from_value(Field::from(value))
}

/// A fully known message is accepted if and only if the table has the row.
fn check_known(bus: u64, message: &[u32]) {
    let payload = message.iter().copied().map(number).collect();
    let accepted = handler()
        .handle_bus_interaction_checked(interaction(bus, Field::one(), payload))
        .is_ok();
    assert_eq!(accepted, has_row(bus, message), "bus {bus}: {message:?}");
}

#[test]
fn known_messages_are_accepted_exactly_if_the_table_has_them() {
    let bytes = [
        0, 1, 2, 0x55, 0x80, 0xfe, 0xff, 0x100, 0x101, 0xffff, LARGEST,
    ];
    for x in bytes {
        for y in bytes {
            // Not every xor is a field element.
            for z in bytes
                .into_iter()
                .chain(Some(x ^ y).filter(|z| *z <= LARGEST))
            {
                for selector in [0, 1, 2, LARGEST] {
                    check_known(BITWISE, &[x, y, z, selector]);
                }
            }
            check_known(TUPLE, &[x, y]);
        }
        check_known(TUPLE, &[x, SIZES[1] - 1]);
        check_known(TUPLE, &[x, SIZES[1]]);
    }
    for max_bits in (0..=MAX_BITS + 2).chain([31, 32, LARGEST]) {
        let bound = 1u64 << max_bits.min(30);
        for value in [0, 1, bound - 1, bound, bound + 1, u64::from(LARGEST)] {
            check_known(RANGE_CHECKER, &[value as u32, max_bits]);
        }
    }
}

#[test]
fn functions_of_known_values_are_found() {
    let unknown = Range::unconstrained;
    let claims = |bus, payload| {
        handler()
            .handle_bus_interaction(interaction(bus, Field::one(), payload))
            .payload
    };
    let xor = [number(0xa5), number(0x0f), number(0xaa), number(1)];
    for missing in 0..3 {
        let mut partial = xor.to_vec();
        partial[missing] = unknown();
        assert_eq!(claims(BITWISE, partial)[missing], xor[missing]);
    }
    // The result has no bit that no operand has.
    let narrow = claims(
        BITWISE,
        vec![
            Range::from_mask(0x30u32),
            Range::from_mask(0x05u32),
            unknown(),
            number(1),
        ],
    );
    assert_eq!(narrow[2], Range::from_mask(0x35u32));
    assert_eq!(
        claims(BITWISE, vec![unknown(), unknown(), unknown(), number(0)])[2],
        number(0)
    );
    assert_eq!(
        claims(RANGE_CHECKER, vec![unknown(), number(5)])[0],
        Range::from_mask(0x1fu32)
    );
    assert_eq!(
        claims(RANGE_CHECKER, vec![unknown(), unknown()])[0],
        Range::from_mask((1u32 << MAX_BITS) - 1)
    );
}

#[test]
fn an_interaction_that_may_not_take_place_says_nothing() {
    let payload = || vec![Range::unconstrained(), number(5)];
    for multiplicity in [Range::from_value(Field::zero()), Range::from_mask(1u32)] {
        let mut conditional = interaction(RANGE_CHECKER, Field::one(), payload());
        conditional.multiplicity = multiplicity;
        assert_eq!(
            handler().handle_bus_interaction(conditional).payload,
            payload()
        );
    }
    let mut somewhere = interaction(RANGE_CHECKER, Field::one(), payload());
    somewhere.bus_id = Range::unconstrained();
    assert_eq!(
        handler().handle_bus_interaction(somewhere).payload,
        payload()
    );
}

#[test]
fn only_what_memory_returns_is_bytes() {
    let message = |space: Range, pointer: Range| {
        [space, pointer]
            .into_iter()
            .chain((0..5).map(|_| Range::unconstrained()))
            .collect::<Vec<_>>()
    };
    let claims = |multiplicity, space, pointer| {
        handler()
            .handle_bus_interaction(interaction(MEMORY, multiplicity, message(space, pointer)))
            .payload
    };
    let (receive, send) = (-Field::one(), Field::one());
    let byte = Range::from_mask(0xffu32);
    for space in [1, 2] {
        let received = claims(receive, number(space), Range::unconstrained());
        assert_eq!(received[2..6], [byte; 4]);
        assert!(received[6].is_unconstrained(), "a timestamp is no byte");
        let sent = claims(send, number(space), Range::unconstrained());
        assert_eq!(sent, message(number(space), Range::unconstrained()));
    }
    // Public values and the other address spaces hold whatever they hold, and an unknown one is unknown.
    for space in [number(0), number(3), number(4), Range::from_mask(3u32)] {
        let pointer = Range::unconstrained();
        assert_eq!(claims(receive, space, pointer), message(space, pointer));
    }
    // Register x0 is zero; nothing else at pointer 0 is.
    assert_eq!(claims(receive, number(1), number(0))[2..6], [number(0); 4]);
    assert_eq!(claims(receive, number(2), number(0))[2..6], [byte; 4]);
    assert_eq!(
        claims(send, number(1), number(0)),
        message(number(1), number(0))
    );
}

#[test]
fn state_is_kept_by_execution_and_memory_only() {
    let stateful: Vec<u64> = (0..8)
        .filter(|&bus| handler().is_stateful(Field::from(bus)))
        .collect();
    assert_eq!(stateful, [0, 1]);
}

fn lookup(bus: u64, payload: Vec<Expression>) -> BusInteraction<Expression> {
    BusInteraction {
        bus_id: Expression::from_number(Field::from(bus)),
        multiplicity: Expression::from_number(Field::one()),
        payload,
    }
}

fn constant(value: u32) -> Expression {
    Expression::from_number(Field::from(value))
}

#[test]
fn pure_range_constraints_are_all_that_an_interaction_says() {
    let (x, y, z) = (
        Expression::from_unknown_variable("x"),
        Expression::from_unknown_variable("y"),
        Expression::from_unknown_variable("z"),
    );
    let byte = Range::from_mask(0xffu32);
    let pure = |bus, payload| handler().pure_range_constraints(&lookup(bus, payload));
    let some = |constraints: &[(&Expression, Range)]| {
        Some(
            constraints
                .iter()
                .map(|(expression, range)| ((*expression).clone(), *range))
                .collect::<Vec<_>>(),
        )
    };
    let both = some(&[(&x, byte), (&y, byte)]);
    assert_eq!(
        pure(
            BITWISE,
            vec![x.clone(), y.clone(), constant(0), constant(0)]
        ),
        both
    );
    let one = some(&[(&x, byte)]);
    for payload in [
        [x.clone(), x.clone(), constant(0), constant(1)],
        [x.clone(), constant(0), x.clone(), constant(1)],
        [constant(0), x.clone(), x.clone(), constant(1)],
    ] {
        assert_eq!(pure(BITWISE, payload.to_vec()), one);
    }
    // These relate their arguments, or depend on the selector or on the width.
    for payload in [
        [x.clone(), y.clone(), z.clone(), constant(1)],
        [x.clone(), y.clone(), constant(0), constant(1)],
        [x.clone(), y.clone(), z.clone(), constant(0)],
        [x.clone(), constant(1), x.clone(), constant(1)],
        [x.clone(), y.clone(), constant(0), z.clone()],
        [x.clone(), y.clone(), constant(0), constant(2)],
    ] {
        assert_eq!(pure(BITWISE, payload.to_vec()), None, "{payload:?}");
    }
    assert_eq!(pure(RANGE_CHECKER, vec![x.clone(), y.clone()]), None);
    assert_eq!(
        pure(RANGE_CHECKER, vec![x.clone(), constant(MAX_BITS + 1)]),
        None
    );
    for width in 0..=MAX_BITS {
        assert_eq!(
            pure(RANGE_CHECKER, vec![x.clone(), constant(width)]),
            some(&[(&x, Range::from_mask((1u32 << width) - 1))])
        );
    }
    assert_eq!(
        pure(TUPLE, vec![x.clone(), y.clone()]),
        some(&[(&x, byte), (&y, Range::from_mask(2047u32))])
    );
    for stateful in [0, MEMORY] {
        assert_eq!(pure(stateful, vec![x.clone(), y.clone()]), None);
    }

    // Bounds that no other table can repeat stay where they are.
    let mut odd = buses();
    odd.tables.range_tuple_checker = Some(RangeTupleCheckerTable {
        bus_id: TUPLE,
        sizes: [256, 2000],
    });
    let odd = OpenVmBusInteractionHandler::new(odd);
    assert_eq!(
        odd.pure_range_constraints(&lookup(TUPLE, vec![x.clone(), y.clone()])),
        None
    );
    assert!(odd
        .batch_make_range_constraints(vec![(
            x.clone(),
            Range::from_range(Field::zero(), Field::from(1999u32))
        )])
        .is_err());
}

#[test]
fn range_constraints_made_are_those_asked_for() {
    let names = ["a", "b", "c", "d", "e"];
    let variables = names.map(Expression::from_unknown_variable);
    let widths = [8, 17, 8, 0, 8];
    let wanted: Vec<_> = variables
        .iter()
        .cloned()
        .zip(widths.map(|width| Range::from_mask((1u32 << width) - 1)))
        .collect();
    let without_bitwise = {
        let mut buses = buses();
        buses.tables.bitwise_lookup = None;
        OpenVmBusInteractionHandler::new(buses)
    };
    for (handler, count) in [(handler(), 4), (without_bitwise, 5)] {
        let made = handler
            .batch_make_range_constraints(wanted.clone())
            .expect("the tables have all these widths");
        assert_eq!(made.len(), count);
        let mut said: Vec<_> = made
            .iter()
            .flat_map(|made| {
                handler
                    .pure_range_constraints(made)
                    .expect("it only constrains ranges")
            })
            .filter(|(expression, _)| expression.try_to_number().is_none())
            .collect();
        said.sort_by_key(|(expression, _)| {
            names
                .map(Expression::from_unknown_variable)
                .iter()
                .position(|name| name == expression)
        });
        assert_eq!(said, wanted);
    }
    for unheard_of in [
        Range::from_mask(0xf0u32),
        Range::from_range(Field::from(1u32), Field::from(255u32)),
        Range::from_mask((1u32 << (MAX_BITS + 1)) - 1),
        Range::unconstrained(),
    ] {
        assert!(handler()
            .batch_make_range_constraints(vec![(variables[0].clone(), unheard_of)])
            .is_err());
    }
}

/// Something true of `value`: nothing, a mask, a range, or the value.
fn knowledge(value: u32) -> impl Strategy<Value = Range> {
    prop_oneof![
        Just(Range::unconstrained()),
        any::<u32>().prop_map(move |more| Range::from_mask((more & 0x7ff_ffff) | value)),
        (any::<u32>(), any::<u32>()).prop_map(move |(below, above)| Range::from_range(
            Field::from(value - below % (value + 1)),
            Field::from(value + above % (LARGEST - value + 1)),
        )),
        Just(number(value)),
    ]
}

/// A row of a table, with something true of each of its values.
fn row() -> impl Strategy<Value = (u64, Vec<u32>, Vec<Range>)> {
    prop_oneof![
        (0u32..256, 0u32..256, any::<bool>()).prop_map(|(x, y, xor)| (
            BITWISE,
            if xor {
                vec![x, y, x ^ y, 1]
            } else {
                vec![x, y, 0, 0]
            }
        )),
        (any::<u32>(), 0..=MAX_BITS)
            .prop_map(|(value, bits)| (RANGE_CHECKER, vec![value & ((1 << bits) - 1), bits])),
        (0..SIZES[0], 0..SIZES[1]).prop_map(|(first, second)| (TUPLE, vec![first, second])),
    ]
    .prop_flat_map(|(bus, message)| {
        let known: Vec<_> = message
            .iter()
            .map(|&value| knowledge(value).boxed())
            .collect();
        (Just(bus), Just(message), known)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is known beforehand: no claim excludes a row that the table has.
    #[test]
    fn claims_are_true_of_every_row((bus, message, known) in row()) {
        let claims = handler()
            .handle_bus_interaction_checked(interaction(bus, Field::one(), known))
            .expect("the table has the row");
        for (position, (claim, &value)) in claims.payload.iter().zip(&message).enumerate() {
            prop_assert!(
                claim.allows_value(Field::from(value)),
                "bus {bus}, {message:?}, argument {position}: {claim}"
            );
        }
    }
}
