//! Mock proving: checks every constraint and the balance of every bus on the full traces of a segment, without
//! committing to anything.
//!
//! What is checked is what the verifier checks: the constraints and interactions are those of the proving key, not
//! those an AIR would give when asked again. Traces come one AIR at a time from the device to the host, so that the
//! check also runs on a GPU's proving context, and no more than one trace is held twice.
//!
//! The bus balance is taken over 64-bit fingerprints: the bus, and 48 bits of a hash of the message. Two messages with
//! the same fingerprint can never turn a balanced bus into an unbalanced one; that two *unbalanced* messages cancel out
//! each other has probability 2^-48 a pair. Only when something is unbalanced the traces are walked again, to name the
//! messages.

mod air;
mod balance;
mod error;
mod shapes;

use std::{collections::BTreeMap, sync::Mutex};

use itertools::Itertools;
use openvm_stark_backend::{
    prover::{DeviceMultiStarkProvingKey, MatrixDimensions, ProvingContext},
    StarkEngine,
};
use rayon::prelude::*;

pub use self::error::{
    ConstraintViolation, Contribution, MockError, UnbalancedMessage, Unsatisfied,
};
use self::{
    air::AirCheck,
    balance::{bus_of, describe_messages, BusBalance},
    shapes::check_shapes,
};
use super::Labels;

/// At most this many violated constraints are described, and this many unbalanced messages a bus.
pub const MAX_DESCRIBED: usize = 8;

/// What a passed check has looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MockReport {
    /// AIRs with a trace.
    pub airs: usize,
    /// Rows of all traces together.
    pub rows: usize,
    /// Cells of all traces together (main traces, cached ones included; no preprocessed ones).
    pub cells: usize,
    /// Constraints evaluated: for each AIR, constraints × rows.
    pub constraints: usize,
    /// Bus messages of non-zero multiplicity.
    pub messages: usize,
}

impl MockReport {
    /// Adds the report of a further segment.
    pub fn add(&mut self, other: &Self) {
        self.airs = self.airs.max(other.airs);
        self.rows += other.rows;
        self.cells += other.cells;
        self.constraints += other.constraints;
        self.messages += other.messages;
    }
}

/// Checks the traces of one segment against the proving key.
///
/// # Errors
/// [`MockError::Unsatisfied`] names AIR, row and constraint, or bus, message and the AIRs that send and receive it;
/// the other variants say which trace has the wrong shape.
pub fn check<E: StarkEngine>(
    engine: &E,
    pk: &DeviceMultiStarkProvingKey<E::PB>,
    ctx: &ProvingContext<E::PB>,
    labels: &Labels,
) -> Result<MockReport, MockError> {
    check_shapes(engine.params(), pk, ctx, labels)?;

    let mut report = MockReport::default();
    let mut failure = Unsatisfied::default();
    let balance = BusBalance::default();
    for (air_id, air_ctx) in &ctx.per_trace {
        let air = AirCheck::new(engine, &pk.per_air[*air_id], air_ctx, *air_id, labels);
        let violations = Mutex::new(BTreeMap::new());
        let messages: usize = air
            .chunks()
            .into_par_iter()
            .map(|rows| {
                let values = air.evaluate(rows.clone());
                air.find_violations(&values, rows.clone(), &violations);
                balance.add(&air, &values, rows)
            })
            .sum();
        let violations = violations
            .into_inner()
            .expect("no thread panicked while it held the lock");
        failure.violated_constraints += violations.len();
        let room = MAX_DESCRIBED - failure.constraints.len();
        failure.constraints.extend(
            violations
                .into_iter()
                .take(room)
                .map(|(constraint, (row, rows))| air.describe(constraint, row, rows)),
        );
        report.airs += 1;
        report.rows += air.height;
        report.cells += air.height * air.main.iter().map(|part| part.width()).sum::<usize>();
        report.constraints += air.height * air.dag.constraints.constraint_idx.len();
        report.messages += messages;
    }

    let unbalanced = balance.unbalanced();
    failure.unbalanced_messages = unbalanced.len();
    if !unbalanced.is_empty() {
        let described = unbalanced
            .into_iter()
            .chunk_by(|fingerprint| bus_of(*fingerprint))
            .into_iter()
            .flat_map(|(_, of_bus)| of_bus.take(MAX_DESCRIBED).collect::<Vec<_>>())
            .collect();
        failure.messages = describe_messages(engine, pk, ctx, labels, &described);
    }
    if failure.violated_constraints + failure.unbalanced_messages == 0 {
        Ok(report)
    } else {
        Err(MockError::Unsatisfied(Box::new(failure)))
    }
}
