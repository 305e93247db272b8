//! Random bus programs: every compiler and interpreter against the reference.
//!
//! A nightly-sized run: `PROPTEST_CASES=1000000 cargo test --release --test bus_random`.

use openvm_apc::bus::{
    dag, reference, BusError, BusKernel, BusProgram, ColumnOrder, CountingInteractions, Histograms,
    OutOfTable, PeripheryTables, TraceView, F,
};
use p3_field::PrimeCharacteristicRing;
use powdr_autoprecompiles::{
    expression::{AlgebraicExpression, AlgebraicReference},
    symbolic_machine::SymbolicBusInteraction,
};
use powdr_number::BabyBearField;
use proptest::{collection::vec, prelude::*, sample::select};

type Expression = AlgebraicExpression<BabyBearField>;

const COLUMNS: u64 = 6;
/// On no table's bus: execution, memory and program, and one that does not exist.
const OTHER_BUSES: [u64; 4] = [0, 1, 2, 99];

fn tables() -> PeripheryTables {
    PeripheryTables::OPENVM_DEFAULT
}

fn column(id: u64) -> Expression {
    AlgebraicExpression::Reference(AlgebraicReference {
        name: format!("column_{id}").into(),
        id,
    })
}

fn number(value: u32) -> Expression {
    AlgebraicExpression::Number(BabyBearField::from(value))
}

/// Values that folds, edges and wrap-arounds care about.
fn constant() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => select(vec![0, 1, 2, 255, 256, 2013265920, 2013265919]),
        1 => 0u32..2013265921,
    ]
}

/// Trees of any degree, in which subtrees occur several times.
fn expression() -> impl Strategy<Value = Expression> {
    let leaf = prop_oneof![
        3 => (0..COLUMNS).prop_map(column),
        2 => constant().prop_map(number),
    ];
    leaf.prop_recursive(6, 40, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(left, right)| left + right),
            (inner.clone(), inner.clone()).prop_map(|(left, right)| left - right),
            (inner.clone(), inner.clone()).prop_map(|(left, right)| left * right),
            inner.clone().prop_map(|inner| -inner),
            inner.clone().prop_map(|inner| inner.clone() + inner),
            inner
                .clone()
                .prop_map(|inner| inner.clone() * (inner - number(1))),
        ]
    })
}

fn interaction() -> impl Strategy<Value = SymbolicBusInteraction<BabyBearField>> {
    let multiplicity = prop_oneof![
        2 => Just(number(1)),
        2 => Just(column(COLUMNS)),
        1 => Just(column(COLUMNS) * number(1)),
        2 => expression(),
    ];
    let arguments = prop_oneof![
        3 => (expression(), prop_oneof![(0u32..=18).prop_map(number), expression()])
            .prop_map(|(value, max_bits)| (3, vec![value, max_bits])),
        2 => (expression(), expression()).prop_map(|(v0, v1)| (7, vec![v0, v1])),
        3 => (expression(), expression(), expression(),
              prop_oneof![(0u32..=2).prop_map(number), expression()])
            .prop_map(|(x, y, z, selector)| (6, vec![x, y, z, selector])),
        1 => (select(OTHER_BUSES.to_vec()), vec(expression(), 0..4)),
    ];
    (arguments, multiplicity).prop_map(|((id, args), mult)| SymbolicBusInteraction {
        id,
        mult,
        args,
    })
}

#[derive(Clone, Debug)]
struct Case {
    interactions: Vec<SymbolicBusInteraction<BabyBearField>>,
    order: Vec<u64>,
    height: usize,
    live_rows: usize,
    values: Vec<u32>,
}

fn case() -> impl Strategy<Value = Case> {
    let shape = prop_oneof![
        10 => select(vec![1usize, 2, 4, 16]),
        1 => Just(1024),
    ]
    .prop_flat_map(|height| (Just(height), 0..=height));
    // Small values make most lookups hit their tables.
    let value = prop_oneof![
        6 => 0u32..4,
        2 => 0u32..256,
        1 => select(vec![0u32, 255, 256, 2047, 2048, 131071, 131072, 2013265920]),
    ];
    (
        vec(interaction(), 0..8),
        Just((0..=COLUMNS).collect::<Vec<_>>()).prop_shuffle(),
        shape,
        vec(value, 64),
    )
        .prop_map(|(interactions, order, (height, live_rows), values)| Case {
            interactions,
            order,
            height,
            live_rows,
            values,
        })
}

impl Case {
    /// Column-major values; the column `is_valid` is one on live rows and zero on the others.
    fn trace(&self) -> Vec<F> {
        self.order
            .iter()
            .flat_map(|&id| {
                (0..self.height).map(move |row| {
                    if id == COLUMNS {
                        F::from_bool(row < self.live_rows)
                    } else {
                        let index = (row * 31 + id as usize * 7) % self.values.len();
                        F::from_u32(self.values[index])
                    }
                })
            })
            .collect()
    }

    fn counting(&self) -> Result<CountingInteractions, BusError> {
        CountingInteractions::new(
            &self.interactions,
            &ColumnOrder::new(self.order.iter().copied()),
            Some(COLUMNS),
            &tables(),
        )
    }
}

fn programs(counting: &CountingInteractions) -> Vec<BusProgram> {
    let mut programs: Vec<BusProgram> = BusKernel::ALL
        .into_iter()
        .map(|kernel| (*kernel.compile(counting).unwrap()).clone())
        .collect();
    let reordered = dag::reordered(counting).unwrap();
    for schedule in dag::Schedule::ALL {
        for interactions in [counting, &reordered] {
            programs.push(BusProgram::Dag(
                dag::Program::compile(interactions, schedule).unwrap(),
            ));
        }
    }
    programs
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// Equal histograms where the trace is valid; where it is not, checking mode reports what the reference reports
    /// (for programs in the original order), and counting mode counts the rest.
    #[test]
    fn all_agree_with_the_reference(case in case()) {
        let counting = case.counting().unwrap();
        let values = case.trace();
        let trace = TraceView::new(&values, case.order.len(), case.height);
        let mut expected = Histograms::zeros(&tables());
        let outcome = reference::replay(&counting, trace, case.live_rows, &mut expected);
        let mut dropped: Option<Histograms> = None;
        for (position, program) in programs(&counting).iter().enumerate() {
            let mut checked = Histograms::zeros(&tables());
            let result = program.replay(trace, case.live_rows, &mut checked, OutOfTable::Report);
            prop_assert_eq!(result.is_ok(), outcome.is_ok());
            if outcome.is_ok() {
                prop_assert_eq!(&checked, &expected);
            } else if position < BusKernel::ALL.len() {
                prop_assert_eq!(&result, &outcome);
            }
            let mut counted = Histograms::zeros(&tables());
            program.replay(trace, case.live_rows, &mut counted, OutOfTable::Drop).unwrap();
            match &dropped {
                None => dropped = Some(counted),
                Some(first) => prop_assert_eq!(&counted, first),
            }
        }
        if outcome.is_ok() {
            prop_assert_eq!(dropped.as_ref(), Some(&expected));
        }
    }

    /// Programs are pure functions of the APC.
    #[test]
    fn equal_apcs_have_equal_programs(case in case()) {
        prop_assert_eq!(programs(&case.counting().unwrap()), programs(&case.counting().unwrap()));
    }
}

#[test]
fn only_what_counts_is_compiled() {
    let case = Case {
        interactions: vec![
            SymbolicBusInteraction {
                id: 1,
                mult: number(1),
                args: vec![column(0)],
            },
            SymbolicBusInteraction {
                id: 6,
                mult: number(1),
                args: vec![column(0), column(1), column(2) * column(3), number(1)],
            },
        ],
        order: (0..=COLUMNS).collect(),
        height: 1,
        live_rows: 1,
        values: vec![3; 64],
    };
    let counting = case.counting().unwrap();
    assert_eq!(counting.interactions().len(), 1);
    assert_eq!(counting.interactions()[0].index, 1);
    // Three bare operands: nothing to evaluate, and no trace of the xor argument.
    let program = dag::Program::compile(&counting, dag::Schedule::SEED).unwrap();
    assert_eq!((program.rules().len(), program.slots()), (0, 0));
}

#[test]
fn what_does_not_fit_is_refused() {
    let far = dag::MAX_COLUMNS as u64;
    let interactions = [SymbolicBusInteraction {
        id: 3,
        mult: number(1),
        args: vec![column(far), number(8)],
    }];
    let counting = |width: u64| {
        CountingInteractions::new(&interactions, &ColumnOrder::new(0..width), None, &tables())
    };
    assert!(matches!(
        counting(far),
        Err(BusError::UnknownColumn { interaction: 0, .. })
    ));
    let counting = counting(far + 1).unwrap();
    assert!(matches!(
        BusKernel::Dag.compile(&counting),
        Err(BusError::TooLarge {
            interaction: 0,
            value,
            ..
        }) if value == dag::MAX_COLUMNS
    ));
    assert!(BusKernel::Vm.compile(&counting).is_ok());

    let wrong = [SymbolicBusInteraction {
        id: 6,
        mult: number(1),
        args: vec![number(1), number(2)],
    }];
    assert!(matches!(
        CountingInteractions::new(&wrong, &ColumnOrder::default(), None, &tables()),
        Err(BusError::ArgumentCount { found: 2, .. })
    ));
}

#[test]
fn broken_lookups_are_named() {
    let interactions = [
        SymbolicBusInteraction {
            id: 1,
            mult: number(1),
            args: vec![],
        },
        SymbolicBusInteraction {
            id: 6,
            mult: number(1),
            args: vec![column(0), number(1), number(0), number(2)],
        },
    ];
    let counting =
        CountingInteractions::new(&interactions, &ColumnOrder::new([0]), None, &tables()).unwrap();
    let values = [F::from_u32(5), F::from_u32(6)];
    for kernel in BusKernel::ALL {
        let mut histograms = Histograms::zeros(&tables());
        let error = kernel
            .compile(&counting)
            .unwrap()
            .replay(
                TraceView::new(&values, 1, 2),
                2,
                &mut histograms,
                OutOfTable::Report,
            )
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("interaction 1, row 0") && text.contains("[5, 1, 2]"),
            "{text}"
        );
    }
}
