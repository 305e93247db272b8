//! What an APC's executor and its chips share.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use super::{binding::Binding, error::ApcVmError, records::RecordStore};
use crate::{
    apc::{Autoprecompile, VmBuses},
    bus::{BusError, BusKernel, BusProgram, ColumnOrder, CountingInteractions},
    trace::TracePlan,
};

/// An APC with its trace plan, its bus programs and its pending records. Clones are the same thing.
#[derive(Clone)]
pub struct SharedApc {
    inner: Arc<Inner>,
}

struct Inner {
    apc: Arc<Autoprecompile>,
    plan: Arc<TracePlan>,
    binding: Binding,
    interactions: CountingInteractions,
    records: Arc<RecordStore>,
    programs: [OnceLock<Result<Arc<BusProgram>, BusError>>; BusKernel::ALL.len()],
}

impl fmt::Debug for SharedApc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.inner.apc.name)
    }
}

impl SharedApc {
    /// Checks what binds the APC's rows, plans its trace and picks its counting interactions.
    pub fn new(apc: Arc<Autoprecompile>, buses: &VmBuses) -> Result<Self, ApcVmError> {
        let plan = Arc::new(TracePlan::new(&apc)?);
        let binding = Binding::of(&apc, buses).map_err(|source| ApcVmError::Unbound {
            apc: apc.name.clone(),
            source,
        })?;
        let columns = ColumnOrder::new(apc.columns.iter().map(|column| column.poly_id));
        let interactions = CountingInteractions::new(
            &apc.machine.bus_interactions,
            &columns,
            Some(apc.is_valid),
            &buses.tables,
        )
        .map_err(|source| ApcVmError::Bus {
            apc: apc.name.clone(),
            source,
        })?;
        Ok(Self {
            inner: Arc::new(Inner {
                apc,
                plan,
                binding,
                interactions,
                records: Arc::default(),
                programs: Default::default(),
            }),
        })
    }

    /// The APC.
    pub fn apc(&self) -> &Arc<Autoprecompile> {
        &self.inner.apc
    }

    /// What its trace is made of.
    pub fn plan(&self) -> &Arc<TracePlan> {
        &self.inner.plan
    }

    /// What binds its rows to program, order and time.
    pub fn binding(&self) -> Binding {
        self.inner.binding
    }

    /// The records that wait for their trace.
    pub fn records(&self) -> &Arc<RecordStore> {
        &self.inner.records
    }

    /// Its interactions with the periphery tables.
    pub fn interactions(&self) -> &CountingInteractions {
        &self.inner.interactions
    }

    /// Its bus program for a kernel, compiled on first use.
    pub fn program(&self, kernel: BusKernel) -> Result<Arc<BusProgram>, BusError> {
        self.inner.programs[kernel as usize]
            .get_or_init(|| kernel.compile(&self.inner.interactions))
            .clone()
    }
}
