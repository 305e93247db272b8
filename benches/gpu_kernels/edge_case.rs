//! The first and the last bin of every bit width, and the corners of the other tables: all of them, in every run.

use eyre::{ensure, Result};
use openvm_apc::bus::{table::TableKind, Histograms};

use super::case::{constant, Case, CaseBuilder};

/// Rows that it takes to meet every edge.
pub const ROWS: usize = 36;
/// The largest bit width of OpenVM's default configuration.
const MAX_BITS: u32 = 17;
/// The bounds of its two-tuple range checker.
const TUPLE: [u32; 2] = [256, 2048];
/// The bounds of a bitwise lookup's operands.
const BYTES: [u32; 2] = [256, 256];

/// One of four corners: the smallest or largest value of each.
fn corner(bounds: [u32; 2], number: usize) -> [u32; 2] {
    [0, 1].map(|position| match (number >> position) & 1 {
        0 => 0,
        _ => bounds[position] - 1,
    })
}

/// The smallest or the largest value of so many bits.
fn end(max_bits: u32, number: usize) -> u32 {
    match number % 2 {
        0 => 0,
        _ => (1 << max_bits) - 1,
    }
}

/// A case that counts into every edge bin, with constant and with variable widths and selectors. `live_rows` is at least
/// [`ROWS`].
pub fn edge_case(height: usize, live_rows: usize) -> Case {
    assert!(live_rows >= ROWS, "{live_rows} rows do not meet every edge");
    let mut builder = CaseBuilder::new(height, live_rows);
    for max_bits in 0..=MAX_BITS {
        let value = builder.column(&|row| end(max_bits, row));
        builder.lookup(
            TableKind::VariableRangeChecker,
            [value, constant(max_bits), constant(0)],
            &|row| [end(max_bits, row), max_bits, 0],
        );
    }
    // Row by row another width: all 18, with either end.
    let width = |row: usize| (row / 2) as u32 % (MAX_BITS + 1);
    let value = builder.column(&|row| end(width(row), row));
    let max_bits = builder.column(&width);
    builder.lookup(
        TableKind::VariableRangeChecker,
        [value, max_bits, constant(0)],
        &|row| [end(width(row), row), width(row), 0],
    );

    let tuple = [0, 1].map(|position| builder.column(&|row| corner(TUPLE, row)[position]));
    let [first, second] = tuple;
    builder.lookup(
        TableKind::RangeTupleChecker,
        [first, second, constant(0)],
        &|row| {
            let [first, second] = corner(TUPLE, row);
            [first, second, 0]
        },
    );

    let [x, y] = [0, 1].map(|position| builder.column(&|row| corner(BYTES, row)[position]));
    let selector = |row: usize| (row / 4) as u32 % 2;
    let variable = builder.column(&selector);
    type Selector<'a> = &'a dyn Fn(usize) -> u32;
    let selectors: [(_, Selector); 3] = [
        (constant(0), &|_| 0),
        (constant(1), &|_| 1),
        (variable, &selector),
    ];
    for (argument, selector) in selectors {
        builder.lookup(
            TableKind::BitwiseLookup,
            [x.clone(), y.clone(), argument],
            &|row| {
                let [x, y] = corner(BYTES, row);
                [x, y, selector(row)]
            },
        );
    }
    builder.build()
}

/// The bins at the edges, written out from the tables' definition (docs/bus-programs.md) rather than by their code.
pub fn edge_bins() -> Vec<(TableKind, usize)> {
    let widths = (0..=MAX_BITS).flat_map(|max_bits| [(1 << max_bits) - 1, (2 << max_bits) - 2]);
    let tuples = [0, 2047, 255 * 2048, 255 * 2048 + 2047];
    let bytes = [0, 255, 255 * 256, 255 * 256 + 255];
    let halves = [0, 65_536].into_iter();
    let bitwise = halves.flat_map(|half| bytes.map(|bin| half + bin));
    widths
        .map(|bin| (TableKind::VariableRangeChecker, bin))
        .chain(tuples.map(|bin| (TableKind::RangeTupleChecker, bin)))
        .chain(bitwise.map(|bin| (TableKind::BitwiseLookup, bin)))
        .collect()
}

/// Whether a kernel that gives these counts has met every edge.
///
/// # Errors
/// The first edge bin without a count.
pub fn ensure_edges(expected: &Histograms) -> Result<()> {
    for (table, bin) in edge_bins() {
        ensure!(
            expected.of(table)[bin] > 0,
            "the edge case never counts into bin {bin} of the {table}: it would not notice a kernel that gets it wrong"
        );
    }
    Ok(())
}
