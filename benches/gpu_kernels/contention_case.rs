//! Many rows that count into few bins: what small random programs never drive. The loop over tiles of `terms` runs more than
//! once, its 16-bit counters in shared memory fill up and are emptied, and the threads of `dag` stride over the rows.

use eyre::{bail, ensure, Result};
use openvm_apc::bus::{
    table::TableKind,
    terms::launch::{DeviceLimits, Launch, SharedCounters, CHUNKS_PER_WARP, CHUNK_ROWS},
    BusProgram, CountingInteractions,
};

use super::{
    case::{constant, reference, Case, CaseBuilder, IS_VALID},
    programs::{compile, PROGRAMS},
};

/// Rows. At 2^14 every block of a GPU with 132 multiprocessors would have a single chunk of rows; the loop over tiles of 8
/// chunks needs more than 8 × 128 rows a multiprocessor.
pub const HEIGHT: usize = 1 << 18;
/// Not all of them, so that the last group of rows is cut off in the middle of a chunk.
pub const LIVE_ROWS: usize = HEIGHT - 5;
/// Interactions that count into one bin.
const INTERACTIONS: usize = 16;
/// Bytes of scratch to launch `dag` with: fewer than one slot for every row takes.
pub const BUS_SCRATCH: usize = 128 << 10;

/// From where on a private counter is emptied: the kernel's `DRAIN_FROM`.
const DRAIN_FROM: u64 = 1 << 14;

/// Width and value of the interactions whose rows are all equal: warps count those in registers, and add sums.
const ALL_EQUAL: [u32; 2] = [12, 2748];
/// Of those where every fourth row differs from its neighbours': their warps find no frequent bin to count in registers, and
/// add row by row.
const MOSTLY_EQUAL: [u32; 2] = [13, 4660];
/// The operands of the bitwise lookups.
const OPERANDS: [u32; 2] = [171, 205];
/// No value is below it, so that all can be split in two.
const PART: u32 = 100;

fn mostly(value: u32, row: usize) -> u32 {
    match row % 4 {
        // The first of a lane's four rows: another value in each lane.
        0 => PART + (row / 4 % 32) as u32,
        _ => value,
    }
}

/// The case: of each kind as many interactions, with operands of every shape that the kernel tells apart.
pub fn contention_case() -> Case {
    let mut builder = CaseBuilder::new(HEIGHT, LIVE_ROWS);
    let part = builder.column(&|_| PART);
    type OfRow = fn(u32, usize) -> u32;
    let kinds: [([u32; 2], OfRow); 2] = [(ALL_EQUAL, |value, _| value), (MOSTLY_EQUAL, mostly)];
    for ([max_bits, value], of_row) in kinds {
        let values = |row| of_row(value, row);
        let whole = builder.column(&values);
        let rest = builder.column(&|row| values(row) - PART);
        for index in 0..INTERACTIONS {
            let operand = match index % 3 {
                0 => whole.clone(),
                1 => rest.clone() + part.clone(),
                _ => whole.clone() * reference(IS_VALID),
            };
            builder.lookup(
                TableKind::VariableRangeChecker,
                [operand, constant(max_bits), constant(0)],
                &|row| [values(row), max_bits, 0],
            );
        }
    }
    let x = builder.column(&|row| mostly(OPERANDS[0], row));
    let y = builder.column(&|_| OPERANDS[1]);
    for _ in 0..INTERACTIONS {
        builder.lookup(
            TableKind::BitwiseLookup,
            [x.clone(), y.clone(), constant(1)],
            &|row| [mostly(OPERANDS[0], row), OPERANDS[1], 1],
        );
    }
    builder.build()
}

/// Whether the case, launched on such a device with [`BUS_SCRATCH`] and counters in shared memory from the first addition on,
/// drives what it is for.
///
/// # Errors
/// What it would not drive: the case has to grow with the devices.
pub fn ensure_driven(interactions: &CountingInteractions, limits: &DeviceLimits) -> Result<()> {
    ensure!(
        limits.private_from_additions == 0,
        "counters in shared memory have to be used from the first addition on"
    );
    for name in PROGRAMS {
        match &*compile(name, interactions)? {
            BusProgram::Vm(_) => {}
            BusProgram::Dag(program) => ensure!(
                LIVE_ROWS * program.slots().max(1) * 4 > BUS_SCRATCH,
                "{name}: {} slots of {LIVE_ROWS} rows fit {BUS_SCRATCH} bytes, so no thread would stride over the rows",
                program.slots()
            ),
            BusProgram::Terms(program) => {
                let shared = SharedCounters::choose(program, limits.shared_memory);
                let count = program.interactions().len();
                let launch = Launch::plan(LIVE_ROWS as u64, count, &shared, limits);
                ensure!(
                    u64::from(launch.chunks_per_group) > CHUNKS_PER_WARP,
                    "a block of this GPU ({} multiprocessors) would have {} chunks, so the loop over tiles would run once",
                    limits.multiprocessors,
                    launch.chunks_per_group
                );
                let bins = shared.private_bins[TableKind::VariableRangeChecker as usize].bins;
                let last = (2 << MOSTLY_EQUAL[0]) - 2;
                ensure!(
                    launch.shared_words > 0 && last < bins,
                    "this GPU ({} bytes of shared memory a block) would count nothing of the case there",
                    limits.shared_memory
                );
                // Three of four rows at least count into the same bin; a split has a part of the interactions.
                let rows = u64::from(launch.chunks_per_group) * CHUNK_ROWS / 4 * 3;
                let added = rows * (INTERACTIONS as u64 / u64::from(launch.splits.max(1)));
                if added <= DRAIN_FROM {
                    bail!(
                        "a block of this GPU ({} multiprocessors) would count to {added}, and no counter would be emptied \
                         before its end, which is done from {DRAIN_FROM} on",
                        limits.multiprocessors
                    );
                }
            }
        }
    }
    Ok(())
}
