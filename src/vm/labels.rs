//! Names for people: AIRs, their columns, and buses.

use std::collections::BTreeMap;

use openvm_circuit::arch::AirRefWithColumns;
use openvm_stark_backend::{interaction::BusIndex, StarkProtocolConfig};

use super::ApcAir;
use crate::apc::VmBuses;

/// Names for people: AIRs, their columns, and buses. Everything works without: an AIR is then called by its type, a
/// column or a bus by its index.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// Names of AIRs by AIR id, where the proving key's name (the AIR's type) does not tell which one it is.
    pub airs: BTreeMap<usize, String>,
    /// Column names of the common main trace, by AIR id.
    pub columns: BTreeMap<usize, Vec<String>>,
    /// Bus names by bus index.
    pub buses: BTreeMap<BusIndex, String>,
}

impl Labels {
    /// Takes the names off the AIRs, which have to be in the proving key's order: that of `AirInventory::into_airs`.
    pub fn from_airs<SC: StarkProtocolConfig>(
        airs: impl IntoIterator<Item = AirRefWithColumns<SC>>,
    ) -> Self {
        let mut labels = Self::default();
        for (air_id, air) in airs.into_iter().enumerate() {
            if let Some(columns) = air.columns() {
                labels.columns.insert(air_id, columns);
            }
            if let Some(apc_air) = air.as_any().downcast_ref::<ApcAir>() {
                labels.airs.insert(air_id, apc_air.apc().name.clone());
            }
        }
        labels
    }

    /// Names the buses of a VM.
    pub fn with_buses(mut self, buses: &VmBuses) -> Self {
        let tables = &buses.tables;
        let named = [
            ("execution", Some(buses.execution)),
            ("memory", Some(buses.memory)),
            ("program", Some(buses.program)),
            (
                "variable range checker",
                tables.variable_range_checker.map(|table| table.bus_id),
            ),
            (
                "range tuple checker",
                tables.range_tuple_checker.map(|table| table.bus_id),
            ),
            (
                "bitwise lookup",
                tables.bitwise_lookup.map(|table| table.bus_id),
            ),
        ];
        for (name, id) in named {
            if let Some(index) = id.and_then(|id| BusIndex::try_from(id).ok()) {
                self.buses.insert(index, name.to_string());
            }
        }
        self
    }

    pub(super) fn air<'a>(&'a self, air_id: usize, type_name: &'a str) -> &'a str {
        self.airs.get(&air_id).map_or(type_name, String::as_str)
    }

    pub(super) fn bus(&self, bus: BusIndex) -> String {
        match self.buses.get(&bus) {
            Some(name) => format!("{bus} ({name})"),
            None => bus.to_string(),
        }
    }
}
