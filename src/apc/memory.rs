//! OpenVM's memory bus as powdr's memory optimizer sees it: `[address space, pointer, data…, timestamp]`.

use std::{fmt::Display, hash::Hash};

use num_traits::ConstOne;
use powdr_autoprecompiles::memory_optimizer::{
    MemoryBusInteraction, MemoryBusInteractionConversionError, MemoryOp,
};
use powdr_constraint_solver::{
    constraint_system::BusInteraction, grouped_expression::GroupedExpression,
};
use powdr_number::BabyBearField;

/// Half of a memory operation: receiving the previous value, or sending the new one.
#[derive(Clone, Debug)]
pub struct OpenVmMemoryBusInteraction<V> {
    operation: MemoryOp,
    address: [GroupedExpression<BabyBearField, V>; 2],
    data: Vec<GroupedExpression<BabyBearField, V>>,
    timestamp: [GroupedExpression<BabyBearField, V>; 1],
}

impl<V: Ord + Clone + Eq + Display + Hash> MemoryBusInteraction<BabyBearField, V>
    for OpenVmMemoryBusInteraction<V>
{
    type Address = [GroupedExpression<BabyBearField, V>; 2];

    fn try_from_bus_interaction(
        bus_interaction: &BusInteraction<GroupedExpression<BabyBearField, V>>,
        memory_bus_id: u64,
    ) -> Result<Option<Self>, MemoryBusInteractionConversionError> {
        let bus_id = bus_interaction
            .bus_id
            .try_to_number()
            .ok_or(MemoryBusInteractionConversionError)?;
        if bus_id != BabyBearField::from(memory_bus_id) {
            return Ok(None);
        }
        let operation = match bus_interaction.multiplicity.try_to_number() {
            Some(one) if one == BabyBearField::ONE => MemoryOp::SetNew,
            Some(minus_one) if minus_one == -BabyBearField::ONE => MemoryOp::GetPrevious,
            _ => return Err(MemoryBusInteractionConversionError),
        };
        let [address_space, pointer, data @ .., timestamp] = bus_interaction.payload.as_slice()
        else {
            return Err(MemoryBusInteractionConversionError);
        };
        Ok(Some(Self {
            operation,
            address: [address_space.clone(), pointer.clone()],
            data: data.to_vec(),
            timestamp: [timestamp.clone()],
        }))
    }

    fn addr(&self) -> Self::Address {
        self.address.clone()
    }

    fn data(&self) -> &[GroupedExpression<BabyBearField, V>] {
        &self.data
    }

    fn timestamp_limbs(&self) -> &[GroupedExpression<BabyBearField, V>] {
        &self.timestamp
    }

    fn op(&self) -> MemoryOp {
        self.operation
    }
}
