//! The traces of a run's APCs as files, with what their bus interactions have to count: what `benches/gpu_kernels` checks
//! and times kernels on.
//!
//! ```text
//! apc_RANK_pcPC.json                                        an `Autoprecompile`, as serde writes it
//! traces_segment_SEGMENT/
//!     DEVICE_pcPC_callsCALLS_hHEIGHT_wWIDTH.u32             its trace in that segment
//!     hist_pcPC_callsCALLS.json                             bus id → bin → count, where the count is not zero
//! ```
//!
//! A trace is `height × width` canonical little-endian `u32`, column-major; its first rows, one a call, are live. The counts
//! are those of [`bus::reference`](crate::bus::reference), which shares nothing with any kernel.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use openvm_circuit::arch::{PreflightExecutor, VmBuilder};
use openvm_sdk_config::SdkVmConfig;
use openvm_stark_backend::{
    prover::{ColMajorMatrix, DeviceDataTransporter, MatrixDimensions},
    StarkEngine,
};
use p3_field::PrimeField32;
use thiserror::Error;

use super::{
    device::Device,
    error::PipelineError,
    fault::{catch, Stage},
    folder::StagedFolder,
    guest::GuestInput,
    stages::{ApcExecutors, Pipeline, Setup, SC},
};
use crate::{
    bus::{reference, table::TableKind, BusError, Histograms, PeripheryTables, TraceView, F},
    vm::{shared::SharedApc, ApcVmConfig},
};

/// What the folder is called in errors.
pub const WHAT: &str = "the folder of APC traces";

/// Why the traces of APCs were not written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ApcTracesError {
    /// Plain OpenVM.
    #[error(
        "there are no APCs whose traces could be written: ask for some with --autoprecompiles"
    )]
    NoApcs,
    /// No segment has a trace of an APC.
    #[error(
        "this run calls none of its {apcs} APC(s), so there are no traces to write: use another input, or other APCs"
    )]
    NoCalls {
        /// How many APCs the program has.
        apcs: usize,
    },
    /// A trace that does not have the APC's columns.
    #[error(
        "segment {segment}: the trace of {apc} has {found} columns where the APC has {expected}"
    )]
    Width {
        /// The segment.
        segment: usize,
        /// The APC.
        apc: String,
        /// Columns of the trace.
        found: usize,
        /// Columns of the APC.
        expected: usize,
    },
    /// A trace whose live rows are not its first ones.
    #[error(
        "segment {segment}: is_valid of {apc} should be ones and then zeros, but row {row} holds {value}: the trace is \
         broken (`prove --mock` says more)"
    )]
    NotLive {
        /// The segment.
        segment: usize,
        /// The APC.
        apc: String,
        /// The row.
        row: usize,
        /// The canonical value of `is_valid` there.
        value: u32,
    },
    /// A lookup that no table has a row for.
    #[error("segment {segment}, {apc}: {source}")]
    Bus {
        /// The segment.
        segment: usize,
        /// The APC.
        apc: String,
        /// What is wrong.
        source: BusError,
    },
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApcTracesReport {
    /// APCs that were called.
    pub apcs: usize,
    /// Traces, over all segments.
    pub traces: usize,
    /// Live rows, over all traces: calls.
    pub calls: usize,
}

impl Pipeline {
    /// Generates the traces of the guest's run on `input` without proving, and writes those of APCs, with what they have to
    /// count, into a new folder at `path`. `device` is where `setup` generates them, and part of the files' names.
    ///
    /// The reference evaluates expressions row by row on one core: seconds for a thousand rows of a large APC.
    ///
    /// # Errors
    /// [`PipelineError::ApcTraces`], [`PipelineError::Exists`] and [`PipelineError::Write`], and those of trace generation.
    /// Nothing is written then.
    pub fn apc_traces<E, VB>(
        &self,
        setup: &mut Setup<E, VB>,
        input: &GuestInput,
        device: Device,
        path: &Path,
    ) -> Result<ApcTracesReport, PipelineError>
    where
        E: StarkEngine<SC = SC>,
        VB: VmBuilder<E, VmConfig = ApcVmConfig<SdkVmConfig>>,
        ApcExecutors: PreflightExecutor<F, VB::RecordArena>,
    {
        let start = Instant::now();
        let apcs = setup.config.apcs().to_vec();
        if apcs.is_empty() {
            return Err(ApcTracesError::NoApcs.into());
        }
        let rank_of: BTreeMap<&str, usize> = (apcs.iter().enumerate())
            .map(|(rank, shared)| (shared.apc().name.as_str(), rank))
            .collect();
        // Of AIRs, only those of APCs have labels of their own.
        let rank_of_air: BTreeMap<usize, usize> = (setup.labels()?.airs.iter())
            .filter_map(|(air_id, name)| Some((*air_id, *rank_of.get(name.as_str())?)))
            .collect();
        let mut writer = Writer {
            folder: StagedFolder::create(WHAT, path)?,
            device,
            tables: setup.config.buses().tables,
            written: BTreeSet::new(),
            report: ApcTracesReport::default(),
        };
        self.run_segments("Generating traces", setup, input, |vm, context, segment| {
            for (air_id, air) in &context.per_trace {
                let Some(&rank) = rank_of_air.get(air_id) else {
                    continue;
                };
                // stark-backend's transporters panic where the device fails.
                let trace = catch(Stage::Traces { segment }, || {
                    let device = vm.engine.device();
                    device.transport_matrix_from_device_to_host(&air.common_main)
                })?;
                writer.write(segment, rank, &apcs[rank], &trace)?;
            }
            Ok(())
        })?;
        let report = writer.report;
        if report.traces == 0 {
            return Err(ApcTracesError::NoCalls { apcs: apcs.len() }.into());
        }
        writer.folder.publish()?;
        self.progress()
            .finish(&format!("in {:.1} s", start.elapsed().as_secs_f64()));
        Ok(report)
    }
}

/// Writes one trace after the other.
struct Writer {
    folder: StagedFolder,
    device: Device,
    tables: PeripheryTables,
    /// The APCs whose own file is written.
    written: BTreeSet<usize>,
    report: ApcTracesReport,
}

impl Writer {
    fn write(
        &mut self,
        segment: usize,
        rank: usize,
        shared: &SharedApc,
        trace: &ColMajorMatrix<F>,
    ) -> Result<(), PipelineError> {
        let apc = shared.apc();
        let (height, width) = (trace.height(), trace.width());
        let calls = live_rows(segment, shared, trace)?;
        if calls == 0 {
            return Ok(());
        }
        let mut histograms = Histograms::zeros(&self.tables);
        reference::replay(
            shared.interactions(),
            TraceView::new(&trace.values, width, height),
            calls,
            &mut histograms,
        )
        .map_err(|source| ApcTracesError::Bus {
            segment,
            apc: apc.name.clone(),
            source,
        })?;

        let pc = format!("pc{:#x}", apc.start_pc);
        if self.written.insert(rank) {
            let name = PathBuf::from(format!("apc_{rank:02}_{pc}.json"));
            self.folder
                .write(&name, |file| Ok(serde_json::to_writer(file, &**apc)?))?;
            self.report.apcs += 1;
        }
        let folder = PathBuf::from(format!("traces_segment_{segment}"));
        let device = match self.device {
            Device::Cpu => "cpu",
            Device::Cuda => "cuda",
        };
        self.folder.write(
            &folder.join(format!("{device}_{pc}_calls{calls}_h{height}_w{width}.u32")),
            |file| write_values(file, &trace.values),
        )?;
        self.folder.write(
            &folder.join(format!("hist_{pc}_calls{calls}.json")),
            |file| {
                Ok(serde_json::to_writer(
                    file,
                    &by_bus(&self.tables, &histograms),
                )?)
            },
        )?;
        self.report.traces += 1;
        self.report.calls += calls;
        Ok(())
    }
}

/// How many rows are live, as the column `is_valid` says.
fn live_rows(
    segment: usize,
    shared: &SharedApc,
    trace: &ColMajorMatrix<F>,
) -> Result<usize, ApcTracesError> {
    let apc = shared.apc();
    let flag = (apc.columns.iter()).position(|column| column.poly_id == apc.is_valid);
    let flag = match flag {
        Some(flag) if trace.width() == apc.width() => flag,
        _ => {
            return Err(ApcTracesError::Width {
                segment,
                apc: apc.name.clone(),
                found: trace.width(),
                expected: apc.width(),
            })
        }
    };
    let flags = trace.column(flag);
    let live = flags
        .iter()
        .take_while(|flag| flag.as_canonical_u32() == 1)
        .count();
    match (flags[live..].iter()).position(|flag| flag.as_canonical_u32() != 0) {
        None => Ok(live),
        Some(padding) => Err(ApcTracesError::NotLive {
            segment,
            apc: apc.name.clone(),
            row: live + padding,
            value: flags[live + padding].as_canonical_u32(),
        }),
    }
}

/// Canonical little-endian `u32`, in the order of the values.
fn write_values(file: &mut dyn Write, values: &[F]) -> io::Result<()> {
    let mut block = [0; 4096];
    for values in values.chunks(block.len() / 4) {
        let block = &mut block[..4 * values.len()];
        for (bytes, value) in block.chunks_exact_mut(4).zip(values) {
            bytes.copy_from_slice(&value.as_canonical_u32().to_le_bytes());
        }
        file.write_all(block)?;
    }
    Ok(())
}

/// Bus id → bin → count, where the count is not zero.
fn by_bus(
    tables: &PeripheryTables,
    histograms: &Histograms,
) -> BTreeMap<u64, BTreeMap<usize, u32>> {
    TableKind::ALL
        .into_iter()
        .filter_map(|table| {
            let bus = tables.bus_of_table(table)?;
            let bins = histograms.of(table).iter().copied().enumerate();
            let counts: BTreeMap<usize, u32> = bins.filter(|(_, count)| *count != 0).collect();
            Some((bus, counts)).filter(|(_, counts)| !counts.is_empty())
        })
        .collect()
}
