//! The bus kernels on a GPU, one APC at a time: `check` compares them with independent expectations, `bench` times them.
//!
//! ```text
//! scripts/cuda-cargo bench --features cuda --bench gpu_kernels -- check
//! scripts/cuda-cargo bench --features cuda --bench gpu_kernels -- bench --apc apc.json --trace trace.u32 --rows 1024,65536
//! ```
//!
//! An APC file is JSON with `machine` (as powdr-autoprecompiles writes a symbolic machine) and `columns` (each with its
//! `poly_id`, in trace order): what serde writes for an `Autoprecompile` is one.
//! A trace file holds canonical little-endian u32, column-major, `height × width`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Instant,
};

use clap::{Parser, Subcommand};
use eyre::{bail, ensure, eyre, Context, Result};
use openvm_apc::{
    bus::{
        dag,
        interaction::{ColumnOrder, CountingInteractions, Multiplicity},
        kernel::{BusKernel, BusProgram},
        table::{
            BitwiseLookupTable, Histograms, PeripheryTables, RangeTupleCheckerTable, TableKind,
            VariableRangeCheckerTable,
        },
        F,
    },
    gpu::{
        self,
        memory::{allocate, upload},
        program::column_read_floor,
        BusScratch, BusTrace, DeviceBusProgram, GpuInfo, GpuSettings, PeripheryCounts, Stopwatch,
    },
};
use openvm_cuda_common::{copy::MemCopyD2H, d_buffer::DeviceBuffer, stream::GpuDeviceCtx};
use p3_field::{PrimeCharacteristicRing, PrimeField32};
use powdr_autoprecompiles::{
    expression::{AlgebraicExpression, AlgebraicReference},
    symbolic_machine::SymbolicBusInteraction,
};
use powdr_number::BabyBearField;
use serde::{Deserialize, Serialize};

#[derive(Parser)]
#[command(about = "Checks and times the bus kernels on a GPU")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Given by `cargo bench`; means nothing here.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Random and real programs against independent expectations.
    Check {
        /// A folder of APC files `apc_*.json` and, in `traces_*/`, traces `…_pcPC_callsC_hH_wW.u32` with expected
        /// histograms `hist_pcPC_callsC.json`.
        #[arg(long)]
        data: Option<PathBuf>,
        /// Seed of the random programs.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Largest height tried, as a power of two.
        #[arg(long, default_value_t = 20)]
        log_max_rows: u32,
        /// Small programs and heights only: for compute-sanitizer.
        #[arg(long)]
        quick: bool,
    },
    /// Times the kernels on one APC at chosen numbers of rows.
    Bench {
        /// The APC.
        #[arg(long)]
        apc: PathBuf,
        /// Its trace; rows are repeated to fill the heights asked for.
        #[arg(long)]
        trace: PathBuf,
        /// Live rows of the trace file.
        #[arg(long)]
        live_rows: usize,
        /// Numbers of rows.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "256,1024,8192,65536,131072"
        )]
        rows: Vec<usize>,
        /// Kernels, the first being the one that the others are compared with.
        #[arg(long, value_delimiter = ',', default_value = "vm,dag,dag-seed")]
        kernels: Vec<String>,
        /// Timed launches; the median counts.
        #[arg(long, default_value_t = 9)]
        runs: usize,
        /// Scratch for intermediates, in MiB.
        #[arg(long, default_value_t = 256)]
        scratch_mib: usize,
        /// Where to write the results as JSON.
        #[arg(long)]
        json: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:?}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let info = gpu::open_device()?;
    println!(
        "{} (sm_{}, {} GiB, driver CUDA {})",
        info.name,
        info.capability,
        info.memory >> 30,
        info.driver_version
    );
    let device_ctx = GpuDeviceCtx::for_current_device()?;
    let device = Device {
        tables: tables(),
        counts: Counts::new(&tables(), &device_ctx)?,
        scratch: BusScratch::default(),
        device_ctx,
    };
    match command {
        Command::Check {
            data,
            seed,
            log_max_rows,
            quick,
        } => check(&device, data, seed, log_max_rows, quick),
        Command::Bench {
            apc,
            trace,
            live_rows,
            rows,
            kernels,
            runs,
            scratch_mib,
            json,
        } => {
            let settings = GpuSettings {
                bus_scratch: scratch_mib << 20,
            };
            let apc = ApcFile::read(&apc)?;
            let trace = HostTrace::read(&trace, apc.columns.len(), live_rows)?;
            let report = bench(
                &device, &info, &apc, &trace, &rows, &kernels, runs, &settings,
            )?;
            report.print();
            if let Some(path) = json {
                fs::write(&path, serde_json::to_string_pretty(&report)?)
                    .wrap_err_with(|| format!("writing {}", path.display()))?;
            }
            Ok(())
        }
    }
}

/// The tables of OpenVM's default configuration.
fn tables() -> PeripheryTables {
    PeripheryTables {
        variable_range_checker: Some(VariableRangeCheckerTable {
            bus_id: 3,
            range_max_bits: 17,
        }),
        range_tuple_checker: Some(RangeTupleCheckerTable {
            bus_id: 7,
            sizes: [256, 2048],
        }),
        bitwise_lookup: Some(BitwiseLookupTable { bus_id: 6 }),
    }
}

/// An APC as far as bus kernels are concerned.
#[derive(Deserialize)]
struct ApcFile {
    #[serde(default)]
    name: String,
    machine: Interactions,
    columns: Vec<ColumnEntry>,
}

/// What of a machine bus kernels look at.
#[derive(Deserialize)]
struct Interactions {
    bus_interactions: Vec<SymbolicBusInteraction<BabyBearField>>,
}

/// What is checked and timed: the bus kernels, and `dag` with the seed's schedule.
const PROGRAMS: [&str; 3] = ["vm", "dag", "dag-seed"];

fn compile(name: &str, interactions: &CountingInteractions) -> Result<Arc<BusProgram>> {
    Ok(match name {
        "dag-seed" => Arc::new(BusProgram::Dag(dag::Program::compile(
            interactions,
            dag::Schedule::SEED,
        )?)),
        name => name.parse::<BusKernel>()?.compile(interactions)?,
    })
}

#[derive(Deserialize)]
struct ColumnEntry {
    #[serde(alias = "id")]
    poly_id: u64,
}

impl ApcFile {
    fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).wrap_err_with(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).wrap_err_with(|| format!("{} is no APC file", path.display()))
    }

    fn interactions(&self) -> Result<CountingInteractions> {
        // The multiplicity of the APC's send on the execution bus, which every APC has.
        let is_valid = self
            .machine
            .bus_interactions
            .iter()
            .filter(|interaction| interaction.id == 0)
            .find_map(|interaction| match &interaction.mult {
                AlgebraicExpression::Reference(reference) => Some(reference.id),
                _ => None,
            });
        Ok(CountingInteractions::new(
            &self.machine.bus_interactions,
            &ColumnOrder::new(self.columns.iter().map(|column| column.poly_id)),
            is_valid,
            &tables(),
        )?)
    }
}

/// A trace in host memory: column-major, `height × width`.
struct HostTrace {
    values: Vec<F>,
    height: usize,
    width: usize,
    live_rows: usize,
}

impl HostTrace {
    fn read(path: &Path, width: usize, live_rows: usize) -> Result<Self> {
        let bytes = fs::read(path).wrap_err_with(|| format!("reading {}", path.display()))?;
        let values: Vec<F> = bytes
            .chunks_exact(4)
            .map(|word| F::from_u32(u32::from_le_bytes([word[0], word[1], word[2], word[3]])))
            .collect();
        ensure!(
            width > 0 && values.len().is_multiple_of(width) && bytes.len().is_multiple_of(4),
            "{} does not hold {width} columns",
            path.display()
        );
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

    /// The live rows, repeated to `rows` of them, in a trace of the next power of two.
    fn repeated(&self, rows: usize) -> Self {
        let height = rows.next_power_of_two();
        let mut values = vec![F::ZERO; height * self.width];
        for column in 0..self.width {
            let source = &self.values[column * self.height..][..self.live_rows];
            let target = &mut values[column * height..][..rows];
            for (value, from) in target.iter_mut().zip(source.iter().cycle()) {
                *value = *from;
            }
        }
        Self {
            values,
            height,
            width: self.width,
            live_rows: rows,
        }
    }
}

/// The periphery chips' counts on the device.
struct Counts {
    variable_range_checker: DeviceBuffer<u32>,
    range_tuple_checker: DeviceBuffer<u32>,
    bitwise_lookup: DeviceBuffer<u32>,
    sizes: [u32; 2],
}

impl Counts {
    fn new(tables: &PeripheryTables, device_ctx: &GpuDeviceCtx) -> Result<Self> {
        let zeros = Histograms::zeros(tables);
        let buffer = |length| allocate(length, &|| "the counts".to_string(), device_ctx);
        Ok(Self {
            variable_range_checker: buffer(zeros.variable_range_checker.len())?,
            range_tuple_checker: buffer(zeros.range_tuple_checker.len())?,
            bitwise_lookup: buffer(zeros.bitwise_lookup.len())?,
            sizes: tables
                .range_tuple_checker
                .map(|table| table.sizes)
                .unwrap_or_default(),
        })
    }

    fn clear(&self, device_ctx: &GpuDeviceCtx) -> Result<()> {
        self.variable_range_checker.fill_zero_on(device_ctx)?;
        self.range_tuple_checker.fill_zero_on(device_ctx)?;
        self.bitwise_lookup.fill_zero_on(device_ctx)?;
        Ok(())
    }

    fn pointers(&self) -> PeripheryCounts {
        PeripheryCounts::none()
            .with_variable_range_checker(&self.variable_range_checker)
            .with_range_tuple_checker(&self.range_tuple_checker, self.sizes)
            .with_bitwise_lookup(&self.bitwise_lookup)
    }

    fn to_host(&self, device_ctx: &GpuDeviceCtx) -> Result<Histograms> {
        Ok(Histograms {
            variable_range_checker: self.variable_range_checker.to_host_on(device_ctx)?,
            range_tuple_checker: self.range_tuple_checker.to_host_on(device_ctx)?,
            bitwise_lookup: self.bitwise_lookup.to_host_on(device_ctx)?,
        })
    }
}

struct Device {
    tables: PeripheryTables,
    counts: Counts,
    scratch: BusScratch,
    device_ctx: GpuDeviceCtx,
}

impl Device {
    fn upload_trace(&self, trace: &HostTrace) -> Result<DeviceBuffer<F>> {
        Ok(upload(
            &trace.values,
            &|| "the trace".to_string(),
            &self.device_ctx,
        )?)
    }

    /// Histograms of one launch.
    fn histograms(&self, program: &DeviceBusProgram, trace: BusTrace) -> Result<Histograms> {
        self.counts.clear(&self.device_ctx)?;
        program.launch(
            trace,
            self.counts.pointers(),
            &self.scratch,
            &self.device_ctx,
        )?;
        self.counts.to_host(&self.device_ctx)
    }
}

fn view(buffer: &DeviceBuffer<F>, height: usize, live_rows: usize) -> BusTrace {
    BusTrace {
        values: buffer.as_ptr(),
        height: height as u64,
        live_rows: live_rows as u64,
    }
}

/// Says where two histograms differ first.
fn compare(what: &str, expected: &Histograms, found: &Histograms) -> Result<()> {
    for table in [
        TableKind::VariableRangeChecker,
        TableKind::RangeTupleChecker,
        TableKind::BitwiseLookup,
    ] {
        let (expected, found) = (expected.of(table), found.of(table));
        ensure!(
            expected.len() == found.len(),
            "{what}: {table} has {} bins, expected {}",
            found.len(),
            expected.len()
        );
        if let Some(bin) = (0..expected.len()).find(|&bin| expected[bin] != found[bin]) {
            bail!(
                "{what}: bin {bin} of the {table} holds {}, expected {}",
                found[bin],
                expected[bin]
            );
        }
    }
    Ok(())
}

// ---------------------------------------------------------------------------------------------------------------------
// check

fn check(
    device: &Device,
    data: Option<PathBuf>,
    seed: u64,
    log_max_rows: u32,
    quick: bool,
) -> Result<()> {
    let mut cases = 0;
    let mut random = Random(seed);
    for log_height in 0..=log_max_rows {
        let height = 1usize << log_height;
        if quick && height > 512 {
            break;
        }
        let interactions = match log_height {
            0..=10 => 90,
            11..=16 => 24,
            _ => 4,
        };
        for values in [Values::Random, Values::Edges, Values::Equal] {
            for live_rows in [0, 1, height.div_ceil(2) + height / 5, height] {
                let live_rows = live_rows.min(height);
                let case = random_case(&mut random, interactions, height, live_rows, values);
                check_case(
                    device,
                    &format!("{values:?} values, height {height}, {live_rows} live rows"),
                    &case,
                )?;
                cases += 1;
            }
        }
    }
    println!("{cases} random programs: vm and dag give the expected histograms");
    if !quick {
        beyond_32_bits(device)?;
    }
    if let Some(data) = data {
        check_real(device, &data)?;
    }
    println!("all checks passed (seed {seed})");
    Ok(())
}

fn check_case(device: &Device, what: &str, case: &Case) -> Result<()> {
    let interactions = CountingInteractions::new(
        &case.interactions,
        &ColumnOrder::new(0..case.trace.width as u64),
        Some(IS_VALID),
        &device.tables,
    )?;
    let trace = device.upload_trace(&case.trace)?;
    let bus_trace = view(&trace, case.trace.height, case.trace.live_rows);
    for kernel in PROGRAMS {
        let program = compile(kernel, &interactions)?;
        // The default scratch, and so little that threads have to stride over the rows.
        for bus_scratch in [GpuSettings::default().bus_scratch, 1 << 20] {
            let program = DeviceBusProgram::upload(
                what,
                &program,
                &GpuSettings { bus_scratch },
                &device.device_ctx,
            )?;
            let found = device.histograms(&program, bus_trace)?;
            compare(
                &format!("{kernel}, {what}, scratch {bus_scratch}"),
                &case.expected,
                &found,
            )?;
        }
    }
    Ok(())
}

/// A column index that no 32-bit product of column and height can reach.
fn beyond_32_bits(device: &Device) -> Result<()> {
    let (height, width) = (1usize << 22, 1100usize);
    let bytes = height * width * size_of::<F>();
    let (free, _) = gpu::device::memory_info()?;
    if free < bytes + (1 << 30) {
        println!("skipped: a trace beyond 2^32 cells needs {bytes} bytes of device memory, {free} are free");
        return Ok(());
    }
    let trace: DeviceBuffer<F> = allocate(
        height * width,
        &|| "the large trace".to_string(),
        &device.device_ctx,
    )?;
    trace.fill_zero_on(&device.device_ctx)?;
    let (is_valid, value) = (width as u64 - 2, width as u64 - 1);
    let interaction = SymbolicBusInteraction {
        id: 3,
        mult: reference(is_valid),
        args: vec![reference(value), constant(13)],
    };
    // All rows zero but the last live one, whose two cells lie at the far end.
    let live_rows = height - 3;
    for column in [is_valid, value] {
        let cell = column as usize * height + live_rows - 1;
        let one = [F::ONE];
        // SAFETY: the cell lies within the buffer; the stream is synchronised by the copy back below.
        unsafe {
            openvm_cuda_common::copy::cuda_memcpy_on::<false, true>(
                trace.as_mut_ptr().add(cell).cast(),
                one.as_ptr().cast(),
                size_of::<F>(),
                &device.device_ctx,
            )?;
        }
    }
    let interactions = CountingInteractions::new(
        &[interaction],
        &ColumnOrder::new(0..width as u64),
        None,
        &device.tables,
    )?;
    let mut expected = Histograms::zeros(&device.tables);
    expected.variable_range_checker[(1 << 13) + 1 - 1] = 1;
    for kernel in PROGRAMS {
        let program = DeviceBusProgram::upload(
            "the large trace",
            &*compile(kernel, &interactions)?,
            &GpuSettings::default(),
            &device.device_ctx,
        )?;
        let found = device.histograms(&program, view(&trace, height, live_rows))?;
        compare(&format!("{kernel}, 2^32 cells and more"), &expected, &found)?;
    }
    println!("a trace of {} cells (beyond 2^32): right", height * width);
    Ok(())
}

/// Every real APC with every real trace of it.
fn check_real(device: &Device, data: &Path) -> Result<()> {
    let mut checked = 0;
    let mut folders = Vec::new();
    let mut apcs = Vec::new();
    for entry in fs::read_dir(data).wrap_err_with(|| format!("reading {}", data.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            folders.push(path);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            apcs.push(path);
        }
    }
    for folder in folders {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else {
                continue;
            };
            if path.extension().is_none_or(|extension| extension != "u32") {
                continue;
            }
            let part = |prefix: &str| {
                stem.split('_')
                    .find_map(|part| part.strip_prefix(prefix))
                    .ok_or_else(|| eyre!("{} names no {prefix}", path.display()))
            };
            let (pc, calls) = (part("pc")?, part("calls")?);
            let Some(apc_path) = apcs
                .iter()
                .find(|apc| apc.to_string_lossy().ends_with(&format!("_pc{pc}.json")))
            else {
                bail!("no APC file for {}", path.display());
            };
            let apc = ApcFile::read(apc_path)?;
            let trace = HostTrace::read(&path, apc.columns.len(), calls.parse()?)?;
            let expected = read_histograms(&folder.join(format!("hist_pc{pc}_calls{calls}.json")))?;
            let interactions = apc.interactions()?;
            let buffer = device.upload_trace(&trace)?;
            for kernel in PROGRAMS {
                let program = DeviceBusProgram::upload(
                    &apc.name,
                    &*compile(kernel, &interactions)?,
                    &GpuSettings::default(),
                    &device.device_ctx,
                )?;
                let found =
                    device.histograms(&program, view(&buffer, trace.height, trace.live_rows))?;
                compare(&format!("{kernel}, {}", path.display()), &expected, &found)?;
                checked += 1;
            }
        }
    }
    println!("{checked} launches on real traces: equal to the expected histograms");
    Ok(())
}

/// `{bus: {bin: count}}`.
fn read_histograms(path: &Path) -> Result<Histograms> {
    type Counts = std::collections::BTreeMap<String, std::collections::BTreeMap<String, u32>>;
    let text = fs::read_to_string(path).wrap_err_with(|| format!("reading {}", path.display()))?;
    let counts: Counts = serde_json::from_str(&text)?;
    let mut histograms = Histograms::zeros(&tables());
    for (bus, bins) in counts {
        let Some(table) = tables().table_of_bus(bus.parse()?) else {
            continue;
        };
        for (bin, count) in bins {
            histograms.add(table, bin.parse()?, count);
        }
    }
    Ok(histograms)
}

/// A small generator (splitmix64), so that a seed reproduces a failure anywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn field(&mut self) -> F {
        F::from_u32(self.below(F::ORDER_U32.into()) as u32)
    }
}

#[derive(Clone, Copy, Debug)]
enum Values {
    /// Uniform in each table.
    Random,
    /// The first and last bin of every bit width, and the corners of the other tables.
    Edges,
    /// One bin for all rows of an interaction: contention.
    Equal,
}

/// A random program with a trace and the histograms that it must give.
struct Case {
    interactions: Vec<SymbolicBusInteraction<BabyBearField>>,
    trace: HostTrace,
    expected: Histograms,
}

/// Column of the flag that is one on live rows.
const IS_VALID: u64 = 0;
/// Column of a flag that is one on some rows.
const FLAG: u64 = 1;
/// Column of small multiplicities.
const MULTIPLICITY: u64 = 2;
/// Columns of random field elements after these.
const FREE_COLUMNS: u64 = 6;

fn reference(column: u64) -> AlgebraicExpression<BabyBearField> {
    AlgebraicExpression::Reference(AlgebraicReference {
        name: format!("column_{column}").into(),
        id: column,
    })
}

fn constant(value: u32) -> AlgebraicExpression<BabyBearField> {
    AlgebraicExpression::Number(BabyBearField::from(value))
}

/// Builds interactions whose arguments are random expressions of degree at most 2 plus a column that corrects each to a
/// chosen value: the expected histograms come from the chosen values, and owe nothing to any evaluation of expressions.
fn random_case(
    random: &mut Random,
    interaction_count: usize,
    height: usize,
    live_rows: usize,
    values: Values,
) -> Case {
    let mut columns: Vec<Vec<F>> = Vec::new();
    let column = |mut value: Box<dyn FnMut() -> F + '_>| -> Vec<F> {
        (0..height)
            .map(|row| if row < live_rows { value() } else { F::ZERO })
            .collect()
    };
    columns.push(column(Box::new(|| F::ONE)));
    columns.push(column(Box::new(|| F::from_u32(random.below(2) as u32))));
    columns.push(column(Box::new(|| F::from_u32(random.below(4) as u32))));
    for _ in 0..FREE_COLUMNS {
        columns.push(column(Box::new(|| random.field())));
    }
    let tables = tables();
    let mut expected = Histograms::zeros(&tables);
    let mut interactions = Vec::with_capacity(interaction_count);
    for index in 0..interaction_count {
        let table = [
            TableKind::VariableRangeChecker,
            TableKind::RangeTupleChecker,
            TableKind::BitwiseLookup,
        ][random.below(3) as usize];
        let (mult, multiplicities): (_, Vec<u32>) = match random.below(5) {
            0 => (constant(1), vec![1; live_rows]),
            1 => (reference(IS_VALID), vec![1; live_rows]),
            2 => (
                reference(IS_VALID) * reference(FLAG),
                canonical(&columns[FLAG as usize][..live_rows]),
            ),
            3 => (
                reference(MULTIPLICITY),
                canonical(&columns[MULTIPLICITY as usize][..live_rows]),
            ),
            _ => (
                reference(MULTIPLICITY) + constant(5),
                canonical(&columns[MULTIPLICITY as usize][..live_rows])
                    .into_iter()
                    .map(|value| value + 5)
                    .collect(),
            ),
        };
        // A range checker's width and a lookup's selector are usually constants; sometimes they are not.
        let constant_third = random.below(4) != 0;
        let fixed = chosen(random, table, values, index);
        let rows: Vec<[u32; 3]> = (0..live_rows)
            .map(|_| match values {
                Values::Equal => fixed,
                _ => {
                    let index = random.below(1 << 20) as usize;
                    let mut row = chosen(random, table, values, index);
                    if constant_third {
                        match table {
                            TableKind::VariableRangeChecker => {
                                row[1] = fixed[1];
                                row[0] &= (1 << fixed[1]) - 1;
                            }
                            _ => row[2] = fixed[2],
                        }
                    }
                    row
                }
            })
            .collect();
        for (row, &multiplicity) in rows.iter().zip(&multiplicities) {
            let bin = tables
                .bin(table, [row[0], row[1]], row[2])
                .expect("values are chosen within the table");
            expected.add(table, bin, multiplicity);
        }
        let mut argument = |position: usize, random: &mut Random| {
            let is_third = match table {
                TableKind::VariableRangeChecker => position == 1,
                _ => position == 2,
            };
            if is_third && (constant_third || matches!(values, Values::Equal)) {
                return constant(fixed[position]);
            }
            let expression = random_expression(random, 3, 2);
            let correction: Vec<F> = (0..height)
                .map(|row| match rows.get(row) {
                    Some(wanted) => {
                        F::from_u32(wanted[position]) - evaluate(&expression, &columns, row)
                    }
                    None => F::ZERO,
                })
                .collect();
            columns.push(correction);
            expression + reference(columns.len() as u64 - 1)
        };
        let args = match table {
            TableKind::BitwiseLookup => {
                let (x, y) = (argument(0, random), argument(1, random));
                let selector = argument(2, random);
                // The third argument, x ^ y, is never needed.
                vec![x, y, constant(0), selector]
            }
            _ => vec![argument(0, random), argument(1, random)],
        };
        let id = match table {
            TableKind::VariableRangeChecker => 3,
            TableKind::RangeTupleChecker => 7,
            TableKind::BitwiseLookup => 6,
        };
        interactions.push(SymbolicBusInteraction { id, mult, args });
        // Interactions of other buses lie between those that count, and must be ignored.
        if random.below(4) == 0 {
            interactions.push(SymbolicBusInteraction {
                id: 1,
                mult: reference(IS_VALID),
                args: vec![reference(3), reference(4)],
            });
        }
    }
    let width = columns.len();
    Case {
        interactions,
        trace: HostTrace {
            values: columns.concat(),
            height,
            width,
            live_rows,
        },
        expected,
    }
}

fn canonical(values: &[F]) -> Vec<u32> {
    values.iter().map(F::as_canonical_u32).collect()
}

/// Arguments within a table: `[value, max_bits, 0]`, `[v0, v1, 0]` or `[x, y, selector]`.
fn chosen(random: &mut Random, table: TableKind, values: Values, index: usize) -> [u32; 3] {
    let edge = matches!(values, Values::Edges);
    let mut pick = |bound: u32, bit: usize| {
        if edge {
            if (index >> bit) & 1 == 0 {
                0
            } else {
                bound - 1
            }
        } else {
            random.below(bound.into()) as u32
        }
    };
    match table {
        TableKind::VariableRangeChecker => {
            let max_bits = (index / 2 % 18) as u32;
            [pick(1 << max_bits, 0), max_bits, 0]
        }
        TableKind::RangeTupleChecker => [pick(256, 0), pick(2048, 1), 0],
        TableKind::BitwiseLookup => [pick(256, 0), pick(256, 1), pick(2, 2)],
    }
}

/// A random expression over the first columns, of degree at most `degree`.
fn random_expression(
    random: &mut Random,
    depth: u32,
    degree: u32,
) -> AlgebraicExpression<BabyBearField> {
    if depth == 0 || random.below(4) == 0 {
        return if degree == 0 || random.below(3) == 0 {
            match random.below(4) {
                0 => constant(0),
                1 => constant(1),
                2 => constant(F::ORDER_U32 - 1),
                _ => constant(random.below(F::ORDER_U32.into()) as u32),
            }
        } else {
            reference(random.below(3 + FREE_COLUMNS))
        };
    }
    match random.below(7) {
        0 | 1 => {
            random_expression(random, depth - 1, degree)
                + random_expression(random, depth - 1, degree)
        }
        2 | 3 => {
            random_expression(random, depth - 1, degree)
                - random_expression(random, depth - 1, degree)
        }
        4 => -random_expression(random, depth - 1, degree),
        _ => {
            let left = random.below(u64::from(degree) + 1) as u32;
            random_expression(random, depth - 1, left)
                * random_expression(random, depth - 1, degree - left)
        }
    }
}

/// The value of an expression on one row.
fn evaluate(expression: &AlgebraicExpression<BabyBearField>, columns: &[Vec<F>], row: usize) -> F {
    use powdr_expression::{AlgebraicBinaryOperator, AlgebraicUnaryOperator};
    match expression {
        AlgebraicExpression::Number(value) => openvm_apc::bus::field::to_f(*value),
        AlgebraicExpression::Reference(reference) => columns[reference.id as usize][row],
        AlgebraicExpression::UnaryOperation(unary) => match unary.op {
            AlgebraicUnaryOperator::Minus => -evaluate(&unary.expr, columns, row),
        },
        AlgebraicExpression::BinaryOperation(binary) => {
            let left = evaluate(&binary.left, columns, row);
            let right = evaluate(&binary.right, columns, row);
            match binary.op {
                AlgebraicBinaryOperator::Add => left + right,
                AlgebraicBinaryOperator::Sub => left - right,
                AlgebraicBinaryOperator::Mul => left * right,
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// bench

#[derive(Serialize)]
struct Report {
    device: String,
    capability: u32,
    driver_version: u32,
    commit: String,
    apc: String,
    columns: usize,
    used_columns: usize,
    counted_interactions: usize,
    runs: usize,
    scratch_bytes: usize,
    programs: Vec<ProgramReport>,
    measurements: Vec<Measurement>,
}

#[derive(Serialize)]
struct ProgramReport {
    kernel: String,
    compile_milliseconds: f64,
    device_bytes: usize,
}

#[derive(Serialize)]
struct Measurement {
    rows: usize,
    /// Median GPU milliseconds of a launch, by kernel, in the order asked for.
    kernels: Vec<f64>,
    /// Median GPU milliseconds of reading every used column once.
    floor: f64,
}

impl Report {
    fn print(&self) {
        println!(
            "{}: {} columns ({} used), {} counted interactions; median of {} launches, ms",
            self.apc, self.columns, self.used_columns, self.counted_interactions, self.runs
        );
        for program in &self.programs {
            println!(
                "  {}: compiled in {:.3} ms, {} bytes on the device",
                program.kernel, program.compile_milliseconds, program.device_bytes
            );
        }
        print!("{:>9}", "rows");
        for program in &self.programs {
            print!(" {:>10} {:>7}", program.kernel, "ratio");
        }
        println!(" {:>10}", "floor");
        for measurement in &self.measurements {
            print!("{:>9}", measurement.rows);
            for time in &measurement.kernels {
                print!(" {:>10.4} {:>6.2}×", time, measurement.kernels[0] / time);
            }
            println!(" {:>10.4}", measurement.floor);
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn bench(
    device: &Device,
    info: &GpuInfo,
    apc: &ApcFile,
    trace: &HostTrace,
    rows: &[usize],
    kernels: &[String],
    runs: usize,
    settings: &GpuSettings,
) -> Result<Report> {
    ensure!(
        !kernels.is_empty() && runs > 0,
        "no kernel or no run asked for"
    );
    let interactions = apc.interactions()?;
    let used_columns = used_columns(&interactions);
    let device_ctx = &device.device_ctx;
    let columns = upload(
        &used_columns,
        &|| "the used columns".to_string(),
        device_ctx,
    )?;
    let sink: DeviceBuffer<u32> = allocate(1, &|| "the floor's sink".to_string(), device_ctx)?;
    let mut programs = Vec::new();
    let mut reports = Vec::new();
    for name in kernels {
        let start = Instant::now();
        let program = compile(name, &interactions)?;
        let compile_milliseconds = start.elapsed().as_secs_f64() * 1e3;
        let program = DeviceBusProgram::upload(&apc.name, &program, settings, device_ctx)?;
        reports.push(ProgramReport {
            kernel: name.clone(),
            compile_milliseconds,
            device_bytes: program.bytes(),
        });
        programs.push(program);
    }
    let mut measurements = Vec::new();
    for &rows in rows {
        ensure!(rows > 0, "a trace has at least one row");
        let trace = trace.repeated(rows);
        let buffer = device.upload_trace(&trace)?;
        let bus_trace = view(&buffer, trace.height, trace.live_rows);
        let mut histograms: Option<Histograms> = None;
        let mut times = Vec::new();
        for (program, name) in programs.iter().zip(kernels) {
            let found = device.histograms(program, bus_trace)?;
            match &histograms {
                Some(expected) => compare(&format!("{name}, {rows} rows"), expected, &found)?,
                None => histograms = Some(found),
            }
            times.push(median(runs, || {
                Ok(Stopwatch::time(device_ctx, || {
                    program.launch(
                        bus_trace,
                        device.counts.pointers(),
                        &device.scratch,
                        device_ctx,
                    )
                })?
                .1
                .milliseconds()?)
            })?);
        }
        let floor = median(runs, || {
            Ok(Stopwatch::time(device_ctx, || {
                column_read_floor(bus_trace, &columns, &sink, device_ctx)
            })?
            .1
            .milliseconds()?)
        })?;
        measurements.push(Measurement {
            rows,
            kernels: times,
            floor,
        });
    }
    Ok(Report {
        device: info.name.clone(),
        capability: info.capability,
        driver_version: info.driver_version,
        commit: option_env!("OPENVM_APC_COMMIT")
            .unwrap_or("unknown")
            .to_string(),
        apc: apc.name.clone(),
        columns: apc.columns.len(),
        used_columns: used_columns.len(),
        counted_interactions: interactions.interactions().len(),
        runs,
        scratch_bytes: settings.bus_scratch,
        programs: reports,
        measurements,
    })
}

/// The columns that the counted interactions read, each once, in order.
fn used_columns(interactions: &CountingInteractions) -> Vec<u32> {
    fn collect(
        expression: &AlgebraicExpression<BabyBearField>,
        columns: &ColumnOrder,
        used: &mut BTreeSet<u32>,
    ) {
        match expression {
            AlgebraicExpression::Number(_) => {}
            AlgebraicExpression::Reference(reference) => {
                used.extend(columns.index(reference.id).map(|index| index as u32));
            }
            AlgebraicExpression::UnaryOperation(unary) => collect(&unary.expr, columns, used),
            AlgebraicExpression::BinaryOperation(binary) => {
                collect(&binary.left, columns, used);
                collect(&binary.right, columns, used);
            }
        }
    }
    let mut used = BTreeSet::new();
    for interaction in interactions.interactions() {
        if let Multiplicity::Expression(expression) = &interaction.multiplicity {
            collect(expression, interactions.columns(), &mut used);
        }
        for expression in interaction.arguments.iter().chain(&interaction.selector) {
            collect(expression, interactions.columns(), &mut used);
        }
    }
    used.into_iter().collect()
}

/// The median of `runs` calls, after one that does not count.
fn median(runs: usize, mut time: impl FnMut() -> Result<f64>) -> Result<f64> {
    time()?;
    let mut times = (0..runs).map(|_| time()).collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[runs / 2])
}
