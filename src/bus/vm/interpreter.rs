//! Runs stack bytecode on the CPU, reading the words that the device reads.

use p3_field::{Field, PrimeCharacteristicRing, PrimeField32};

use super::{
    Program, Span, ADD, INVERT_OR_ZERO, MUL, MULTIPLICITY_IS_ONE, NEG, PUSH_COLUMN, PUSH_CONSTANT,
    STACK_DEPTH, SUB,
};
use crate::bus::{
    error::BusError,
    kernel::{count, Lookup, OutOfTable},
    table::{Histograms, TableKind},
    trace::TraceView,
    F,
};

/// Evaluates a span; `load` gives the value of a column.
fn evaluate(code: &[u32], span: Span, load: impl Fn(u32) -> F) -> F {
    let mut stack = [F::ZERO; STACK_DEPTH];
    let mut depth = 0;
    let mut words = code[span.start as usize..][..span.length as usize]
        .iter()
        .copied();
    while let Some(operation) = words.next() {
        match operation {
            PUSH_COLUMN | PUSH_CONSTANT => {
                let operand = words.next().unwrap_or(0);
                stack[depth] = if operation == PUSH_COLUMN {
                    load(operand)
                } else {
                    F::from_u32(operand)
                };
                depth += 1;
            }
            NEG => stack[depth - 1] = -stack[depth - 1],
            INVERT_OR_ZERO => {
                stack[depth - 1] = stack[depth - 1].try_inverse().unwrap_or(F::ZERO);
            }
            binary => {
                let right = stack[depth - 1];
                depth -= 1;
                let left = &mut stack[depth - 1];
                match binary {
                    ADD => *left += right,
                    SUB => *left -= right,
                    MUL => *left *= right,
                    _ => unreachable!("the compiler emits no other operation"),
                }
            }
        }
    }
    stack[0]
}

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
        for row in 0..live_rows {
            for lookup in self.lookups(trace, row).flatten() {
                count(&self.tables, lookup, histograms, out_of_table)?;
            }
        }
        Ok(())
    }

    /// The lookups of a row, one for each interaction in their order; `None` where the multiplicity is zero.
    pub(in crate::bus) fn lookups<'a>(
        &'a self,
        trace: TraceView<'a>,
        row: usize,
    ) -> impl Iterator<Item = Option<Lookup>> + 'a {
        let value = move |span| {
            evaluate(&self.code, span, |column| trace.get(column as usize, row)).as_canonical_u32()
        };
        self.interactions
            .iter()
            .zip(&self.indices)
            .zip(&self.kinds)
            .map(move |((interaction, &index), &table)| {
                let multiplicity = if interaction.flags & MULTIPLICITY_IS_ONE != 0 {
                    1
                } else {
                    value(interaction.multiplicity)
                };
                (multiplicity != 0).then(|| Lookup {
                    interaction: index,
                    table,
                    row,
                    arguments: [value(interaction.first), value(interaction.second)],
                    selector: (table == TableKind::BitwiseLookup)
                        .then(|| value(interaction.selector)),
                    multiplicity,
                })
            })
    }
}
