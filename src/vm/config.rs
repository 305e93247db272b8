//! The configuration of a VM with APCs: any VM configuration, and the APCs that extend it.

use std::sync::Arc;

use openvm_circuit::arch::{
    instructions::VmOpcode, AirInventory, AirInventoryError, ExecutorInventory,
    ExecutorInventoryError, InitFileGenerator, SystemConfig, VmCircuitConfig, VmExecutionConfig,
};
use openvm_stark_backend::p3_air::BaseAir;
use openvm_stark_sdk::config::baby_bear_poseidon2::BabyBearPoseidon2Config;
use serde::{Deserialize, Serialize};

use super::{
    error::ApcVmError, executor::ApcVmExecutor, extension::ApcExtension, shared::SharedApc,
};
use crate::{
    apc::{ApcInstruction, Autoprecompile, VmBuses},
    bus::{BusKernel, F},
};

/// A VM configuration `VC`, extended by APCs.
///
/// Clones share the compiled programs and the pending records; that is safe, also for VMs used side by side.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(
    try_from = "StoredConfig<VC>",
    into = "StoredConfig<VC>",
    bound(
        serialize = "VC: Clone + Serialize",
        deserialize = "VC: Deserialize<'de> + VmExecutionConfig<F> + VmCircuitConfig<BabyBearPoseidon2Config>"
    )
)]
pub struct ApcVmConfig<VC> {
    inner: VC,
    buses: VmBuses,
    bus_kernel: BusKernel,
    apcs: Vec<SharedApc>,
    original_widths: Arc<[usize]>,
}

/// What of an [`ApcVmConfig`] is stored.
#[derive(Serialize, Deserialize)]
struct StoredConfig<VC> {
    inner: VC,
    buses: VmBuses,
    bus_kernel: BusKernel,
    apcs: Vec<Autoprecompile>,
}

impl<VC> TryFrom<StoredConfig<VC>> for ApcVmConfig<VC>
where
    VC: VmExecutionConfig<F> + VmCircuitConfig<BabyBearPoseidon2Config>,
{
    type Error = ApcVmError;

    fn try_from(stored: StoredConfig<VC>) -> Result<Self, ApcVmError> {
        Self::new(stored.inner, stored.buses, stored.apcs, stored.bus_kernel)
    }
}

impl<VC> From<ApcVmConfig<VC>> for StoredConfig<VC> {
    fn from(config: ApcVmConfig<VC>) -> Self {
        Self {
            inner: config.inner,
            buses: config.buses,
            bus_kernel: config.bus_kernel,
            apcs: config
                .apcs
                .iter()
                .map(|apc| (**apc.apc()).clone())
                .collect(),
        }
    }
}

impl<VC> ApcVmConfig<VC> {
    /// Extends `inner` by APCs that were built from its AIRs, whose buses are `buses`.
    ///
    /// # Errors
    /// [`ApcVmError`]: `inner` has no AIRs or executors, or an APC is inconsistent, not sound, or of another VM.
    pub fn new(
        inner: VC,
        buses: VmBuses,
        apcs: Vec<Autoprecompile>,
        bus_kernel: BusKernel,
    ) -> Result<Self, ApcVmError>
    where
        VC: VmExecutionConfig<F> + VmCircuitConfig<BabyBearPoseidon2Config>,
    {
        let original_widths: Arc<[usize]> = inner
            .create_airs()?
            .ext_airs()
            .iter()
            .map(|air| BaseAir::<F>::width(&**air))
            .collect();
        let executors = inner.create_executors()?.instruction_lookup;
        for apc in &apcs {
            let unknown_opcode = |instruction: &&ApcInstruction| {
                !executors.contains_key(&VmOpcode::from_usize(instruction.opcode))
            };
            if let Some(instruction) = apc.instructions.iter().find(unknown_opcode) {
                return Err(ApcVmError::UnknownInstruction {
                    apc: apc.name.clone(),
                    instruction: instruction.to_string(),
                });
            }
            let unknown = |air: &&usize| **air >= original_widths.len();
            if let Some(&air) = apc.original_airs.iter().find(unknown) {
                return Err(ApcVmError::OtherVm {
                    apc: apc.name.clone(),
                    air,
                    airs: original_widths.len(),
                });
            }
        }
        Ok(Self {
            original_widths,
            apcs: apcs
                .into_iter()
                .map(|apc| SharedApc::new(Arc::new(apc), &buses))
                .collect::<Result<_, _>>()?,
            inner,
            buses,
            bus_kernel,
        })
    }

    /// The configuration that is extended.
    pub fn inner(&self) -> &VC {
        &self.inner
    }

    /// The APCs, with what their executors and chips share.
    pub fn apcs(&self) -> &[SharedApc] {
        &self.apcs
    }

    /// Main widths of the wrapped VM's extension AIRs, in insertion order: what [`crate::apc::AirIndex`] counts.
    pub(super) fn original_widths(&self) -> &[usize] {
        &self.original_widths
    }

    /// The kernel that applies the APCs' bus interactions.
    pub fn bus_kernel(&self) -> BusKernel {
        self.bus_kernel
    }

    /// The same with another kernel. Compiled programs of either stay shared.
    pub fn with_bus_kernel(mut self, bus_kernel: BusKernel) -> Self {
        self.bus_kernel = bus_kernel;
        self
    }

    /// The buses of the wrapped VM.
    pub fn buses(&self) -> &VmBuses {
        &self.buses
    }
}

impl<VC> VmExecutionConfig<F> for ApcVmConfig<VC>
where
    VC: VmExecutionConfig<F> + VmCircuitConfig<BabyBearPoseidon2Config>,
    VC::Executor: 'static,
{
    type Executor = ApcVmExecutor<VC::Executor>;

    fn create_executors(
        &self,
    ) -> Result<ExecutorInventory<Self::Executor>, ExecutorInventoryError> {
        self.inner
            .create_executors()?
            .extend::<F, _, _>(&ApcExtension(self))
    }
}

impl<VC: VmCircuitConfig<BabyBearPoseidon2Config>> VmCircuitConfig<BabyBearPoseidon2Config>
    for ApcVmConfig<VC>
where
    VC: VmExecutionConfig<F>,
    VC::Executor: 'static,
{
    fn create_airs(&self) -> Result<AirInventory<BabyBearPoseidon2Config>, AirInventoryError> {
        use openvm_circuit::arch::VmCircuitExtension;

        let mut inventory = self.inner.create_airs()?;
        inventory.start_new_extension();
        ApcExtension(self).extend_circuit(&mut inventory)?;
        Ok(inventory)
    }
}

impl<VC: AsRef<SystemConfig>> AsRef<SystemConfig> for ApcVmConfig<VC> {
    fn as_ref(&self) -> &SystemConfig {
        self.inner.as_ref()
    }
}

impl<VC: AsMut<SystemConfig>> AsMut<SystemConfig> for ApcVmConfig<VC> {
    fn as_mut(&mut self) -> &mut SystemConfig {
        self.inner.as_mut()
    }
}

impl<VC: InitFileGenerator> InitFileGenerator for ApcVmConfig<VC> {
    fn generate_init_file_contents(&self) -> Option<String> {
        self.inner.generate_init_file_contents()
    }
}
