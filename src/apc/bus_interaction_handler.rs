//! What OpenVM's buses say about the values sent over them, for powdr's constraint solver and optimizer.
//!
//! Nothing here may claim more than the receiving AIR enforces: the optimizer drops whatever a claim implies.

use std::{fmt::Display, hash::Hash};

use num_traits::{ConstOne, ConstZero};
use powdr_autoprecompiles::{
    constraint_optimizer::IsBusStateful,
    range_constraint_optimizer::{
        MakeRangeConstraintsError, RangeConstraintHandler, RangeConstraints,
    },
};
use powdr_constraint_solver::{
    bus_interaction_handler::BusInteractionHandler, constraint_system::BusInteraction,
    grouped_expression::GroupedExpression, range_constraint::RangeConstraint,
};
use powdr_number::{BabyBearField, FieldElement, LargeInt};

use super::air::VmBuses;
use crate::bus::table::TableKind;

type Field = BabyBearField;

/// Bits of a memory cell and of a bitwise operand.
const BYTE_BITS: u32 = 8;

/// OpenVM's buses as powdr's solver sees them.
#[derive(Clone, Debug)]
pub struct OpenVmBusInteractionHandler {
    buses: VmBuses,
}

impl OpenVmBusInteractionHandler {
    /// A handler for these buses.
    pub fn new(buses: VmBuses) -> Self {
        Self { buses }
    }
}

fn bits(count: u32) -> RangeConstraint<Field> {
    RangeConstraint::from_mask((1u64 << count) - 1)
}

fn below(bound: u32) -> RangeConstraint<Field> {
    RangeConstraint::from_range(Field::from(0u32), Field::from(bound - 1))
}

fn known(constraint: &RangeConstraint<Field>) -> Option<u64> {
    constraint
        .try_to_single_value()
        .and_then(|value| value.to_integer().try_into_u64())
}

impl BusInteractionHandler<Field> for OpenVmBusInteractionHandler {
    fn handle_bus_interaction(
        &self,
        bus_interaction: BusInteraction<RangeConstraint<Field>>,
    ) -> BusInteraction<RangeConstraint<Field>> {
        let (Some(bus_id), Some(multiplicity)) = (
            known(&bus_interaction.bus_id),
            bus_interaction.multiplicity.try_to_single_value(),
        ) else {
            return bus_interaction;
        };
        if multiplicity == Field::ZERO {
            return bus_interaction;
        }
        let payload = if bus_id == self.buses.memory {
            self.memory(&bus_interaction.payload, multiplicity)
        } else {
            self.lookup(bus_id, &bus_interaction.payload)
        };
        match payload {
            Some(payload) => BusInteraction {
                payload,
                ..bus_interaction
            },
            None => bus_interaction,
        }
    }
}

impl OpenVmBusInteractionHandler {
    /// Cells received from a byte address space are bytes: whoever sent them has proven it. What is *sent*
    /// gets no claim, so that the sender's own proof stays.
    ///
    /// Register `x0` holds zero: the transpiler emits no instruction that writes it. Nothing rests on that but
    /// completeness: the zero stays in the received message, so that with another value there no proof comes about.
    fn memory(
        &self,
        payload: &[RangeConstraint<Field>],
        multiplicity: Field,
    ) -> Option<Vec<RangeConstraint<Field>>> {
        if multiplicity != -Field::ONE {
            return None;
        }
        let [address_space, pointer, data @ .., timestamp] = payload else {
            return None;
        };
        let space = u32::try_from(known(address_space)?).ok()?;
        if !self.buses.byte_address_spaces.contains(&space) {
            return None;
        }
        let is_zero_register =
            space == openvm_instructions::riscv::RV32_REGISTER_AS && known(pointer) == Some(0);
        let cell = if is_zero_register {
            RangeConstraint::from_value(Field::ZERO)
        } else {
            bits(BYTE_BITS)
        };
        Some(
            [*address_space, *pointer]
                .into_iter()
                .chain(data.iter().map(|_| cell))
                .chain([*timestamp])
                .collect(),
        )
    }

    fn lookup(
        &self,
        bus_id: u64,
        payload: &[RangeConstraint<Field>],
    ) -> Option<Vec<RangeConstraint<Field>>> {
        let tables = &self.buses.tables;
        match (tables.table_of_bus(bus_id)?, payload) {
            (TableKind::VariableRangeChecker, [_, max_bits]) => {
                let most = tables.variable_range_checker?.range_max_bits;
                Some(match known(max_bits) {
                    Some(max_bits_value) if max_bits_value <= u64::from(most) => {
                        vec![bits(max_bits_value as u32), *max_bits]
                    }
                    _ => vec![bits(most), below(most + 1)],
                })
            }
            (TableKind::RangeTupleChecker, [_, _]) => {
                let [first, second] = tables.range_tuple_checker?.sizes;
                Some(vec![below(first), below(second)])
            }
            (TableKind::BitwiseLookup, [x, y, z, selector]) => Some(bitwise(x, y, z, selector)),
            _ => None,
        }
    }
}

/// `x` and `y` are bytes; `z` is zero for selector 0 and `x ^ y` for selector 1.
fn bitwise(
    x: &RangeConstraint<Field>,
    y: &RangeConstraint<Field>,
    z: &RangeConstraint<Field>,
    selector: &RangeConstraint<Field>,
) -> Vec<RangeConstraint<Field>> {
    let byte = || bits(BYTE_BITS);
    let value = |value: u64| RangeConstraint::from_value(Field::from(value));
    match known(selector) {
        Some(0) => vec![byte(), byte(), value(0), *selector],
        Some(1) => {
            let known_byte = |constraint| known(constraint).filter(|value| *value < 256);
            let (kx, ky, kz) = (known_byte(x), known_byte(y), known_byte(z));
            let third = |first: Option<u64>, second: Option<u64>| match (first, second) {
                (Some(first), Some(second)) => value(first ^ second),
                _ => byte(),
            };
            // A bit that neither operand can have, the result cannot have.
            let result = match (kx, ky) {
                (Some(_), Some(_)) => third(kx, ky),
                _ => {
                    let mask = |constraint: &RangeConstraint<Field>| {
                        constraint.mask().try_into_u64().unwrap_or(0xff) & 0xff
                    };
                    RangeConstraint::from_mask(mask(x) | mask(y))
                }
            };
            vec![third(ky, kz), third(kx, kz), result, *selector]
        }
        _ => vec![byte(), byte(), byte(), bits(1)],
    }
}

impl IsBusStateful<Field> for OpenVmBusInteractionHandler {
    fn is_stateful(&self, bus_id: Field) -> bool {
        [self.buses.execution, self.buses.memory]
            .map(Field::from)
            .contains(&bus_id)
    }
}

impl RangeConstraintHandler<Field> for OpenVmBusInteractionHandler {
    fn pure_range_constraints<V: Ord + Clone + Eq + Display + Hash>(
        &self,
        bus_interaction: &BusInteraction<GroupedExpression<Field, V>>,
    ) -> Option<RangeConstraints<Field, V>> {
        let number = |expression: &GroupedExpression<Field, V>| {
            expression
                .try_to_number()
                .and_then(|value| value.to_integer().try_into_u64())
        };
        let tables = &self.buses.tables;
        let table = tables.table_of_bus(number(&bus_interaction.bus_id)?)?;
        match (table, bus_interaction.payload.as_slice()) {
            (TableKind::VariableRangeChecker, [value, max_bits]) => {
                let max_bits = number(max_bits)?;
                let most = tables.variable_range_checker?.range_max_bits;
                (max_bits <= u64::from(most)).then(|| vec![(value.clone(), bits(max_bits as u32))])
            }
            (TableKind::RangeTupleChecker, [v0, v1]) => {
                let bounds = tables.range_tuple_checker?.sizes.map(below);
                // powdr asks for the conjunction of such ranges again, and relies on getting it.
                bounds
                    .iter()
                    .all(|bound| self.range_checker_bits(bound).is_some())
                    .then(|| vec![(v0.clone(), bounds[0]), (v1.clone(), bounds[1])])
            }
            (TableKind::BitwiseLookup, [x, y, z, selector]) => {
                let byte = |expression: &GroupedExpression<Field, V>| {
                    (expression.clone(), bits(BYTE_BITS))
                };
                match (number(x), number(y), number(z), number(selector)?) {
                    (_, _, Some(0), 0) => Some(vec![byte(x), byte(y)]),
                    // x ^ x = 0, x ^ 0 = x and 0 ^ y = y say no more than that the operand is a byte.
                    (_, _, Some(0), 1) if x == y => Some(vec![byte(x)]),
                    (_, Some(0), _, 1) if x == z => Some(vec![byte(x)]),
                    (Some(0), _, _, 1) if y == z => Some(vec![byte(y)]),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn batch_make_range_constraints<V: Ord + Clone + Eq + Display + Hash>(
        &self,
        range_constraints: RangeConstraints<Field, V>,
    ) -> Result<Vec<BusInteraction<GroupedExpression<Field, V>>>, MakeRangeConstraintsError> {
        let number = |value: u64| GroupedExpression::from_number(Field::from(value));
        let interaction = |bus_id: u64, payload| BusInteraction {
            bus_id: number(bus_id),
            multiplicity: number(1),
            payload,
        };
        // Bytes go to the bitwise lookup in pairs, everything else one by one to the variable range checker.
        let bitwise = self.buses.tables.bitwise_lookup;
        let (bytes, others): (Vec<_>, Vec<_>) = range_constraints
            .into_iter()
            .partition(|(_, constraint)| bitwise.is_some() && *constraint == bits(BYTE_BITS));
        let mut interactions = Vec::new();
        if let Some(bitwise) = bitwise {
            interactions.extend(bytes.chunks(2).map(|pair| {
                let first = pair[0].0.clone();
                let second = pair
                    .get(1)
                    .map_or_else(|| number(0), |(second, _)| second.clone());
                interaction(bitwise.bus_id, vec![first, second, number(0), number(0)])
            }));
        }
        for (value, constraint) in others {
            let (bus_id, width) = self.range_checker_bits(&constraint).ok_or_else(|| {
                MakeRangeConstraintsError(format!(
                    "{value} in {constraint}: no table of the VM says exactly that"
                ))
            })?;
            interactions.push(interaction(bus_id, vec![value, number(width.into())]));
        }
        Ok(interactions)
    }
}

impl OpenVmBusInteractionHandler {
    /// The variable range checker's bus, and the `max_bits` with which it says exactly this, if there is one.
    fn range_checker_bits(&self, constraint: &RangeConstraint<Field>) -> Option<(u64, u32)> {
        let checker = self.buses.tables.variable_range_checker?;
        (0..=checker.range_max_bits)
            .find(|&width| *constraint == bits(width))
            .map(|width| (checker.bus_id, width))
    }
}
