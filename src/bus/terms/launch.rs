//! How a launch of the `terms` kernel is split over blocks, and which bins its blocks count in shared memory.
//!
//! A table's counts are many (2^17 bitwise bins), and adding to global memory is what limits a kernel at large heights. A
//! block that counts in shared memory first pays for clearing the counters and for adding them up: worth it once it counts
//! much. Below that, the chip is filled by splitting rows and interactions as finely as warps go.

use super::{Program, MULTIPLICITY_IS_ONE};
use crate::{
    bus::table::{BitwiseLookupTable, TableKind},
    layout::device_layout,
};

/// Rows that a warp takes at once: four consecutive ones in each of 32 lanes.
pub const CHUNK_ROWS: u64 = 128;

/// Chunks that a warp takes at most one after another with one interaction: the kernel's `TILE_CHUNKS`.
pub const CHUNKS_PER_WARP: u64 = 8;

/// Pieces of work for each warp of a block, at least: the last ones then leave few warps waiting.
const ITEMS_PER_WARP: u64 = 4;

/// Warps on a multiprocessor from which on more rows are put on a warp rather than on more warps.
const FULL_WARPS: u64 = 64;

/// What of a GPU decides about a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a block may have.
    pub shared_memory: usize,
    /// Warps of a block that counts in global memory.
    pub global_warps: u32,
    /// Warps of a block that counts in shared memory.
    pub private_warps: u32,
    /// Additions (rows × interactions that could count there) from which on blocks count in shared memory.
    pub private_from_additions: u64,
}

/// Bins of a table that every block counts in shared memory: two to a 32-bit word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PrivateBins {
    /// The first one; even.
    pub first_bin: u32,
    /// How many; even, and zero if the table is counted in global memory.
    pub bins: u32,
    /// The word of shared memory that holds the first two.
    pub first_word: u32,
}

/// How a launch is split: into `groups × splits` blocks, a group being `chunks_per_group` chunks of [`CHUNK_ROWS`] rows
/// and a split an equal part of the interactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Launch {
    /// Groups of rows.
    pub groups: u32,
    /// Parts of the interactions.
    pub splits: u32,
    /// Chunks of a group; the last group may have fewer.
    pub chunks_per_group: u32,
    /// Chunks that a warp takes at a time.
    pub chunks_per_warp: u32,
    /// Words of shared memory; none if the blocks count in global memory.
    pub shared_words: u32,
    /// For each table, by [`TableKind`].
    pub private_bins: [PrivateBins; 3],
}

device_layout!(PrivateBins: size 12, align 4 { first_bin: 0, bins: 4, first_word: 8 });
device_layout!(Launch: size 56, align 4 {
    groups: 0, splits: 4, chunks_per_group: 8, chunks_per_warp: 12, shared_words: 16, private_bins: 20,
});

/// Which bins the blocks of an APC's launches count in shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedCounters {
    /// Words of shared memory.
    pub words: u32,
    /// For each table, by [`TableKind`].
    pub private_bins: [PrivateBins; 3],
    /// Interactions that count there.
    pub interactions: usize,
}

/// Counters to a word.
const BINS_PER_WORD: u32 = 2;
/// The kernel permutes counters within this many words.
const WORD_ALIGNMENT: u32 = 32;

impl SharedCounters {
    /// The choice that counts most interactions of the program in `shared_memory` bytes: of the variable range checker a
    /// prefix (all widths up to some), of the bitwise lookup either half or both, the two-tuple range checker whole or not
    /// at all.
    pub fn choose(program: &Program, shared_memory: usize) -> Self {
        let counted: Vec<(u32, [usize; 2])> = program
            .interactions()
            .iter()
            .filter(|interaction| interaction.flags & MULTIPLICITY_IS_ONE != 0)
            .filter_map(|interaction| Some((interaction.table, interaction.bins()?)))
            .collect();
        let candidates = |table: TableKind, ranges: Vec<[usize; 2]>| -> Vec<Candidate> {
            ranges
                .into_iter()
                .map(|[first_bin, bins]| Candidate {
                    first_bin: first_bin as u32,
                    bins: bins as u32,
                    interactions: counted
                        .iter()
                        .filter(|(other, [first, last])| {
                            *other == table as u32
                                && *first >= first_bin
                                && *last < first_bin + bins
                        })
                        .count(),
                })
                .filter(|candidate| candidate.interactions > 0)
                .chain([Candidate::default()])
                .collect()
        };
        let tables = program.tables();
        let widths = tables
            .variable_range_checker
            .map_or(0..0, |table| 0..table.range_max_bits + 1);
        let variable = candidates(
            TableKind::VariableRangeChecker,
            widths.map(|max_bits| [0, 2 << max_bits]).collect(),
        );
        let tuple = candidates(
            TableKind::RangeTupleChecker,
            tables
                .range_tuple_checker
                .iter()
                .map(|table| [0, table.bins()])
                .filter(|[_, bins]| bins % 2 == 0 && u32::try_from(*bins).is_ok())
                .collect(),
        );
        const HALF: usize = BitwiseLookupTable::HALF_BINS;
        let bitwise = candidates(
            TableKind::BitwiseLookup,
            vec![[0, HALF], [HALF, HALF], [0, 2 * HALF]],
        );
        let mut best = Self::default();
        for &variable in &variable {
            for &tuple in &tuple {
                for &bitwise in &bitwise {
                    let choice = Self::of([variable, tuple, bitwise]);
                    let fits = choice.words as usize * size_of::<u32>() <= shared_memory;
                    let rank =
                        |choice: &Self| (choice.interactions, std::cmp::Reverse(choice.words));
                    if fits && rank(&choice) > rank(&best) {
                        best = choice;
                    }
                }
            }
        }
        best
    }

    fn of(candidates: [Candidate; 3]) -> Self {
        let mut words = 0;
        let private_bins = candidates.map(|candidate| {
            let first_word = words;
            words += (candidate.bins / BINS_PER_WORD).next_multiple_of(WORD_ALIGNMENT);
            PrivateBins {
                first_bin: candidate.first_bin,
                bins: candidate.bins,
                first_word,
            }
        });
        Self {
            words,
            private_bins,
            interactions: candidates
                .iter()
                .map(|candidate| candidate.interactions)
                .sum(),
        }
    }
}

/// A range of a table's bins, and how many interactions count within.
#[derive(Clone, Copy, Default)]
struct Candidate {
    first_bin: u32,
    bins: u32,
    interactions: usize,
}

impl Launch {
    /// Splits `live_rows` rows of `interactions` interactions; neither is zero.
    pub fn plan(
        live_rows: u64,
        interactions: usize,
        shared: &SharedCounters,
        limits: &DeviceLimits,
    ) -> Self {
        let multiprocessors = u64::from(limits.multiprocessors.max(1));
        let interactions = interactions as u64;
        let chunks = live_rows.div_ceil(CHUNK_ROWS);
        let additions = live_rows.saturating_mul(shared.interactions as u64);
        if shared.words > 0 && additions >= limits.private_from_additions {
            // One block on each multiprocessor.
            let chunks_per_group = chunks.div_ceil(multiprocessors);
            let groups = chunks.div_ceil(chunks_per_group);
            let warps = u64::from(limits.private_warps.max(1));
            let splits = (multiprocessors / groups).clamp(1, interactions.div_ceil(warps));
            let interactions_per_block = interactions.div_ceil(splits);
            let chunks_per_warp = (chunks_per_group.min(CHUNKS_PER_WARP) * interactions_per_block)
                / (warps * ITEMS_PER_WARP);
            return Self {
                groups: groups as u32,
                splits: splits as u32,
                chunks_per_group: chunks_per_group as u32,
                chunks_per_warp: chunks_per_warp.clamp(1, CHUNKS_PER_WARP) as u32,
                shared_words: shared.words,
                private_bins: shared.private_bins,
            };
        }
        let warps = chunks.saturating_mul(interactions);
        let chunks_per_group = (warps / (multiprocessors * FULL_WARPS)).clamp(1, CHUNKS_PER_WARP);
        Self {
            groups: chunks.div_ceil(chunks_per_group) as u32,
            splits: interactions.div_ceil(limits.global_warps.max(1).into()) as u32,
            chunks_per_group: chunks_per_group as u32,
            chunks_per_warp: chunks_per_group as u32,
            shared_words: 0,
            private_bins: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use powdr_autoprecompiles::{
        expression::{AlgebraicExpression, AlgebraicReference},
        symbolic_machine::SymbolicBusInteraction,
    };
    use powdr_number::BabyBearField;

    use super::*;
    use crate::bus::{
        table::{RangeTupleCheckerTable, VariableRangeCheckerTable},
        ColumnOrder, CountingInteractions, PeripheryTables,
    };

    const H200: DeviceLimits = DeviceLimits {
        multiprocessors: 132,
        shared_memory: 227 << 10,
        global_warps: 8,
        private_warps: 28,
        private_from_additions: 5 << 17,
    };

    fn column(id: u64) -> AlgebraicExpression<BabyBearField> {
        AlgebraicExpression::Reference(AlgebraicReference {
            name: format!("column_{id}").into(),
            id,
        })
    }

    fn program(interactions: &[(u64, Vec<u32>)]) -> Program {
        let number = |value: u32| AlgebraicExpression::Number(BabyBearField::from(value));
        let interactions: Vec<_> = interactions
            .iter()
            .map(|(id, constants)| SymbolicBusInteraction {
                id: *id,
                mult: number(1),
                args: std::iter::once(column(0))
                    .chain(constants.iter().map(|&value| number(value)))
                    .collect(),
            })
            .collect();
        let tables = PeripheryTables {
            variable_range_checker: Some(VariableRangeCheckerTable {
                bus_id: 3,
                range_max_bits: 17,
            }),
            range_tuple_checker: Some(RangeTupleCheckerTable {
                bus_id: 7,
                sizes: [16, 32],
            }),
            bitwise_lookup: Some(BitwiseLookupTable { bus_id: 6 }),
        };
        let counting =
            CountingInteractions::new(&interactions, &ColumnOrder::new([0]), None, &tables)
                .expect("well-formed interactions");
        Program::compile(&counting).expect("small interactions")
    }

    #[test]
    fn the_most_used_bins_go_into_shared_memory() {
        let range = |max_bits| (3, vec![max_bits]);
        let bitwise = |selector| (6, vec![1, 0, selector]);
        let mut interactions = vec![range(12), range(14), range(17), bitwise(0), (7, vec![5])];
        interactions.extend(vec![bitwise(1); 3]);
        let chosen = SharedCounters::choose(&program(&interactions), H200.shared_memory);
        // The xor half (128 KiB), all widths up to 14 (64 KiB), the small tuple table (1 KiB): 12, 14, tuple and 3 xor.
        assert_eq!(chosen.interactions, 6);
        assert_eq!(
            chosen.private_bins.map(|own| (own.first_bin, own.bins)),
            [(0, 2 << 14), (0, 512), (1 << 16, 1 << 16)]
        );
        assert_eq!(chosen.words, (1 << 14) + 256 + (1 << 15));
        // They do not overlap.
        assert_eq!(
            chosen.private_bins.map(|own| own.first_word),
            [0, 1 << 14, (1 << 14) + 256]
        );
        // Less room: the xor half no longer fits.
        let small = SharedCounters::choose(&program(&interactions), 99 << 10);
        assert_eq!(small.interactions, 3);
        assert!(small.words as usize * 4 <= 99 << 10);
        assert_eq!(
            SharedCounters::choose(&program(&interactions), 0),
            SharedCounters::default()
        );
        assert_eq!(
            SharedCounters::choose(&program(&[]), H200.shared_memory),
            SharedCounters::default()
        );
    }

    /// Every chunk lies in one group, every interaction in one split, no block is idle.
    #[test]
    fn blocks_cover_the_work() {
        let shared =
            SharedCounters::choose(&program(&vec![(3, vec![8]); 1000]), H200.shared_memory);
        for live_rows in [
            1,
            2,
            127,
            128,
            129,
            240,
            2047,
            2048,
            8192,
            16897,
            65536,
            131_040,
            1 << 22,
        ] {
            for interactions in [1usize, 7, 8, 9, 55, 1474, 9539] {
                let launch = Launch::plan(live_rows, interactions, &shared, &H200);
                let chunks = live_rows.div_ceil(CHUNK_ROWS);
                let (groups, each) = (u64::from(launch.groups), u64::from(launch.chunks_per_group));
                assert!(groups * each >= chunks && (groups - 1) * each < chunks);
                assert!((1..=interactions as u64).contains(&launch.splits.into()));
                assert!((1..=CHUNKS_PER_WARP).contains(&launch.chunks_per_warp.into()));
                if launch.shared_words > 0 {
                    assert!(launch.groups * launch.splits <= H200.multiprocessors);
                    assert!(live_rows * shared.interactions as u64 >= H200.private_from_additions);
                } else {
                    assert!(interactions.div_ceil(launch.splits as usize) <= 8);
                }
            }
        }
        // The whole chip works at the heights of real launches.
        let launch = Launch::plan(8192, 1474, &shared, &H200);
        assert_eq!((launch.groups, launch.splits), (64, 2));
        let launch = Launch::plan(131_040, 1474, &shared, &H200);
        assert_eq!((launch.groups, launch.chunks_per_group), (128, 8));
        assert_eq!(launch.chunks_per_warp, 8);
        // Few interactions: rows keep the warps busy.
        let launch = Launch::plan(131_040, 55, &shared, &H200);
        assert_eq!((launch.groups, launch.chunks_per_warp), (128, 3));
    }
}
