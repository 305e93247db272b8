//! A trace whose live rows are repeated to any number, and what it has to count then.

use eyre::Result;
use openvm_apc::bus::{reference, CountingInteractions, Histograms, TraceView, F};
use p3_field::PrimeCharacteristicRing;

use super::{files::HostTrace, programs::TABLES};

impl HostTrace {
    /// The live rows, repeated to `rows` of them, in a trace of the next power of two.
    pub fn repeated(&self, rows: usize) -> Self {
        let height = rows.next_power_of_two();
        let mut values = vec![F::ZERO; height * self.width];
        for column in 0..self.width {
            let source = &self.values[column * self.height..][..self.live_rows];
            let target = &mut values[column * height..][..rows];
            for (value, from) in target.iter_mut().zip(source.iter().cycle()) {
                *value = *from;
            }
        }
        Self {
            values,
            height,
            width: self.width,
            live_rows: rows,
        }
    }
}

/// What [`HostTrace::repeated`] has to count, by the reference on the trace as it was.
pub struct ExpectedCounts<'a> {
    interactions: &'a CountingInteractions,
    trace: &'a HostTrace,
    /// Of all its live rows.
    once: Histograms,
}

impl<'a> ExpectedCounts<'a> {
    /// Counts the live rows of a trace.
    ///
    /// # Errors
    /// If a lookup has no row in its table, or the trace is none of the interactions'.
    pub fn new(interactions: &'a CountingInteractions, trace: &'a HostTrace) -> Result<Self> {
        Ok(Self {
            interactions,
            trace,
            once: count(interactions, trace, trace.live_rows)?,
        })
    }

    /// The counts of `rows` rows: those of all live rows as often as they fit, and those of the rest.
    pub fn of_rows(&self, rows: usize) -> Result<Histograms> {
        let live_rows = self.trace.live_rows;
        let mut counts = count(self.interactions, self.trace, rows % live_rows)?;
        let times = (rows / live_rows) as u32;
        let mut full = self.once.clone();
        for bins in [
            &mut full.variable_range_checker,
            &mut full.range_tuple_checker,
            &mut full.bitwise_lookup,
        ] {
            for bin in bins {
                *bin = bin.wrapping_mul(times);
            }
        }
        counts.merge(&full);
        Ok(counts)
    }
}

fn count(
    interactions: &CountingInteractions,
    trace: &HostTrace,
    rows: usize,
) -> Result<Histograms> {
    let mut counts = Histograms::zeros(&TABLES);
    let view = TraceView::new(&trace.values, trace.width, trace.height);
    reference::replay(interactions, view, rows, &mut counts)?;
    Ok(counts)
}
