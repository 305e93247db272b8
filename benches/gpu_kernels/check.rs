//! `check`: the kernels against what is known without them.

use std::path::{Path, PathBuf};

use clap::Args;
use eyre::{bail, ensure, Result};
use openvm_apc::{
    bus::{table::TableKind, ColumnOrder, CountingInteractions, Histograms, F},
    gpu::{self, memory::allocate, DeviceBusProgram, GpuSettings},
};
use openvm_cuda_common::d_buffer::DeviceBuffer;
use p3_field::PrimeCharacteristicRing;
use powdr_autoprecompiles::symbolic_machine::SymbolicBusInteraction;

use super::{
    case::{constant, reference, Case},
    contention_case::{self, contention_case},
    device::{view, Device},
    edge_case::{self, edge_case},
    files::TraceFiles,
    programs::{compile, PROGRAMS, TABLES},
    random_case::{random_case, Random, Values},
};

/// Largest height with `--quick`.
const QUICK_HEIGHT: usize = 512;

/// What to check.
#[derive(Args)]
pub struct CheckArguments {
    /// A folder that `cli-openvm execute --apc-traces` wrote: APCs `apc_*_pcPC.json` and, in `traces_*/`, traces
    /// `…_pcPC_callsC_hH_wW.u32` with expected histograms `hist_pcPC_callsC.json`.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Seed of the random programs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Largest height of random programs, as a power of two.
    #[arg(long, default_value_t = 20)]
    log_max_rows: u32,
    /// Small random programs, and one of few interactions on 2^18 rows: for compute-sanitizer.
    #[arg(long)]
    quick: bool,
}

/// Runs all checks.
pub fn check(device: &Device, arguments: &CheckArguments) -> Result<()> {
    // The default settings, and others: so little scratch that the threads of `dag` have to stride over the rows, and
    // `terms` counting in shared memory at every height.
    let settings = [
        GpuSettings::default(),
        GpuSettings {
            bus_scratch: 1 << 20,
            private_from_additions: 0,
        },
    ];
    check_random(device, arguments, &settings)?;
    for (height, live_rows) in [(64, edge_case::ROWS), (1024, 1001)] {
        let case = edge_case(height, live_rows);
        edge_case::ensure_edges(&case.expected)?;
        let what = format!("edges, height {height}, {live_rows} live rows");
        check_case(device, &what, &case, &settings)?;
    }
    println!(
        "all {} edges of the tables: right",
        edge_case::edge_bins().len()
    );
    check_contention(device)?;
    if !arguments.quick {
        beyond_32_bits(device)?;
    }
    if let Some(data) = &arguments.data {
        check_real(device, data)?;
    }
    println!("all checks passed (seed {})", arguments.seed);
    Ok(())
}

fn check_random(
    device: &Device,
    arguments: &CheckArguments,
    settings: &[GpuSettings],
) -> Result<()> {
    let mut cases = 0;
    let mut random = Random(arguments.seed);
    for log_height in 0..=arguments.log_max_rows {
        let height = 1usize << log_height;
        if arguments.quick && height > QUICK_HEIGHT {
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
                let what = format!("{values:?} values, height {height}, {live_rows} live rows");
                check_case(device, &what, &case, settings)?;
                cases += 1;
            }
        }
    }
    println!(
        "{cases} random programs: {} give the expected histograms",
        PROGRAMS.join(", ")
    );
    Ok(())
}

/// Few interactions that count into few bins, at a height where this drives what random programs do not.
fn check_contention(device: &Device) -> Result<()> {
    let settings = GpuSettings {
        bus_scratch: contention_case::BUS_SCRATCH,
        private_from_additions: 0,
    };
    let case = contention_case();
    let limits = gpu::device::limits(settings.private_from_additions)?;
    contention_case::ensure_driven(&case.counting_interactions()?, &limits)?;
    check_case(device, "contention", &case, &[settings])?;
    println!(
        "{} interactions on {} rows that count into few bins: right",
        case.interactions.len(),
        case.trace.live_rows
    );
    Ok(())
}

/// Every program with every one of the settings.
fn check_case(device: &Device, what: &str, case: &Case, settings: &[GpuSettings]) -> Result<()> {
    let interactions = case.counting_interactions()?;
    let trace = device.upload_trace(&case.trace)?;
    let bus_trace = view(&trace, case.trace.height, case.trace.live_rows);
    for kernel in PROGRAMS {
        let program = compile(kernel, &interactions)?;
        for settings in settings {
            let program = DeviceBusProgram::upload(what, &program, settings, &device.device_ctx)?;
            let found = device.counts_of(&program, bus_trace)?;
            compare(
                &format!("{kernel}, {what}, {settings:?}"),
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
        &TABLES,
    )?;
    let mut expected = Histograms::zeros(&TABLES);
    expected.variable_range_checker[(1 << 13) + 1 - 1] = 1;
    for kernel in PROGRAMS {
        let program = DeviceBusProgram::upload(
            "the large trace",
            &*compile(kernel, &interactions)?,
            &GpuSettings::default(),
            &device.device_ctx,
        )?;
        let found = device.counts_of(&program, view(&trace, height, live_rows))?;
        compare(&format!("{kernel}, 2^32 cells and more"), &expected, &found)?;
    }
    println!("a trace of {} cells (beyond 2^32): right", height * width);
    Ok(())
}

/// Every real trace, as `cli-openvm execute --apc-traces` wrote it.
fn check_real(device: &Device, data: &Path) -> Result<()> {
    let mut launches = 0;
    for files in TraceFiles::all(data)? {
        let real = files.read()?;
        let interactions = real.apc.interactions()?;
        let buffer = device.upload_trace(&real.trace)?;
        for kernel in PROGRAMS {
            let program = DeviceBusProgram::upload(
                &real.apc.name,
                &*compile(kernel, &interactions)?,
                &GpuSettings::default(),
                &device.device_ctx,
            )?;
            let bus_trace = view(&buffer, real.trace.height, real.trace.live_rows);
            let found = device.counts_of(&program, bus_trace)?;
            compare(
                &format!("{kernel}, {}", files.trace.display()),
                &real.expected,
                &found,
            )?;
            launches += 1;
        }
    }
    ensure!(
        launches > 0,
        "{} led to no launch: nothing was checked",
        data.display()
    );
    println!("{launches} launches on real traces: equal to the expected histograms");
    Ok(())
}

/// Says where two histograms differ first.
pub fn compare(what: &str, expected: &Histograms, found: &Histograms) -> Result<()> {
    for table in TableKind::ALL {
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
