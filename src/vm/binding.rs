//! What binds a row of an APC to the program, to execution order and to time: checked on every APC before it becomes
//! an AIR, wherever it came from. `docs/soundness.md` has the argument.

use std::collections::HashSet;

use num_traits::{One, Zero};
use powdr_autoprecompiles::{
    expression::{AlgebraicExpression, AlgebraicReference},
    expression_conversion::algebraic_to_grouped_expression,
    symbolic_machine::SymbolicBusInteraction,
};
use powdr_constraint_solver::grouped_expression::GroupedExpression;
use powdr_number::BabyBearField;
use thiserror::Error;

use crate::{
    apc::{Autoprecompile, VmBuses},
    bus::field::canonical,
};

/// Operands of the program bus after `pc` and `opcode`.
const PROGRAM_BUS_OPERANDS: usize = 7;

type Grouped = GroupedExpression<BabyBearField, AlgebraicReference>;

/// How a row of an APC is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// By how much a row advances the timestamp.
    pub timestamp_advance: u32,
    /// How many interactions of multiplicity zero the AIR needs beside the machine's own, so that a row advances the
    /// timestamp by no more than the number of the AIR's interactions.
    ///
    /// OpenVM excludes a wrap-around of the timestamp by the verifier's bound on the sum of height × number of
    /// interactions over all AIRs, which holds only as long as every AIR keeps to this. An optimized APC need not:
    /// memory accesses that it saves still take their time.
    pub padding_interactions: usize,
}

/// A row of the APC could stand for something else than one call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BindingError {
    /// The column of live rows is not boolean.
    #[error("nothing constrains the column is_valid to zero and one")]
    NotBoolean,
    /// The interactions with the execution bus are not those of one instruction.
    #[error(
        "it should receive one state from the execution bus and send one, with the multiplicity of is_valid, but has \
         {found} interactions with it, {matching} of this form"
    )]
    Execution {
        /// Interactions with the execution bus.
        found: usize,
        /// Those among them with multiplicity ±is_valid.
        matching: usize,
    },
    /// The received pc is not the block's.
    #[error("it receives pc {found} from the execution bus instead of {expected}")]
    StartPc {
        /// The block's first pc.
        expected: u32,
        /// What is received, as an expression.
        found: String,
    },
    /// The timestamp may advance by anything.
    #[error("it advances the timestamp by {found}, which is no constant between 1 and 2^29")]
    Timestamp {
        /// By what, as an expression.
        found: String,
    },
    /// A row that is not live could send or receive.
    #[error(
        "interaction {interaction}, on bus {bus}, has the multiplicity {multiplicity}, which nothing makes vanish on rows \
         with is_valid = 0"
    )]
    Unguarded {
        /// Its position among the machine's interactions.
        interaction: usize,
        /// Its bus.
        bus: u64,
        /// Its multiplicity, as an expression.
        multiplicity: String,
    },
    /// The call is not looked up in the program.
    #[error("it should look [{start_pc}, {opcode}, 0, …] up on the program bus, and nothing else")]
    ProgramLookup {
        /// The block's first pc.
        start_pc: u32,
        /// The APC's opcode.
        opcode: usize,
    },
}

impl Binding {
    /// Checks an APC for a VM with these buses.
    pub fn of(apc: &Autoprecompile, buses: &VmBuses) -> Result<Self, BindingError> {
        let is_valid = is_valid_of(apc).ok_or(BindingError::NotBoolean)?;
        check_program_lookup(apc, buses, &is_valid)?;
        let timestamp_advance = timestamp_advance(apc, buses, &is_valid)?;
        check_guards(apc, &is_valid)?;
        Ok(Self {
            timestamp_advance,
            padding_interactions: (timestamp_advance as usize)
                .saturating_sub(apc.machine.bus_interactions.len()),
        })
    }
}

fn number(value: u64) -> Grouped {
    Grouped::from_number(BabyBearField::from(value))
}

fn grouped(expression: &AlgebraicExpression<BabyBearField>) -> Grouped {
    algebraic_to_grouped_expression(expression)
}

/// The column `is_valid`, if a constraint makes it boolean.
fn is_valid_of(apc: &Autoprecompile) -> Option<Grouped> {
    let one = BabyBearField::one();
    apc.machine.constraints.iter().find_map(|constraint| {
        let expression = grouped(&constraint.expr);
        let reference = expression
            .referenced_unknown_variables()
            .find(|reference| reference.id == apc.is_valid)?;
        let column = Grouped::from_unknown_variable(reference.clone());
        let boolean = column.clone() * (column.clone() - Grouped::from_number(one));
        (expression == boolean).then_some(column)
    })
}

/// Checks that no row with `is_valid = 0` sends or receives: with zero for `is_valid`, every multiplicity is zero
/// identically, or is, up to its sign, what some constraint says is zero (powdr's `(1 - is_valid) * multiplicity`).
fn check_guards(apc: &Autoprecompile, is_valid: &Grouped) -> Result<(), BindingError> {
    let Some(column) = is_valid.try_to_simple_unknown() else {
        return Err(BindingError::NotBoolean);
    };
    let on_padding = |expression: &AlgebraicExpression<BabyBearField>| {
        let mut expression = grouped(expression);
        expression.substitute_simple(&column, BabyBearField::zero());
        expression
    };
    let constraints = apc.machine.constraints.iter();
    let vanishing: HashSet<Grouped> = constraints
        .map(|constraint| on_padding(&constraint.expr))
        .collect();
    for (index, interaction) in apc.machine.bus_interactions.iter().enumerate() {
        let multiplicity = on_padding(&interaction.mult);
        if !multiplicity.is_zero()
            && !vanishing.contains(&multiplicity)
            && !vanishing.contains(&-multiplicity)
        {
            return Err(BindingError::Unguarded {
                interaction: index,
                bus: interaction.id,
                multiplicity: interaction.mult.to_string(),
            });
        }
    }
    Ok(())
}

fn interactions_on(
    apc: &Autoprecompile,
    bus: u64,
) -> impl Iterator<Item = &SymbolicBusInteraction<BabyBearField>> {
    apc.machine
        .bus_interactions
        .iter()
        .filter(move |interaction| interaction.id == bus)
}

fn check_program_lookup(
    apc: &Autoprecompile,
    buses: &VmBuses,
    is_valid: &Grouped,
) -> Result<(), BindingError> {
    let wanted = [u64::from(apc.start_pc), apc.opcode as u64]
        .into_iter()
        .chain([0; PROGRAM_BUS_OPERANDS])
        .map(number)
        .collect::<Vec<_>>();
    let mut lookups = interactions_on(apc, buses.program);
    let right = lookups.next().is_some_and(|lookup| {
        grouped(&lookup.mult) == *is_valid
            && lookup.args.iter().map(grouped).collect::<Vec<_>>() == wanted
    });
    if right && lookups.next().is_none() {
        Ok(())
    } else {
        Err(BindingError::ProgramLookup {
            start_pc: apc.start_pc,
            opcode: apc.opcode,
        })
    }
}

/// Checks the pair of interactions with the execution bus, `[pc, timestamp]` each.
fn timestamp_advance(
    apc: &Autoprecompile,
    buses: &VmBuses,
    is_valid: &Grouped,
) -> Result<u32, BindingError> {
    let with_multiplicity = |multiplicity: &Grouped| {
        interactions_on(apc, buses.execution)
            .filter(|interaction| grouped(&interaction.mult) == *multiplicity)
            .map(|interaction| interaction.args.iter().map(grouped).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    let receives = with_multiplicity(&-is_valid.clone());
    let sends = with_multiplicity(is_valid);
    let found = interactions_on(apc, buses.execution).count();
    let ([receive], [send], 2) = (receives.as_slice(), sends.as_slice(), found) else {
        return Err(BindingError::Execution {
            found,
            matching: receives.len() + sends.len(),
        });
    };
    let ([from_pc, from_timestamp], [_, to_timestamp]) = (receive.as_slice(), send.as_slice())
    else {
        return Err(BindingError::Execution { found, matching: 0 });
    };
    if *from_pc != number(apc.start_pc.into()) {
        return Err(BindingError::StartPc {
            expected: apc.start_pc,
            found: from_pc.to_string(),
        });
    }
    let advance = to_timestamp.clone() - from_timestamp.clone();
    advance
        .try_to_number()
        .map(canonical)
        .filter(|advance| (1..1 << 29).contains(advance))
        .ok_or_else(|| BindingError::Timestamp {
            found: advance.to_string(),
        })
}

#[cfg(test)]
mod tests {
    use powdr_autoprecompiles::{powdr::make_bool, symbolic_machine::SymbolicMachine};

    use super::*;
    use crate::{apc::Column, bus::PeripheryTables};

    const IS_VALID: u64 = 1;

    fn buses() -> VmBuses {
        VmBuses {
            execution: 0,
            memory: 1,
            program: 2,
            tables: PeripheryTables {
                variable_range_checker: None,
                range_tuple_checker: None,
                bitwise_lookup: None,
            },
            byte_address_spaces: vec![1, 2],
        }
    }

    fn column(id: u64) -> AlgebraicExpression<BabyBearField> {
        AlgebraicExpression::Reference(AlgebraicReference {
            name: format!("column_{id}").into(),
            id,
        })
    }

    fn constant(value: u64) -> AlgebraicExpression<BabyBearField> {
        AlgebraicExpression::Number(BabyBearField::from(value))
    }

    fn interaction(
        id: u64,
        mult: AlgebraicExpression<BabyBearField>,
        args: Vec<AlgebraicExpression<BabyBearField>>,
    ) -> SymbolicBusInteraction<BabyBearField> {
        SymbolicBusInteraction { id, mult, args }
    }

    /// From pc 100 to pc 108 in 7 ticks; no memory access left.
    fn apc() -> Autoprecompile {
        let timestamp = || column(0);
        Autoprecompile {
            name: "test".to_string(),
            opcode: 5,
            start_pc: 100,
            instructions: vec![],
            machine: SymbolicMachine {
                constraints: vec![make_bool(column(IS_VALID)).into()],
                bus_interactions: vec![
                    interaction(0, -column(IS_VALID), vec![constant(100), timestamp()]),
                    interaction(
                        0,
                        column(IS_VALID),
                        vec![constant(108), timestamp() + constant(7)],
                    ),
                    interaction(
                        2,
                        column(IS_VALID),
                        [100, 5, 0, 0, 0, 0, 0, 0, 0].map(constant).to_vec(),
                    ),
                ],
                derived_columns: vec![],
            },
            columns: (0..2)
                .map(|poly_id| Column {
                    poly_id,
                    name: format!("column_{poly_id}"),
                })
                .collect(),
            is_valid: IS_VALID,
            substitutions: vec![],
            original_airs: vec![],
            original_width: 0,
            profile_executions: 0,
        }
    }

    #[test]
    fn a_bound_apc_is_padded_to_its_time() {
        assert_eq!(
            Binding::of(&apc(), &buses()),
            Ok(Binding {
                timestamp_advance: 7,
                padding_interactions: 4,
            })
        );
        let mut talkative = apc();
        talkative.machine.bus_interactions.extend(
            (0..10).map(|_| interaction(3, column(IS_VALID), vec![column(0), constant(17)])),
        );
        assert_eq!(
            Binding::of(&talkative, &buses()).map(|binding| binding.padding_interactions),
            Ok(0)
        );
    }

    #[test]
    fn multiplicities_that_vanish_on_padding_are_accepted() {
        // As powdr guards them: by the factor is_valid, or by a constraint.
        let one = || constant(1);
        let flag = || column(2) + constant(3) * column(3);
        let mut guarded = apc();
        for multiplicity in [
            column(IS_VALID) * (one() + column(2)),
            column(IS_VALID) * column(2) * column(3),
            constant(0),
            flag(),
            -flag(),
            column(2) * column(3),
        ] {
            let argument = vec![column(0), constant(17)];
            let interaction = interaction(3, multiplicity, argument);
            guarded.machine.bus_interactions.push(interaction);
        }
        for vanishing in [flag(), column(2) * column(3)] {
            let constraint = (one() - column(IS_VALID)) * vanishing;
            guarded.machine.constraints.push(constraint.into());
        }
        assert!(Binding::of(&guarded, &buses()).is_ok());

        // Without the constraints, or with others, the first that needs one is refused.
        for other in [
            None,
            Some((one() - column(IS_VALID)) * column(2)),
            // Holds on live rows alone.
            Some(column(IS_VALID) * flag()),
        ] {
            let mut unguarded = guarded.clone();
            unguarded.machine.constraints.truncate(1);
            let constraints = &mut unguarded.machine.constraints;
            constraints.extend(other.map(Into::into));
            let error = Binding::of(&unguarded, &buses()).expect_err("nothing guards the flag");
            assert!(
                matches!(
                    error,
                    BindingError::Unguarded {
                        interaction: 6,
                        bus: 3,
                        ..
                    }
                ),
                "{error}"
            );
        }
    }

    #[test]
    fn an_unbound_apc_is_refused() {
        type Change = fn(&mut Autoprecompile);
        type IsExpected = fn(&BindingError) -> bool;
        let changes: [(Change, IsExpected); 10] = [
            (
                |apc| apc.machine.constraints.clear(),
                |error| *error == BindingError::NotBoolean,
            ),
            (
                |apc| apc.machine.constraints[0] = (column(1) * (column(1) - constant(2))).into(),
                |error| *error == BindingError::NotBoolean,
            ),
            (
                |apc| drop(apc.machine.bus_interactions.remove(0)),
                |error| matches!(error, BindingError::Execution { found: 1, .. }),
            ),
            (
                |apc| {
                    let receive = apc.machine.bus_interactions[0].clone();
                    apc.machine.bus_interactions.push(receive);
                },
                |error| matches!(error, BindingError::Execution { found: 3, .. }),
            ),
            (
                |apc| apc.machine.bus_interactions[1].mult = constant(1),
                |error| matches!(error, BindingError::Execution { matching: 1, .. }),
            ),
            (
                |apc| apc.machine.bus_interactions[0].args[0] = column(0),
                |error| matches!(error, BindingError::StartPc { expected: 100, .. }),
            ),
            (
                |apc| apc.machine.bus_interactions[1].args[1] = column(1) + constant(7),
                |error| matches!(error, BindingError::Timestamp { .. }),
            ),
            (
                |apc| apc.machine.bus_interactions[1].args[1] = column(0),
                |error| matches!(error, BindingError::Timestamp { .. }),
            ),
            (
                |apc| drop(apc.machine.bus_interactions.pop()),
                |error| matches!(error, BindingError::ProgramLookup { .. }),
            ),
            (
                |apc| apc.machine.bus_interactions[2].args[1] = constant(6),
                |error| matches!(error, BindingError::ProgramLookup { .. }),
            ),
        ];
        for (index, (change, expected)) in changes.into_iter().enumerate() {
            let mut apc = apc();
            change(&mut apc);
            let error = Binding::of(&apc, &buses()).expect_err("the change unbinds the row");
            assert!(expected(&error), "change {index}: {error}");
        }
    }
}
