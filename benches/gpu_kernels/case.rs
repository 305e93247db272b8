//! A program with a trace and what it has to count, all made up.

use eyre::Result;
use openvm_apc::bus::{table::TableKind, ColumnOrder, CountingInteractions, Histograms, F};
use p3_field::PrimeCharacteristicRing;
use powdr_autoprecompiles::{
    expression::{AlgebraicExpression, AlgebraicReference},
    symbolic_machine::SymbolicBusInteraction,
};
use powdr_number::BabyBearField;

use super::{files::HostTrace, programs::TABLES};

/// Column of the flag that is one on live rows.
pub const IS_VALID: u64 = 0;

/// A program with a trace and the histograms that it must give.
pub struct Case {
    /// The bus interactions.
    pub interactions: Vec<SymbolicBusInteraction<BabyBearField>>,
    /// The trace; column ids are column indices.
    pub trace: HostTrace,
    /// What its live rows have to count.
    pub expected: Histograms,
}

impl Case {
    /// The interactions that count.
    pub fn counting_interactions(&self) -> Result<CountingInteractions> {
        Ok(CountingInteractions::new(
            &self.interactions,
            &ColumnOrder::new(0..self.trace.width as u64),
            Some(IS_VALID),
            &TABLES,
        )?)
    }
}

/// A column.
pub fn reference(column: u64) -> AlgebraicExpression<BabyBearField> {
    AlgebraicExpression::Reference(AlgebraicReference {
        name: format!("column_{column}").into(),
        id: column,
    })
}

/// A constant.
pub fn constant(value: u32) -> AlgebraicExpression<BabyBearField> {
    AlgebraicExpression::Number(BabyBearField::from(value))
}

/// The bus of a table in OpenVM's default configuration.
pub fn bus_of(table: TableKind) -> u64 {
    TABLES
        .bus_of_table(table)
        .expect("the default configuration has every table")
}

/// Makes a case out of chosen lookups.
pub struct CaseBuilder {
    columns: Vec<Vec<F>>,
    interactions: Vec<SymbolicBusInteraction<BabyBearField>>,
    expected: Histograms,
    height: usize,
    live_rows: usize,
}

impl CaseBuilder {
    /// A trace of `height` rows with `live_rows` live ones, and no column but [`IS_VALID`].
    pub fn new(height: usize, live_rows: usize) -> Self {
        let mut builder = Self {
            columns: vec![],
            interactions: vec![],
            expected: Histograms::zeros(&TABLES),
            height,
            live_rows,
        };
        builder.column(&|_| 1);
        builder
    }

    /// Adds a column with these values on live rows, and zeros on the others.
    pub fn column(&mut self, value: &dyn Fn(usize) -> u32) -> AlgebraicExpression<BabyBearField> {
        let values = (0..self.height).map(|row| match row < self.live_rows {
            true => F::from_u32(value(row)),
            false => F::ZERO,
        });
        self.columns.push(values.collect());
        reference(self.columns.len() as u64 - 1)
    }

    /// Adds a lookup of `arguments` on every live row, which have the values `[value, max_bits, _]`, `[v0, v1, _]` or
    /// `[x, y, selector]`.
    pub fn lookup(
        &mut self,
        table: TableKind,
        arguments: [AlgebraicExpression<BabyBearField>; 3],
        values: &dyn Fn(usize) -> [u32; 3],
    ) {
        for row in 0..self.live_rows {
            let [first, second, third] = values(row);
            let bin = TABLES
                .bin(table, [first, second], third)
                .expect("values are chosen within the table");
            self.expected.add(table, bin, 1);
        }
        let [first, second, selector] = arguments;
        self.interactions.push(SymbolicBusInteraction {
            id: bus_of(table),
            // Either is known to be one, and both have to be taken for it.
            mult: match self.interactions.len() % 2 {
                0 => reference(IS_VALID),
                _ => constant(1),
            },
            args: match table {
                // The third argument, x ^ y, is never needed.
                TableKind::BitwiseLookup => vec![first, second, constant(0), selector],
                _ => vec![first, second],
            },
        });
    }

    /// The case.
    pub fn build(self) -> Case {
        Case {
            interactions: self.interactions,
            trace: HostTrace {
                width: self.columns.len(),
                values: self.columns.concat(),
                height: self.height,
                live_rows: self.live_rows,
            },
            expected: self.expected,
        }
    }
}
