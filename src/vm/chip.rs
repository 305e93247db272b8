//! The chip of an APC on the CPU: records in, trace out, periphery counted.

use std::{
    panic::panic_any,
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
};

use openvm_circuit::arch::{ChipInventory, MatrixRecordArena};
use openvm_circuit_primitives::{
    bitwise_op_lookup::SharedBitwiseOperationLookupChip, range_tuple::SharedRangeTupleCheckerChip,
    var_range::SharedVariableRangeCheckerChip, Chip,
};
use openvm_cpu_backend::CpuBackend;
use openvm_stark_backend::{
    p3_matrix::dense::RowMajorMatrix,
    prover::{AirProvingContext, ProverBackend},
};
use openvm_stark_sdk::config::baby_bear_poseidon2::BabyBearPoseidon2Config;

use super::{arena::ApcArena, records::PENDING_LIMIT, shared::SharedApc};
use crate::{
    apc::AirIndex,
    bus::{table::BitwiseLookupTable, BusKernel, Histograms, PeripheryTables, F},
    trace::{cpu, substage::Substage, TraceError},
};

type SC = BabyBearPoseidon2Config;

/// The chips of the original AIRs, with periphery whose counts are thrown away. Shared by all APCs of a VM.
pub struct OriginalChips<RA, PB: ProverBackend> {
    inventory: ChipInventory<SC, RA, PB>,
}

impl<RA: 'static, PB: ProverBackend + 'static> OriginalChips<RA, PB> {
    /// Takes a chip inventory of the wrapped VM that nothing else uses.
    pub fn new(inventory: ChipInventory<SC, RA, PB>) -> Self {
        Self { inventory }
    }

    /// The name of an original AIR.
    pub fn name(&self, air: AirIndex) -> String {
        self.inventory
            .airs()
            .ext_airs()
            .get(air)
            .map_or_else(|| format!("AIR {air}"), |air| air.name())
    }

    /// The trace of an original AIR, out of its records.
    pub fn trace(&self, air: AirIndex, records: RA) -> Option<PB::Matrix> {
        let chip = self.inventory.chips().get(air)?;
        Some(chip.generate_proving_ctx(records).common_main)
    }

    /// The records of the calls that an APC's arena holds, ready for trace generation; `None` if there are no calls.
    ///
    /// # Errors
    /// [`TraceError::RecordsGone`].
    pub(super) fn recorded_calls(
        &self,
        shared: &SharedApc,
        records: &RA,
    ) -> Result<Option<RecordedCalls<RA>>, TraceError>
    where
        RA: ApcArena,
    {
        let (apc, plan) = (shared.apc(), shared.plan());
        let Some((calls, token)) = records.calls(apc.width()) else {
            return Ok(None);
        };
        let arenas = shared
            .records()
            .take::<RA>(token)
            .ok_or_else(|| TraceError::RecordsGone {
                apc: apc.name.clone(),
                limit: PENDING_LIMIT,
            })?
            .arenas;
        let airs = plan.airs.iter();
        let names = airs.map(|planned| self.name(planned.air)).collect();
        Ok(Some(RecordedCalls {
            calls,
            arenas,
            names,
        }))
    }
}

/// The records of an APC's calls in one segment.
pub(super) struct RecordedCalls<RA> {
    /// How many calls.
    pub calls: usize,
    /// The records of the original instructions, one arena per AIR of the trace plan.
    arenas: Vec<RA>,
    /// The names of these AIRs, for errors.
    pub names: Vec<String>,
}

impl<RA: 'static> RecordedCalls<RA> {
    /// The traces of the plan's AIRs out of the records, which are used up.
    ///
    /// # Errors
    /// [`TraceError::Plan`] if the VM has no chip for one.
    pub fn dummy_traces<PB: ProverBackend + 'static>(
        &mut self,
        shared: &SharedApc,
        originals: &OriginalChips<RA, PB>,
    ) -> Result<Vec<PB::Matrix>, TraceError> {
        let airs = &shared.plan().airs;
        airs.iter()
            .zip(self.arenas.drain(..))
            .zip(&self.names)
            .map(|((planned, arena), name)| {
                originals
                    .trace(planned.air, arena)
                    .ok_or_else(|| TraceError::Plan {
                        apc: shared.apc().name.clone(),
                        what: format!("the VM has no chip for {name}"),
                    })
            })
            .collect()
    }
}

/// The periphery chips that the APCs' interactions are counted into.
#[derive(Clone)]
pub struct PeripheryChips {
    /// The variable range checker.
    pub variable_range_checker: SharedVariableRangeCheckerChip,
    /// The two-tuple range checker, if the VM has one.
    pub range_tuple_checker: Option<SharedRangeTupleCheckerChip<2>>,
    /// The bitwise lookup, if the VM has one.
    pub bitwise_lookup: Option<SharedBitwiseOperationLookupChip<8>>,
}

impl PeripheryChips {
    /// Adds the histograms' counts.
    pub fn add(&self, histograms: &Histograms) {
        fn add<'a>(chip: impl IntoIterator<Item = &'a AtomicU32>, counts: &[u32]) {
            for (chip, &count) in chip.into_iter().zip(counts) {
                if count != 0 {
                    chip.fetch_add(count, Ordering::Relaxed);
                }
            }
        }
        add(
            &self.variable_range_checker.count,
            &histograms.variable_range_checker,
        );
        if let Some(chip) = &self.range_tuple_checker {
            add(
                chip.count.iter().map(|count| &**count),
                &histograms.range_tuple_checker,
            );
        }
        if let Some(chip) = &self.bitwise_lookup {
            if let Some((range, xor)) = histograms
                .bitwise_lookup
                .split_at_checked(BitwiseLookupTable::HALF_BINS)
            {
                add(&chip.count_range, range);
                add(&chip.count_xor, xor);
            }
        }
    }
}

/// The chip of one APC.
pub struct ApcCpuChip {
    shared: SharedApc,
    kernel: BusKernel,
    tables: PeripheryTables,
    originals: Rc<OriginalChips<MatrixRecordArena<F>, CpuBackend<SC>>>,
    periphery: PeripheryChips,
}

impl ApcCpuChip {
    /// The chip of an APC, which counts into `periphery` with `kernel`.
    pub fn new(
        shared: SharedApc,
        kernel: BusKernel,
        tables: PeripheryTables,
        originals: Rc<OriginalChips<MatrixRecordArena<F>, CpuBackend<SC>>>,
        periphery: PeripheryChips,
    ) -> Self {
        Self {
            shared,
            kernel,
            tables,
            originals,
            periphery,
        }
    }

    /// The trace of the recorded calls, row-major; empty if there are none.
    fn generate(&self, records: &MatrixRecordArena<F>) -> Result<RowMajorMatrix<F>, TraceError> {
        let (apc, plan) = (self.shared.apc(), self.shared.plan());
        let Some(mut recorded) = self.originals.recorded_calls(&self.shared, records)? else {
            return Ok(RowMajorMatrix::new(vec![], apc.width()));
        };
        let dummy_traces = Substage::DummyTraceGen.run(&apc.name, || {
            recorded.dummy_traces(&self.shared, &self.originals)
        })?;
        let calls = recorded.calls;
        let names: Vec<&str> = recorded.names.iter().map(String::as_str).collect();
        let trace = cpu::generate_trace(apc, plan, &dummy_traces, &names, calls)?;
        drop(dummy_traces);
        let program = Substage::BusCompileH2d
            .run(&apc.name, || self.shared.program(self.kernel))
            .map_err(|source| TraceError::Bus {
                apc: apc.name.clone(),
                source,
            })?;
        let mut histograms = Histograms::zeros(&self.tables);
        cpu::apply_bus(apc, &program, &trace, calls, &mut histograms)?;
        self.periphery.add(&histograms);
        Ok(trace.into_row_major())
    }
}

impl Chip<MatrixRecordArena<F>, CpuBackend<SC>> for ApcCpuChip {
    fn generate_proving_ctx(
        &self,
        records: MatrixRecordArena<F>,
    ) -> AirProvingContext<CpuBackend<SC>> {
        match self.generate(&records) {
            Ok(trace) => AirProvingContext::simple_no_pis(trace),
            // OpenVM's chips cannot fail. The payload is the typed error, for whoever catches it.
            Err(error) => panic_any(error),
        }
    }
}
