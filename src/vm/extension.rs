//! APCs as an OpenVM extension: one executor, one AIR and one chip per APC.

use std::{rc::Rc, sync::Arc};

use openvm_circuit::arch::instructions::VmOpcode;
use openvm_circuit::arch::{
    AirInventory, AirInventoryError, ChipInventory, ChipInventoryError, ExecutorInventoryBuilder,
    ExecutorInventoryError, MatrixRecordArena, VmBuilder, VmChipComplex, VmCircuitConfig,
    VmCircuitExtension, VmConfig, VmExecutionConfig, VmExecutionExtension, VmProverExtension,
};
use openvm_circuit_primitives::{
    bitwise_op_lookup::SharedBitwiseOperationLookupChip, range_tuple::SharedRangeTupleCheckerChip,
};
use openvm_cpu_backend::{CpuBackend, CpuDevice};
use openvm_stark_backend::{EngineDeviceCtx, StarkEngine};
use openvm_stark_sdk::config::baby_bear_poseidon2::BabyBearPoseidon2Config;

use super::{
    air::ApcAir,
    chip::{ApcCpuChip, OriginalChips, PeripheryChips},
    config::ApcVmConfig,
    executor::ApcExecutor,
};
use crate::{bus::F, trace::substage::Substage};

type SC = BabyBearPoseidon2Config;

/// The APCs of a configuration, as an extension of the wrapped VM.
pub struct ApcExtension<'a, VC>(pub &'a ApcVmConfig<VC>);

impl<VC> VmExecutionExtension<F> for ApcExtension<'_, VC>
where
    VC: VmExecutionConfig<F> + VmCircuitConfig<SC>,
    VC::Executor: 'static,
{
    type Executor = ApcExecutor<VC::Executor>;

    fn extend_execution(
        &self,
        inventory: &mut ExecutorInventoryBuilder<F, Self::Executor>,
    ) -> Result<(), ExecutorInventoryError> {
        let config = self.0;
        if config.apcs().is_empty() {
            return Ok(());
        }
        // The block's instructions run through executors of their own: those of the inventory belong to it.
        let originals = Arc::new(config.inner().create_executors()?);
        for shared in config.apcs() {
            let executor = ApcExecutor::new(
                shared.apc().clone(),
                shared.plan().clone(),
                shared.records().clone(),
                originals.clone(),
                config.original_widths(),
            )
            .expect("`ApcVmConfig::new` has looked for every instruction and AIR of the APC");
            inventory.add_executor(executor, [VmOpcode::from_usize(shared.apc().opcode)])?;
        }
        Ok(())
    }
}

impl<VC> VmCircuitExtension<SC> for ApcExtension<'_, VC> {
    fn extend_circuit(&self, inventory: &mut AirInventory<SC>) -> Result<(), AirInventoryError> {
        for shared in self.0.apcs() {
            inventory.add_air(ApcAir::new(
                shared.apc().clone(),
                shared.binding(),
                self.0.buses(),
            ));
        }
        Ok(())
    }
}

/// Adds the APCs' chips for the CPU backend.
pub struct ApcCpuProverExtension {
    originals: Rc<OriginalChips<MatrixRecordArena<F>, CpuBackend<SC>>>,
}

impl<E, VC> VmProverExtension<E, MatrixRecordArena<F>, ApcExtension<'_, VC>>
    for ApcCpuProverExtension
where
    E: StarkEngine<SC = SC, PB = CpuBackend<SC>>,
    VC: VmExecutionConfig<F> + VmCircuitConfig<SC>,
    VC::Executor: 'static,
{
    fn extend_prover(
        &self,
        extension: &ApcExtension<'_, VC>,
        inventory: &mut ChipInventory<SC, MatrixRecordArena<F>, CpuBackend<SC>>,
    ) -> Result<(), ChipInventoryError> {
        let periphery = PeripheryChips {
            variable_range_checker: inventory.range_checker()?.clone(),
            bitwise_lookup: inventory
                .find_chip::<SharedBitwiseOperationLookupChip<8>>()
                .next()
                .cloned(),
            range_tuple_checker: inventory
                .find_chip::<SharedRangeTupleCheckerChip<2>>()
                .next()
                .cloned(),
        };
        for shared in extension.0.apcs() {
            inventory.next_air::<ApcAir>()?;
            inventory.add_executor_chip(ApcCpuChip::new(
                shared.clone(),
                extension.0.bus_kernel(),
                extension.0.buses().tables,
                self.originals.clone(),
                periphery.clone(),
            ));
        }
        Ok(())
    }
}

/// Builds a VM with APCs out of the builder of the wrapped VM.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApcVmBuilder<VB>(
    /// The builder of the wrapped VM.
    pub VB,
);

impl<E, VB> VmBuilder<E> for ApcVmBuilder<VB>
where
    E: StarkEngine<SC = SC, PB = CpuBackend<SC>, PD = CpuDevice<SC>>,
    VB: VmBuilder<E, RecordArena = MatrixRecordArena<F>>,
    VB::VmConfig: 'static,
    <VB::VmConfig as VmExecutionConfig<F>>::Executor: 'static,
    ApcVmConfig<VB::VmConfig>: VmConfig<SC>,
{
    type VmConfig = ApcVmConfig<VB::VmConfig>;
    type RecordArena = MatrixRecordArena<F>;
    type SystemChipInventory = VB::SystemChipInventory;

    fn create_chip_complex(
        &self,
        config: &Self::VmConfig,
        circuit: AirInventory<SC>,
        device_ctx: &EngineDeviceCtx<E>,
    ) -> Result<
        VmChipComplex<SC, Self::RecordArena, E::PB, Self::SystemChipInventory>,
        ChipInventoryError,
    > {
        let mut complex = self
            .0
            .create_chip_complex(config.inner(), circuit, device_ctx)?;
        if config.apcs().is_empty() {
            return Ok(complex);
        }
        // The same chips once more, with periphery chips of their own: what those count is thrown away.
        let originals =
            Substage::DummyChipInventory.run("all", || {
                let airs = config.inner().create_airs().map_err(|error| {
                    ChipInventoryError::AirNotFound {
                        name: error.to_string(),
                    }
                })?;
                self.0
                    .create_chip_complex(config.inner(), airs, device_ctx)
                    .map(|complex| complex.inventory)
            })?;
        VmProverExtension::<E, _, _>::extend_prover(
            &ApcCpuProverExtension {
                originals: Rc::new(OriginalChips::new(originals)),
            },
            &ApcExtension(config),
            &mut complex.inventory,
        )?;
        Ok(complex)
    }
}
