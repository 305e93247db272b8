//! Runs encoded rules on the CPU by decoding the words that the device reads.

use p3_field::{PrimeCharacteristicRing, PrimeField32};

use super::{
    rules::{Codec, Rule, RuleWithFlag, Source},
    Output, Program, MULTIPLICITY_IS_ONE, OUTPUT_COLUMN, OUTPUT_SLOT,
};
use crate::bus::{
    error::BusError,
    kernel::{count, Lookup, OutOfTable},
    table::{Histograms, TableKind},
    trace::TraceView,
    F,
};

impl Program {
    /// Counts the interactions of the first `live_rows` rows of the trace.
    pub fn replay(
        &self,
        trace: TraceView<'_>,
        live_rows: usize,
        histograms: &mut Histograms,
        out_of_table: OutOfTable,
    ) -> Result<(), BusError> {
        trace.check(self.width, live_rows)?;
        let rules = self.decode();
        // What a slot holds before its first rule is nobody's business: make a wrong read show.
        let mut slots = vec![F::NEG_ONE; self.slots];
        for row in 0..live_rows {
            let mut next = 0;
            for (position, interaction) in self.interactions.iter().enumerate() {
                let end = interaction.dispatch_after as usize;
                for rule in &rules[next..end] {
                    run(rule, &mut slots, |column| trace.get(column, row));
                }
                next = next.max(end);
                let value = |output: Output| match output.kind {
                    OUTPUT_SLOT => slots[output.value as usize].as_canonical_u32(),
                    OUTPUT_COLUMN => trace.get(output.value as usize, row).as_canonical_u32(),
                    _ => output.value,
                };
                let multiplicity = if interaction.flags & MULTIPLICITY_IS_ONE != 0 {
                    1
                } else {
                    value(interaction.multiplicity)
                };
                if multiplicity == 0 {
                    continue;
                }
                let table = self.kinds[position];
                count(
                    &self.tables,
                    Lookup {
                        interaction: self.indices[position],
                        table,
                        row,
                        arguments: [value(interaction.first), value(interaction.second)],
                        selector: (table == TableKind::BitwiseLookup)
                            .then(|| value(interaction.selector)),
                        multiplicity,
                    },
                    histograms,
                    out_of_table,
                )?;
            }
        }
        Ok(())
    }

    fn decode(&self) -> Vec<Rule<F>> {
        self.rules
            .iter()
            .map(|&encoded| RuleWithFlag::<F>::decode(encoded).inner)
            .collect()
    }

    /// The largest number of slots that hold a value still to be read, counted on the encoded program.
    pub fn live_maximum(&self) -> usize {
        let rules = self.decode();
        let mut live = vec![false; self.slots];
        let (mut count, mut most) = (0usize, 0);
        let read = |slot: usize, live: &mut Vec<bool>, count: &mut usize| {
            *count += usize::from(!std::mem::replace(&mut live[slot], true));
        };
        let mut interactions = self.interactions.iter().rev().peekable();
        for position in (0..=rules.len()).rev() {
            while let Some(interaction) =
                interactions.next_if(|interaction| interaction.dispatch_after as usize >= position)
            {
                for output in [
                    interaction.multiplicity,
                    interaction.first,
                    interaction.second,
                    interaction.selector,
                ] {
                    if output.kind == OUTPUT_SLOT {
                        read(output.value as usize, &mut live, &mut count);
                    }
                }
            }
            most = most.max(count);
            let Some(rule) = position.checked_sub(1).map(|index| &rules[index]) else {
                continue;
            };
            let (operands, target) = parts(rule);
            if let Some(slot) = target {
                count -= usize::from(std::mem::replace(&mut live[slot], false));
            }
            for operand in operands.into_iter().flatten() {
                if let Source::Intermediate(slot) = operand {
                    read(*slot, &mut live, &mut count);
                }
            }
            most = most.max(count);
        }
        most
    }
}

/// The operands of a rule, and the slot that it fills.
fn parts(rule: &Rule<F>) -> ([Option<&Source<F>>; 2], Option<usize>) {
    let slot = |target: &Source<F>| match target {
        Source::Intermediate(slot) => Some(*slot),
        _ => None,
    };
    match rule {
        Rule::Add(x, y, z) | Rule::Sub(x, y, z) | Rule::Mul(x, y, z) => {
            ([Some(x), Some(y)], slot(z))
        }
        Rule::Neg(x, z) | Rule::BufferVar(x, z) => ([Some(x), None], slot(z)),
        Rule::Variable(x) => ([Some(x), None], None),
    }
}

fn run(rule: &Rule<F>, slots: &mut [F], column: impl Fn(usize) -> F) {
    let value = |source: &Source<F>| match source {
        Source::Intermediate(slot) => slots[*slot],
        Source::Var(variable) => column(variable.index),
        Source::Constant(value) => *value,
        source => unreachable!("an expression of an APC has no {source:?}"),
    };
    let (result, target) = match rule {
        Rule::Add(x, y, z) => (value(x) + value(y), z),
        Rule::Sub(x, y, z) => (value(x) - value(y), z),
        Rule::Mul(x, y, z) => (value(x) * value(y), z),
        Rule::Neg(x, z) => (-value(x), z),
        Rule::BufferVar(x, z) => (value(x), z),
        Rule::Variable(_) => return,
    };
    if let Source::Intermediate(slot) = target {
        slots[*slot] = result;
    }
}
