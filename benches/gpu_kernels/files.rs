//! APCs, traces and expected histograms on disk: what `cli-openvm execute --apc-traces` writes.
//!
//! The layout is documented at `openvm_apc::pipeline::apc_traces`. An APC file is JSON with `machine` (as
//! powdr-autoprecompiles writes a symbolic machine) and `columns` (each with its `poly_id`, in trace order).

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use eyre::{bail, ensure, eyre, Context, Result};
use openvm_apc::bus::{ColumnOrder, CountingInteractions, Histograms, F};
use p3_field::{PrimeCharacteristicRing, PrimeField32};
use powdr_autoprecompiles::{
    expression::AlgebraicExpression, symbolic_machine::SymbolicBusInteraction,
};
use powdr_number::BabyBearField;
use serde::Deserialize;

use super::programs::TABLES;

/// An APC as far as bus kernels are concerned.
#[derive(Deserialize)]
pub struct ApcFile {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its bus interactions.
    pub machine: Interactions,
    /// The columns of its traces, in order.
    pub columns: Vec<ColumnEntry>,
    /// The id of the column that is one on live rows, if the file tells.
    is_valid: Option<u64>,
}

/// What of a machine bus kernels look at.
#[derive(Deserialize)]
pub struct Interactions {
    bus_interactions: Vec<SymbolicBusInteraction<BabyBearField>>,
}

/// A column.
#[derive(Deserialize)]
pub struct ColumnEntry {
    #[serde(alias = "id")]
    poly_id: u64,
}

impl ApcFile {
    /// Reads an APC file.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).wrap_err_with(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).wrap_err_with(|| format!("{} is no APC file", path.display()))
    }

    /// Its interactions with the periphery tables.
    pub fn interactions(&self) -> Result<CountingInteractions> {
        // Else the multiplicity of the APC's send on the execution bus, which every APC has.
        let is_valid = self.is_valid.or_else(|| {
            let mut on_execution_bus = self
                .machine
                .bus_interactions
                .iter()
                .filter(|interaction| interaction.id == 0);
            on_execution_bus.find_map(|interaction| match &interaction.mult {
                AlgebraicExpression::Reference(reference) => Some(reference.id),
                _ => None,
            })
        });
        Ok(CountingInteractions::new(
            &self.machine.bus_interactions,
            &ColumnOrder::new(self.columns.iter().map(|column| column.poly_id)),
            is_valid,
            &TABLES,
        )?)
    }
}

/// A trace in host memory: column-major, `height × width`.
pub struct HostTrace {
    /// The values.
    pub values: Vec<F>,
    /// Number of rows.
    pub height: usize,
    /// Number of columns.
    pub width: usize,
    /// How many of the first rows count.
    pub live_rows: usize,
}

impl HostTrace {
    /// Reads a trace of `width` columns whose first `live_rows` rows count.
    pub fn read(path: &Path, width: usize, live_rows: usize) -> Result<Self> {
        let bytes = fs::read(path).wrap_err_with(|| format!("reading {}", path.display()))?;
        ensure!(
            width > 0 && bytes.len().is_multiple_of(4 * width),
            "{} does not hold {width} columns of u32",
            path.display()
        );
        let values = bytes
            .chunks_exact(4)
            .map(|word| {
                let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                ensure!(
                    value < F::ORDER_U32,
                    "{} holds {value}, which is no canonical field element",
                    path.display()
                );
                Ok(F::from_u32(value))
            })
            .collect::<Result<Vec<F>>>()?;
        let height = values.len() / width;
        ensure!(
            (1..=height).contains(&live_rows),
            "{} has {height} rows, so {live_rows} cannot be live",
            path.display()
        );
        Ok(Self {
            values,
            height,
            width,
            live_rows,
        })
    }
}

/// What the name of a trace file says: `…_pcPC_callsCALLS_hHEIGHT_wWIDTH.u32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceName {
    /// The first pc of the APC, as it stands in the name.
    pub pc: String,
    /// Live rows.
    pub calls: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl TraceName {
    /// Takes the name of a file apart.
    pub fn of(path: &Path) -> Result<Self> {
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let part = |prefix: &str| {
            stem.and_then(|stem| {
                let mut parts = stem.split('_').rev();
                parts.find_map(|part| part.strip_prefix(prefix))
            })
            .ok_or_else(|| eyre!("the name of {} has no part {prefix}…", path.display()))
        };
        let number = |prefix: &str| -> Result<usize> {
            part(prefix)?
                .parse()
                .wrap_err_with(|| format!("{prefix} in the name of {}", path.display()))
        };
        Ok(Self {
            pc: part("pc")?.to_string(),
            calls: number("calls")?,
            height: number("h")?,
            width: number("w")?,
        })
    }
}

/// The files of one trace.
pub struct TraceFiles {
    /// The APC.
    pub apc: PathBuf,
    /// Its trace.
    pub trace: PathBuf,
    /// What it has to count.
    pub histograms: PathBuf,
    /// What the trace's name says.
    pub name: TraceName,
}

/// What [`TraceFiles`] hold.
pub struct RealCase {
    /// The APC.
    pub apc: ApcFile,
    /// Its trace.
    pub trace: HostTrace,
    /// What its live rows have to count.
    pub expected: Histograms,
}

impl TraceFiles {
    /// Every trace under `folder`, in the order of their paths.
    ///
    /// # Errors
    /// If there is none, or one without its APC.
    pub fn all(folder: &Path) -> Result<Vec<Self>> {
        let [mut apcs, mut traces] = [vec![], vec![]];
        for path in entries(folder)? {
            if path.is_dir() {
                let inside = entries(&path)?.into_iter();
                traces.extend(inside.filter(|path| has_extension(path, "u32")));
            } else if has_extension(&path, "json") {
                apcs.push(path);
            }
        }
        ensure!(
            !traces.is_empty(),
            "{} has no traces (traces_*/*.u32): nothing would be checked",
            folder.display()
        );
        traces.sort();
        traces
            .into_iter()
            .map(|trace| {
                let name = TraceName::of(&trace)?;
                let ending = format!("_pc{}.json", name.pc);
                let Some(apc) = (apcs.iter()).find(|apc| apc.to_string_lossy().ends_with(&ending))
                else {
                    bail!("no APC file …{ending} for {}", trace.display());
                };
                let histograms = format!("hist_pc{}_calls{}.json", name.pc, name.calls);
                Ok(Self {
                    apc: apc.clone(),
                    histograms: trace.with_file_name(histograms),
                    trace,
                    name,
                })
            })
            .collect()
    }

    /// Reads them.
    ///
    /// # Errors
    /// If one is missing or damaged, or does not have the shape that the trace's name says.
    pub fn read(&self) -> Result<RealCase> {
        let apc = ApcFile::read(&self.apc)?;
        let trace = HostTrace::read(&self.trace, apc.columns.len(), self.name.calls)?;
        ensure!(
            (trace.height, trace.width) == (self.name.height, self.name.width),
            "{} is {} × {}, which is not what its name says",
            self.trace.display(),
            trace.height,
            trace.width
        );
        Ok(RealCase {
            apc,
            trace,
            expected: read_histograms(&self.histograms)?,
        })
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let reading = || format!("reading {}", folder.display());
    fs::read_dir(folder)
        .wrap_err_with(reading)?
        .map(|entry| Ok(entry.wrap_err_with(reading)?.path()))
        .collect()
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// `{bus: {bin: count}}`.
fn read_histograms(path: &Path) -> Result<Histograms> {
    let text = fs::read_to_string(path).wrap_err_with(|| format!("reading {}", path.display()))?;
    let counts: BTreeMap<u64, BTreeMap<usize, u32>> =
        serde_json::from_str(&text).wrap_err_with(|| format!("{}", path.display()))?;
    let mut histograms = Histograms::zeros(&TABLES);
    for (bus, bins) in counts {
        let Some(table) = TABLES.table_of_bus(bus) else {
            bail!(
                "{} counts on bus {bus}, where OpenVM's default configuration has no table",
                path.display()
            );
        };
        for (bin, count) in bins {
            ensure!(
                bin < histograms.of(table).len(),
                "{}: the {table} has no bin {bin}",
                path.display()
            );
            histograms.add(table, bin, count);
        }
    }
    Ok(histograms)
}
