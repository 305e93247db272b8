//! The mock prover on toy AIRs: it accepts what the prover and the verifier accept, and names what they do not.

use std::sync::Arc;

use openvm_apc::vm::{
    digest::SegmentDigest,
    mock::{check, MockError, MockReport, Unsatisfied},
    Labels,
};
use openvm_stark_backend::{
    interaction::{InteractionBuilder, LookupBus, PermutationCheckBus},
    p3_air::{Air, AirBuilder, AirBuilderWithPublicValues, BaseAir},
    p3_matrix::{dense::RowMajorMatrix, Matrix},
    prover::{
        AirProvingContext, DeviceDataTransporter, DeviceMultiStarkProvingKey, ProvingContext,
    },
    AirRef, BaseAirWithPublicValues, PartitionedBaseAir, StarkEngine,
};
use openvm_stark_sdk::config::{
    app_params_with_100_bits_security,
    baby_bear_poseidon2::{BabyBearPoseidon2Config, BabyBearPoseidon2CpuEngine, F},
};
use p3_field::PrimeCharacteristicRing;

type Engine = BabyBearPoseidon2CpuEngine;

const PAIRS: u16 = 3;
const SQUARES: u16 = 5;

/// `(a, b) → (b, a + b)`, starting from the public values, each `a` sent to the bus PAIRS as `[a, b]`.
#[derive(Clone)]
struct Fibonacci;

/// Receives what [`Fibonacci`] sends, and looks the square of each `a` up.
#[derive(Clone)]
struct Receiver;

/// A preprocessed table of 16 squares.
#[derive(Clone)]
struct Squares;

impl<T> BaseAir<T> for Fibonacci {
    fn width(&self) -> usize {
        2
    }
}
impl<T> PartitionedBaseAir<T> for Fibonacci {}
impl<T> BaseAirWithPublicValues<T> for Fibonacci {
    fn num_public_values(&self) -> usize {
        2
    }
}
impl<AB: InteractionBuilder + AirBuilderWithPublicValues> Air<AB> for Fibonacci {
    fn eval(&self, builder: &mut AB) {
        let main = builder.main();
        let (local, next) = (
            main.row_slice(0).expect("a window has two rows"),
            main.row_slice(1).expect("a window has two rows"),
        );
        let public = [0, 1].map(|index| builder.public_values()[index].into());
        for (column, public) in public.into_iter().enumerate() {
            builder
                .when_first_row()
                .assert_eq::<AB::Expr, AB::Expr>(local[column].into(), public);
        }
        builder.when_transition().assert_eq(next[0], local[1]);
        builder
            .when_transition()
            .assert_eq(next[1], local[0] + local[1]);
        PermutationCheckBus::new(PAIRS).send(builder, [local[0], local[1]], AB::Expr::ONE);
    }
}

impl<T> BaseAir<T> for Receiver {
    fn width(&self) -> usize {
        3
    }
}
impl<T> PartitionedBaseAir<T> for Receiver {}
impl<T> BaseAirWithPublicValues<T> for Receiver {}
impl<AB: InteractionBuilder> Air<AB> for Receiver {
    fn eval(&self, builder: &mut AB) {
        let main = builder.main();
        let local = main.row_slice(0).expect("a window has two rows");
        let enabled: AB::Expr = local[2].into();
        builder.assert_bool(enabled.clone());
        PermutationCheckBus::new(PAIRS).receive(builder, [local[0], local[1]], enabled.clone());
        let square: AB::Expr = local[0].into() * local[0].into();
        LookupBus::new(SQUARES).lookup_key(builder, [local[0].into(), square], enabled);
    }
}

impl BaseAir<F> for Squares {
    fn width(&self) -> usize {
        1
    }
    fn preprocessed_trace(&self) -> Option<RowMajorMatrix<F>> {
        let values = (0..16).flat_map(|value| [F::from_u32(value), F::from_u32(value * value)]);
        Some(RowMajorMatrix::new(values.collect(), 2))
    }
}
impl PartitionedBaseAir<F> for Squares {}
impl BaseAirWithPublicValues<F> for Squares {}
impl<AB> Air<AB> for Squares
where
    AB: InteractionBuilder + openvm_stark_backend::p3_air::PairBuilder,
    Squares: BaseAir<AB::F>,
{
    fn eval(&self, builder: &mut AB) {
        let main = builder.main();
        let preprocessed = builder.preprocessed();
        let (local, key) = (
            main.row_slice(0).expect("a window has two rows"),
            preprocessed.row_slice(0).expect("a window has two rows"),
        );
        LookupBus::new(SQUARES).add_key_with_lookups(builder, [key[0], key[1]], local[0]);
    }
}

/// The traces of 4 steps from (1, 2): pairs (1, 2), (2, 3), (3, 5), (5, 8).
struct Traces {
    fibonacci: Vec<u32>,
    public_values: Vec<u32>,
    receiver: Vec<u32>,
    multiplicities: Vec<u32>,
}

impl Traces {
    fn right() -> Self {
        let mut multiplicities = vec![0; 16];
        for value in [1, 2, 3, 5] {
            multiplicities[value] = 1;
        }
        Self {
            fibonacci: vec![1, 2, 2, 3, 3, 5, 5, 8],
            public_values: vec![1, 2],
            // In another order, with padding.
            receiver: [[5, 8, 1], [3, 5, 1], [2, 3, 1], [1, 2, 1]]
                .into_iter()
                .chain([[0; 3]; 4])
                .flatten()
                .collect(),
            multiplicities,
        }
    }

    fn context(&self) -> Vec<AirProvingContext<<Engine as StarkEngine>::PB>> {
        let field = |values: &[u32]| values.iter().map(|value| F::from_u32(*value)).collect();
        let matrix = |values, width| RowMajorMatrix::new(field(values), width);
        vec![
            AirProvingContext::simple(matrix(&self.fibonacci, 2), field(&self.public_values)),
            AirProvingContext::simple_no_pis(matrix(&self.receiver, 3)),
            AirProvingContext::simple_no_pis(matrix(&self.multiplicities, 1)),
        ]
    }

    fn check(&self) -> Result<MockReport, MockError> {
        check_contexts(self.context().into_iter().enumerate().collect())
    }

    fn unsatisfied(&self) -> Unsatisfied {
        match self.check() {
            Err(MockError::Unsatisfied(unsatisfied)) => *unsatisfied,
            other => panic!("expected unsatisfied constraints, not {other:?}"),
        }
    }
}

fn engine() -> Engine {
    Engine::new(app_params_with_100_bits_security(17))
}

fn airs() -> Vec<AirRef<BabyBearPoseidon2Config>> {
    vec![Arc::new(Fibonacci), Arc::new(Receiver), Arc::new(Squares)]
}

fn proving_key() -> (
    Engine,
    DeviceMultiStarkProvingKey<<Engine as StarkEngine>::PB>,
) {
    let engine = engine();
    let (pk, _) = engine.keygen(&airs());
    let pk = engine.device().transport_pk_to_device(&pk);
    (engine, pk)
}

fn check_contexts(
    contexts: Vec<(usize, AirProvingContext<<Engine as StarkEngine>::PB>)>,
) -> Result<MockReport, MockError> {
    let (engine, pk) = proving_key();
    let mut labels = Labels::default();
    labels
        .columns
        .insert(0, vec!["a".to_string(), "b".to_string()]);
    labels.buses.insert(PAIRS, "pairs".to_string());
    check(&engine, &pk, &ProvingContext::new(contexts), &labels)
}

#[test]
fn accepts_what_the_verifier_accepts() {
    let report = Traces::right().check().unwrap();
    assert_eq!(
        report,
        MockReport {
            airs: 3,
            rows: 4 + 8 + 16,
            cells: 4 * 2 + 8 * 3 + 16,
            constraints: 4 * 4 + 8,
            messages: 4 + 4 + 4 + 4,
        }
    );
    engine()
        .run_test(airs(), Traces::right().context())
        .expect("the same traces are provable");
}

#[test]
fn names_air_row_and_constraint() {
    let mut traces = Traces::right();
    traces.fibonacci[3] = 4;
    traces.receiver[7] = 4; // keeps the bus balanced
    traces.receiver[3] = 3;
    traces.receiver[4] = 5;
    let unsatisfied = traces.unsatisfied();
    assert_eq!(unsatisfied.violated_constraints, 2);
    // (2, 4) is sent; (2, 4) is received.
    assert_eq!(unsatisfied.unbalanced_messages, 0, "{unsatisfied}");
    let violation = unsatisfied
        .constraints
        .iter()
        .find(|violation| violation.row == 0)
        .expect("b' = a + b fails between the first rows");
    assert!(violation.air.contains("Fibonacci"), "{violation}");
    assert_eq!(violation.rows, 2, "and between the next");
    assert_eq!(violation.value, 1);
    assert_eq!(violation.expression, "is_transition * (b' - (a + b))");
    for cell in [("a", 1), ("b", 2), ("b'", 4)] {
        let cell = (cell.0.to_string(), cell.1);
        assert!(violation.cells.contains(&cell), "{violation}");
    }
    assert!(unsatisfied
        .constraints
        .iter()
        .any(|violation| violation.row == 1 && violation.expression.contains("a' - b")));
    let text = unsatisfied.to_string();
    assert!(text.contains("row 0"), "{text}");
}

#[test]
fn reads_public_values() {
    let mut traces = Traces::right();
    traces.public_values[1] = 7;
    let unsatisfied = traces.unsatisfied();
    assert_eq!(unsatisfied.violated_constraints, 1);
    let violation = &unsatisfied.constraints[0];
    assert_eq!((violation.row, violation.rows), (0, 1));
    assert!(
        violation.expression.contains("public_value[1]"),
        "{violation}"
    );
}

#[test]
fn names_the_unbalanced_message_and_its_airs() {
    let mut traces = Traces::right();
    traces.receiver[1] = 9; // (5, 8) is sent, (5, 9) received
    let unsatisfied = traces.unsatisfied();
    assert_eq!(unsatisfied.violated_constraints, 0);
    assert_eq!(unsatisfied.unbalanced_messages, 2);
    for (message, sum, air, row) in [
        (vec![5, 8], 1, "Fibonacci", 3),
        (vec![5, 9], -1, "Receiver", 0),
    ] {
        let found = unsatisfied
            .messages
            .iter()
            .find(|found| found.message == message)
            .expect("the message is reported");
        assert_eq!(found.bus, "3 (pairs)");
        assert_eq!(found.sum, sum);
        assert_eq!(found.contributions.len(), 1);
        let contribution = &found.contributions[0];
        assert!(contribution.air.contains(air));
        assert_eq!((contribution.row, contribution.count), (row, sum));
    }
}

#[test]
fn finds_a_wrong_multiplicity() {
    let mut traces = Traces::right();
    traces.multiplicities[3] = 2;
    let unsatisfied = traces.unsatisfied();
    assert_eq!(unsatisfied.unbalanced_messages, 1);
    let message = &unsatisfied.messages[0];
    assert_eq!((&message.message[..], message.sum), (&[3, 9][..], -1));
    assert_eq!(message.bus, "5");
    // The receiver's lookup, and the table's row that offers it twice.
    let counts: Vec<_> = message.contributions.iter().map(|by| by.count).collect();
    assert_eq!(counts, [1, -2]);
    assert!(message.contributions[1].air.contains("Squares"));
    assert_eq!(message.contributions[1].row, 3);
}

#[test]
fn says_which_trace_has_the_wrong_shape() {
    let contexts = || Traces::right().context().into_iter().enumerate();

    let without_table = contexts().take(2).collect();
    match check_contexts(without_table) {
        Err(MockError::Unsatisfied(unsatisfied)) => {
            assert_eq!(unsatisfied.unbalanced_messages, 4)
        }
        other => panic!("four lookups are without their table: {other:?}"),
    }

    let twice = contexts().chain(contexts().take(1)).collect();
    assert!(matches!(
        check_contexts(twice),
        Err(MockError::DuplicateAir { .. })
    ));

    let unknown = contexts().map(|(id, context)| (id + 1, context)).collect();
    assert!(matches!(
        check_contexts(unknown),
        Err(MockError::Width { .. } | MockError::UnknownAir { .. })
    ));

    let mut narrow = Traces::right();
    narrow.receiver = vec![0; 24];
    let mut contexts: Vec<_> = narrow.context().into_iter().enumerate().collect();
    contexts[1].1.common_main.width = 2;
    contexts[1].1.common_main.values.truncate(16);
    assert!(matches!(
        check_contexts(contexts),
        Err(MockError::Width {
            expected: 3,
            actual: 2,
            ..
        })
    ));

    let mut uneven = Traces::right();
    uneven.receiver.truncate(18);
    assert!(matches!(
        uneven.check(),
        Err(MockError::Height { height: 6, .. })
    ));

    let mut public = Traces::right();
    public.public_values.push(0);
    assert!(matches!(
        public.check(),
        Err(MockError::PublicValues {
            expected: 2,
            actual: 3,
            ..
        })
    ));

    let mut short = Traces::right();
    short.multiplicities.truncate(8);
    assert!(matches!(
        short.check(),
        Err(MockError::PartHeight {
            expected: 8,
            actual: 16,
            ..
        })
    ));
}

#[test]
fn digests_notice_a_changed_cell_and_a_changed_public_value() {
    let digest = |change: fn(&mut Traces)| {
        let mut traces = Traces::right();
        change(&mut traces);
        let contexts = traces.context().into_iter().enumerate().collect();
        let (engine, pk) = proving_key();
        SegmentDigest::of(
            &engine,
            &pk,
            &ProvingContext::new(contexts),
            &Labels::default(),
        )
    };
    let right = digest(|_| ());
    assert_eq!(right, digest(|_| ()));
    let heights: Vec<_> = right.airs.iter().map(|air| air.height).collect();
    assert_eq!(heights, [4, 8, 16]);
    assert_eq!(right.airs[0].public_values, [1, 2]);
    let differing = |other: &SegmentDigest| -> Vec<usize> {
        (0..3)
            .filter(|&air| right.airs[air] != other.airs[air])
            .collect()
    };
    assert_eq!(differing(&digest(|traces| traces.fibonacci[7] = 9)), [0]);
    assert_eq!(
        differing(&digest(|traces| traces.public_values[1] = 9)),
        [0]
    );
    assert_eq!(
        differing(&digest(|traces| traces.multiplicities[3] = 2)),
        [2]
    );
    // The receiver's first two rows, exchanged.
    let exchanged =
        digest(|traces| (0..3).for_each(|column| traces.receiver.swap(column, 3 + column)));
    assert_eq!(differing(&exchanged), [1]);
    let [right, exchanged] = [&right, &exchanged].map(|digest| &digest.airs[1].matrices[0]);
    assert_eq!(right.rows, exchanged.rows);
    assert_ne!(right.values, exchanged.values);
}
