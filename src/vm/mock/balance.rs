//! The balance of the buses: every message is received as often as it is sent.

use std::{
    collections::{hash_map::DefaultHasher, BTreeMap, BTreeSet},
    hash::Hasher,
    ops::Range,
    sync::Mutex,
};

use itertools::Itertools;
use openvm_stark_backend::{
    interaction::BusIndex,
    prover::{DeviceMultiStarkProvingKey, ProvingContext},
    StarkEngine, Val,
};
use p3_field::{PrimeCharacteristicRing, PrimeField64};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::{
    air::{signed, AirCheck},
    Contribution, UnbalancedMessage,
};
use crate::vm::Labels;

/// At most this many contributions to one unbalanced message are listed.
const MAX_CONTRIBUTIONS: usize = 8;
/// Parts of the sums, each with a lock of its own.
const SHARDS: usize = 64;
/// Bits of a fingerprint that are the message's hash; the bus is above them.
const HASH_BITS: u32 = u64::BITS - BusIndex::BITS;

pub(super) fn fingerprint<F: PrimeField64>(bus: BusIndex, message: &[F]) -> u64 {
    // SipHash with fixed keys: the same run gives the same report.
    let mut hasher = DefaultHasher::new();
    hasher.write_usize(message.len());
    for value in message {
        hasher.write_u64(value.as_canonical_u64());
    }
    (u64::from(bus) << HASH_BITS) | (hasher.finish() >> BusIndex::BITS)
}

pub(super) fn bus_of(fingerprint: u64) -> u64 {
    fingerprint >> HASH_BITS
}

/// Sums of multiplicities by message fingerprint, in shards that threads lock one at a time. Sums that come to zero
/// are dropped at once, so that the memory needed is that of the messages still open.
pub(super) struct BusBalance<F> {
    shards: Vec<Mutex<FxHashMap<u64, F>>>,
}

impl<F> Default for BusBalance<F> {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl<F: PrimeField64> BusBalance<F> {
    /// Adds the messages of some rows; returns how many there are.
    pub(super) fn add(&self, air: &AirCheck<'_, F>, values: &[F], rows: Range<usize>) -> usize {
        let mut by_shard = vec![vec![]; SHARDS];
        air.for_each_message(values, rows, |fingerprint, _, _, _, count| {
            by_shard[fingerprint as usize % SHARDS].push((fingerprint, count));
        });
        let messages = by_shard.iter().map(Vec::len).sum();
        for (shard, added) in self.shards.iter().zip(by_shard) {
            if added.is_empty() {
                continue;
            }
            let mut sums = shard
                .lock()
                .expect("no thread panics while it holds the lock");
            for (fingerprint, count) in added {
                let sum = sums.entry(fingerprint).or_insert(F::ZERO);
                *sum += count;
                if sum.is_zero() {
                    sums.remove(&fingerprint);
                }
            }
        }
        messages
    }

    /// The fingerprints that do not sum to zero.
    pub(super) fn unbalanced(self) -> BTreeSet<u64> {
        self.shards
            .into_iter()
            .flat_map(|shard| {
                shard
                    .into_inner()
                    .expect("no thread panicked while it held the lock")
                    .into_keys()
            })
            .collect()
    }
}

/// Walks the traces again to name the unbalanced messages.
pub(super) fn describe_messages<E: StarkEngine>(
    engine: &E,
    pk: &DeviceMultiStarkProvingKey<E::PB>,
    ctx: &ProvingContext<E::PB>,
    labels: &Labels,
    unbalanced: &BTreeSet<u64>,
) -> Vec<UnbalancedMessage> {
    struct Found<F> {
        bus: BusIndex,
        message: Vec<F>,
        sum: F,
        contributions: Vec<(usize, usize, usize, F)>,
    }
    let found: Mutex<BTreeMap<u64, Found<Val<E::SC>>>> = Mutex::default();
    for (air_id, air_ctx) in &ctx.per_trace {
        let air = AirCheck::new(engine, &pk.per_air[*air_id], air_ctx, *air_id, labels);
        air.chunks().into_par_iter().for_each(|rows| {
            let values = air.evaluate(rows.clone());
            air.for_each_message(
                &values,
                rows,
                |fingerprint, row, interaction, message, count| {
                    if !unbalanced.contains(&fingerprint) {
                        return;
                    }
                    let mut found = found
                        .lock()
                        .expect("no thread panics while it holds the lock");
                    let entry = found.entry(fingerprint).or_insert_with(|| Found {
                        bus: air.dag.interactions[interaction].bus_index,
                        message: message.to_vec(),
                        sum: Val::<E::SC>::ZERO,
                        contributions: vec![],
                    });
                    entry.sum += count;
                    entry.contributions.push((*air_id, row, interaction, count));
                },
            );
        });
    }
    let found = found
        .into_inner()
        .expect("no thread panicked while it held the lock");
    found
        .into_values()
        .sorted_by_key(|found| found.bus)
        .map(|mut found| {
            found
                .contributions
                .sort_by_key(|(air_id, row, interaction, _)| (*air_id, *row, *interaction));
            UnbalancedMessage {
                bus: labels.bus(found.bus),
                message: found
                    .message
                    .iter()
                    .map(|value| value.as_canonical_u64())
                    .collect(),
                sum: signed(found.sum),
                interactions: found.contributions.len(),
                contributions: found
                    .contributions
                    .into_iter()
                    .take(MAX_CONTRIBUTIONS)
                    .map(|(air_id, row, interaction, count)| Contribution {
                        air: labels.air(air_id, &pk.per_air[air_id].air_name).to_string(),
                        row,
                        interaction,
                        count: signed(count),
                    })
                    .collect(),
            }
        })
        .collect()
}
