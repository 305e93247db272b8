//! Interactions → records of sums; what does not fit → stack bytecode.

use p3_field::PrimeField32;

use super::{
    sum::Sum, Interaction, Linear, Operand, Place, Product, Program, TablePart, MULTIPLICITY_IS_ONE,
};
use crate::bus::{
    error::BusError,
    interaction::{CountingInteraction, CountingInteractions, Multiplicity},
    table::{BitwiseLookupTable, PeripheryTables, TableKind},
    vm,
};

/// Where an interaction counts: the fields of [`Interaction`] about bins, for constants.
struct Bins {
    first_bin: u32,
    stride: u32,
    bounds: [u32; 2],
}

impl Bins {
    /// Of an interaction that no row of its table fits.
    const NONE: Self = Self {
        first_bin: 0,
        stride: 0,
        bounds: [0; 2],
    };

    fn of(tables: &PeripheryTables, part: TablePart) -> Self {
        match part {
            TablePart::MaxBits(max_bits) => match tables.variable_range_checker {
                Some(table) if max_bits <= table.range_max_bits => Self {
                    first_bin: (1 << max_bits) - 1,
                    stride: 1,
                    bounds: [1 << max_bits, 1],
                },
                _ => Self::NONE,
            },
            TablePart::Selector(selector) => match tables.bitwise_lookup {
                Some(_) if selector < 2 => Self {
                    first_bin: selector * BitwiseLookupTable::HALF_BINS as u32,
                    stride: 1 << BitwiseLookupTable::OPERAND_BITS,
                    bounds: [1 << BitwiseLookupTable::OPERAND_BITS; 2],
                },
                _ => Self::NONE,
            },
            TablePart::Whole => match tables.range_tuple_checker {
                Some(table) => Self {
                    first_bin: 0,
                    stride: table.sizes[1],
                    bounds: table.sizes,
                },
                None => Self::NONE,
            },
        }
    }
}

/// An interaction's operands as sums.
struct Sums {
    part: TablePart,
    first: Sum,
    second: Sum,
    multiplicity: Option<Sum>,
}

impl Sums {
    /// `None` if the interaction is none for a term table.
    fn of(interaction: &CountingInteraction, interactions: &CountingInteractions) -> Option<Self> {
        let sum = |expression| Sum::of(expression, interactions.columns());
        let [first, second] = &interaction.arguments;
        let (part, second) = match (interaction.table, &interaction.selector) {
            (TableKind::VariableRangeChecker, _) => (
                TablePart::MaxBits(sum(second)?.as_constant()?.as_canonical_u32()),
                Sum::default(),
            ),
            (TableKind::RangeTupleChecker, _) => (TablePart::Whole, sum(second)?),
            (TableKind::BitwiseLookup, selector) => (
                TablePart::Selector(sum(selector.as_ref()?)?.as_constant()?.as_canonical_u32()),
                sum(second)?,
            ),
        };
        Some(Self {
            part,
            first: sum(first)?,
            second,
            multiplicity: match &interaction.multiplicity {
                Multiplicity::One => None,
                Multiplicity::Expression(expression) => Some(sum(expression)?),
            },
        })
    }
}

impl Program {
    /// Compiles the interactions.
    ///
    /// # Errors
    /// [`BusError::TooLarge`] for an interaction that is left to [`vm`] and does not fit there either.
    pub fn compile(interactions: &CountingInteractions) -> Result<Self, BusError> {
        let list = interactions.interactions();
        let tables = interactions.tables();
        let mut program = Self {
            interactions: Vec::with_capacity(list.len()),
            linear: Vec::new(),
            products: Vec::new(),
            rest: vm::Program::compile(&interactions.permuted(&[]))?,
            places: Vec::with_capacity(list.len()),
            indices: list.iter().map(|interaction| interaction.index).collect(),
            kinds: list.iter().map(|interaction| interaction.table).collect(),
            tables: *tables,
            width: interactions.columns().width(),
        };
        let mut rest = Vec::new();
        for (position, interaction) in list.iter().enumerate() {
            let Some(sums) = Sums::of(interaction, interactions) else {
                rest.push(position);
                program.places.push(Place::Rest);
                continue;
            };
            program.places.push(Place::Here(sums.part));
            let word = |value: usize| {
                u32::try_from(value).map_err(|_| BusError::TooLarge {
                    interaction: interaction.index,
                    what: "the number of terms",
                    value,
                    limit: u32::MAX as usize,
                })
            };
            let bins = Bins::of(tables, sums.part);
            let (linear_start, product_start) =
                (word(program.linear.len())?, word(program.products.len())?);
            let compiled = Interaction {
                table: interaction.table as u32,
                flags: match sums.multiplicity {
                    None => MULTIPLICITY_IS_ONE,
                    Some(_) => 0,
                },
                first_bin: bins.first_bin,
                stride: bins.stride,
                bounds: bins.bounds,
                linear_start,
                product_start,
                first: program.append(&sums.first),
                second: program.append(&sums.second),
                multiplicity: sums
                    .multiplicity
                    .as_ref()
                    .map_or_else(Operand::default, |sum| program.append(sum)),
                padding: [0; 2],
            };
            program.interactions.push(compiled);
        }
        if !rest.is_empty() {
            program.rest = vm::Program::compile(&interactions.permuted(&rest))?;
        }
        Ok(program)
    }

    /// Appends a sum's terms. Their numbers fit 16 bits: [`super::MAX_TERMS`] is smaller.
    fn append(&mut self, sum: &Sum) -> Operand {
        self.linear
            .extend(sum.linear.iter().map(|&(column, coefficient)| Linear {
                column,
                coefficient: coefficient.as_canonical_u32(),
            }));
        self.products
            .extend(sum.products.iter().map(|&(columns, coefficient)| Product {
                columns,
                coefficient: coefficient.as_canonical_u32(),
                padding: 0,
            }));
        Operand {
            constant: sum.constant.as_canonical_u32(),
            terms: sum.linear.len() as u32 | (sum.products.len() as u32) << 16,
        }
    }
}

const _: () = assert!(super::MAX_TERMS < 1 << 16);

#[cfg(test)]
mod tests {
    use powdr_autoprecompiles::{
        expression::{AlgebraicExpression, AlgebraicReference},
        symbolic_machine::SymbolicBusInteraction,
    };
    use powdr_number::BabyBearField;

    use super::*;
    use crate::bus::{table::VariableRangeCheckerTable, ColumnOrder};

    type Expression = AlgebraicExpression<BabyBearField>;

    fn column(id: u64) -> Expression {
        AlgebraicExpression::Reference(AlgebraicReference {
            name: format!("column_{id}").into(),
            id,
        })
    }

    fn number(value: u32) -> Expression {
        AlgebraicExpression::Number(BabyBearField::from(value))
    }

    fn compile(checks: Vec<[Expression; 2]>) -> Program {
        let tables = PeripheryTables {
            variable_range_checker: Some(VariableRangeCheckerTable {
                bus_id: 3,
                range_max_bits: 17,
            }),
            ..PeripheryTables::default()
        };
        let interactions: Vec<_> = checks
            .into_iter()
            .map(|args| SymbolicBusInteraction {
                id: 3,
                mult: number(1),
                args: args.to_vec(),
            })
            .collect();
        let counting =
            CountingInteractions::new(&interactions, &ColumnOrder::new(0..3), None, &tables)
                .expect("two arguments each");
        Program::compile(&counting).expect("small expressions")
    }

    #[test]
    fn what_is_no_sum_is_left_to_bytecode() {
        let program = compile(vec![
            [column(0) * column(1) - column(2), number(8)],
            [column(0) * column(1) * column(2), number(8)],
            [column(0), column(1)],
            // A width that is constant once it is expanded.
            [column(0), column(1) - column(1) + number(3)],
        ]);
        assert_eq!(program.interactions().len(), 2);
        assert_eq!(program.rest().interactions().len(), 2);
        assert_eq!((program.linear().len(), program.products().len()), (2, 1));
        assert_eq!(program.interactions()[1].bins(), Some([7, 14]));
    }

    #[test]
    fn a_width_that_the_table_lacks_has_no_bins() {
        let program = compile(vec![[column(0), number(17)], [column(0), number(18)]]);
        assert_eq!(
            program.interactions()[0].bins(),
            Some([(1 << 17) - 1, (1 << 18) - 2])
        );
        assert_eq!(program.interactions()[1].bins(), None);
        assert_eq!(program.interactions()[1].bin(0, 0), None);
    }
}
