//! The APC chips on the GPU, and the builder of a VM that has them (feature `cuda`).

use std::{rc::Rc, sync::Arc};

use openvm_circuit::{
    arch::{
        AirInventory, ChipInventory, ChipInventoryError, DenseRecordArena, VmBuilder,
        VmChipComplex, VmConfig, VmExecutionConfig, VmProverExtension,
    },
    system::cuda::extensions::get_inventory_range_checker,
};
use openvm_circuit_primitives::{
    bitwise_op_lookup::BitwiseOperationLookupChipGPU, range_tuple::RangeTupleCheckerChipGPU,
    var_range::VariableRangeCheckerChipGPU, Chip,
};
use openvm_cuda_backend::{base::DeviceMatrix, BabyBearPoseidon2GpuEngine, GpuBackend};
use openvm_stark_backend::{prover::AirProvingContext, EngineDeviceCtx};
use openvm_stark_sdk::config::baby_bear_poseidon2::BabyBearPoseidon2Config;

use super::{
    air::ApcAir, chip::OriginalChips, config::ApcVmConfig, extension::ApcExtension,
    shared::SharedApc,
};
use crate::{
    bus::{BusKernel, F},
    gpu::{BusScratch, GpuSettings, PeripheryCounts},
    trace::{
        gpu::{wait_if_profiling, DeviceApc},
        substage::Substage,
        TraceError,
    },
};

type SC = BabyBearPoseidon2Config;
type Engine = BabyBearPoseidon2GpuEngine;
type GpuInventory = ChipInventory<SC, DenseRecordArena, GpuBackend>;

/// The periphery chips that the APCs' interactions are counted into.
#[derive(Clone)]
pub struct GpuPeripheryChips {
    variable_range_checker: Arc<VariableRangeCheckerChipGPU>,
    range_tuple_checker: Option<Arc<RangeTupleCheckerChipGPU<2>>>,
    bitwise_lookup: Option<Arc<BitwiseOperationLookupChipGPU<8>>>,
}

impl GpuPeripheryChips {
    /// The inventory's own.
    fn of(inventory: &mut GpuInventory) -> Self {
        Self {
            variable_range_checker: get_inventory_range_checker(inventory),
            range_tuple_checker: inventory
                .find_chip::<Arc<RangeTupleCheckerChipGPU<2>>>()
                .next()
                .cloned(),
            bitwise_lookup: inventory
                .find_chip::<Arc<BitwiseOperationLookupChipGPU<8>>>()
                .next()
                .cloned(),
        }
    }

    /// Where they count, for a kernel.
    fn counts(&self) -> PeripheryCounts {
        let mut counts =
            PeripheryCounts::none().with_variable_range_checker(&self.variable_range_checker.count);
        if let Some(chip) = &self.range_tuple_checker {
            counts = counts.with_range_tuple_checker(&chip.count, chip.sizes);
        }
        if let Some(chip) = &self.bitwise_lookup {
            counts = counts.with_bitwise_lookup(&chip.count);
        }
        counts
    }
}

/// The chip of one APC on the GPU.
pub struct ApcGpuChip {
    shared: SharedApc,
    kernel: BusKernel,
    originals: Rc<OriginalChips<DenseRecordArena, GpuBackend>>,
    periphery: GpuPeripheryChips,
    device_apc: DeviceApc,
}

impl ApcGpuChip {
    /// The trace of the recorded calls; without memory if there are none.
    fn generate(&self, records: &DenseRecordArena) -> Result<DeviceMatrix<F>, TraceError> {
        let (apc, plan) = (self.shared.apc(), self.shared.plan());
        let Some(mut recorded) = self.originals.recorded_calls(&self.shared, records)? else {
            return Ok(DeviceMatrix::dummy());
        };
        let dummy_traces = self
            .device_apc
            .substage(Substage::DummyTraceGen, &apc.name, || {
                recorded.dummy_traces(&self.shared, &self.originals)
            })?;
        let calls = recorded.calls;
        let trace =
            self.device_apc
                .generate_trace(apc, plan, &dummy_traces, &recorded.names, calls)?;
        // Freed in stream order, before the bus kernel asks for scratch.
        drop(dummy_traces);
        self.device_apc.apply_bus(
            apc,
            || self.shared.program(self.kernel),
            &trace,
            calls,
            self.periphery.counts(),
        )?;
        Ok(trace)
    }
}

impl Chip<DenseRecordArena, GpuBackend> for ApcGpuChip {
    fn generate_proving_ctx(&self, records: DenseRecordArena) -> AirProvingContext<GpuBackend> {
        match self.generate(&records) {
            Ok(trace) => AirProvingContext::simple_no_pis(trace),
            // OpenVM's chips cannot fail. The payload is the typed error, for whoever catches it.
            Err(error) => std::panic::panic_any(error),
        }
    }
}

/// Adds the APCs' chips for the GPU backend.
struct ApcGpuProverExtension {
    originals: Rc<OriginalChips<DenseRecordArena, GpuBackend>>,
    settings: GpuSettings,
}

impl<VC> VmProverExtension<Engine, DenseRecordArena, ApcExtension<'_, VC>> for ApcGpuProverExtension
where
    VC: VmExecutionConfig<F> + openvm_circuit::arch::VmCircuitConfig<SC>,
    VC::Executor: 'static,
{
    fn extend_prover(
        &self,
        extension: &ApcExtension<'_, VC>,
        inventory: &mut GpuInventory,
    ) -> Result<(), ChipInventoryError> {
        let periphery = GpuPeripheryChips::of(inventory);
        let scratch = Rc::<BusScratch>::default();
        for shared in extension.0.apcs() {
            inventory.next_air::<ApcAir>()?;
            inventory.add_executor_chip(ApcGpuChip {
                shared: shared.clone(),
                kernel: extension.0.bus_kernel(),
                originals: self.originals.clone(),
                periphery: periphery.clone(),
                device_apc: DeviceApc::new(
                    self.settings,
                    scratch.clone(),
                    periphery.variable_range_checker.device_ctx.clone(),
                ),
            });
        }
        Ok(())
    }
}

/// Builds a GPU VM with APCs out of the GPU builder of the wrapped VM.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApcVmGpuBuilder<VB> {
    /// The builder of the wrapped VM.
    pub inner: VB,
    /// What may be set about the GPU.
    pub settings: GpuSettings,
}

impl<VB> VmBuilder<Engine> for ApcVmGpuBuilder<VB>
where
    VB: VmBuilder<Engine, RecordArena = DenseRecordArena>,
    VB::VmConfig: 'static,
    <VB::VmConfig as VmExecutionConfig<F>>::Executor: 'static,
    ApcVmConfig<VB::VmConfig>: VmConfig<SC>,
{
    type VmConfig = ApcVmConfig<VB::VmConfig>;
    type RecordArena = DenseRecordArena;
    type SystemChipInventory = VB::SystemChipInventory;

    fn create_chip_complex(
        &self,
        config: &Self::VmConfig,
        circuit: AirInventory<SC>,
        device_ctx: &EngineDeviceCtx<Engine>,
    ) -> Result<
        VmChipComplex<SC, Self::RecordArena, GpuBackend, Self::SystemChipInventory>,
        ChipInventoryError,
    > {
        let mut complex = self
            .inner
            .create_chip_complex(config.inner(), circuit, device_ctx)?;
        if config.apcs().is_empty() {
            return Ok(complex);
        }
        // The same chips once more, with periphery chips of their own: what those count is thrown away.
        let originals = Substage::DummyChipInventory.run("all", || {
            let airs = openvm_circuit::arch::VmCircuitConfig::<SC>::create_airs(config.inner())
                .map_err(|error| ChipInventoryError::AirNotFound {
                    name: error.to_string(),
                })?;
            let complex = self
                .inner
                .create_chip_complex(config.inner(), airs, device_ctx)?;
            if let Err(error) = wait_if_profiling(device_ctx) {
                // Not an error of inventories, and whatever uses the device next meets it again.
                tracing::warn!("{error}");
            }
            Ok::<_, ChipInventoryError>(complex.inventory)
        })?;
        ApcGpuProverExtension {
            originals: Rc::new(OriginalChips::new(originals)),
            settings: self.settings,
        }
        .extend_prover(&ApcExtension(config), &mut complex.inventory)?;
        Ok(complex)
    }
}
