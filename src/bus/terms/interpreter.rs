//! Runs term tables on the CPU, reading the records that the device reads.

use p3_field::{PrimeCharacteristicRing, PrimeField32};

use super::{
    Interaction, Linear, Operand, Place, Product, Program, TablePart, MULTIPLICITY_IS_ONE,
};
use crate::bus::{
    error::BusError,
    kernel::{count, OutOfTable},
    table::Histograms,
    trace::TraceView,
    F,
};

/// The terms of an interaction that are still to be read: each operand takes its own from the front.
struct Terms<'a> {
    linear: &'a [Linear],
    products: &'a [Product],
}

impl Terms<'_> {
    /// The canonical value of the next operand; `load` gives the value of a column.
    fn evaluate(&mut self, operand: Operand, load: impl Fn(u32) -> F) -> u32 {
        let (linear, linear_left) = self.linear.split_at(operand.linear());
        let (products, products_left) = self.products.split_at(operand.products());
        (self.linear, self.products) = (linear_left, products_left);
        let linear = linear
            .iter()
            .map(|term| F::from_u32(term.coefficient) * load(term.column));
        let products = products.iter().map(|term| {
            F::from_u32(term.coefficient) * load(term.columns[0]) * load(term.columns[1])
        });
        (F::from_u32(operand.constant) + linear.sum::<F>() + products.sum::<F>()).as_canonical_u32()
    }
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
            let mut here = self.interactions.iter();
            let mut rest = self.rest.lookups(trace, row);
            for (position, place) in self.places.iter().enumerate() {
                match place {
                    Place::Rest => {
                        if let Some(lookup) = rest.next().flatten() {
                            count(&self.tables, lookup, histograms, out_of_table)?;
                        }
                    }
                    Place::Here(part) => {
                        if let Some(interaction) = here.next() {
                            self.count(
                                interaction,
                                position,
                                *part,
                                (trace, row),
                                histograms,
                                out_of_table,
                            )?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn count(
        &self,
        interaction: &Interaction,
        position: usize,
        part: TablePart,
        (trace, row): (TraceView<'_>, usize),
        histograms: &mut Histograms,
        out_of_table: OutOfTable,
    ) -> Result<(), BusError> {
        let load = |column: u32| trace.get(column as usize, row);
        let mut terms = Terms {
            linear: &self.linear[interaction.linear_start as usize..],
            products: &self.products[interaction.product_start as usize..],
        };
        let first = terms.evaluate(interaction.first, load);
        let second = terms.evaluate(interaction.second, load);
        let multiplicity = if interaction.flags & MULTIPLICITY_IS_ONE != 0 {
            1
        } else {
            terms.evaluate(interaction.multiplicity, load)
        };
        if multiplicity == 0 {
            return Ok(());
        }
        let table = self.kinds[position];
        match interaction.bin(first, second) {
            Some(bin) => histograms.add(table, bin, multiplicity),
            None if out_of_table == OutOfTable::Report => {
                return Err(BusError::OutOfTable {
                    interaction: self.indices[position],
                    table,
                    row,
                    arguments: match part {
                        TablePart::MaxBits(max_bits) => vec![first, max_bits],
                        TablePart::Selector(selector) => vec![first, second, selector],
                        TablePart::Whole => vec![first, second],
                    },
                    multiplicity,
                })
            }
            None => {}
        }
        Ok(())
    }
}
