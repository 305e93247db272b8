//! The three periphery tables: which bus reaches them, bin arithmetic, bounds; host histograms.

use serde::{Deserialize, Serialize};

/// The variable range checker: lookups `[value, max_bits]` say `value < 2^max_bits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VariableRangeCheckerTable {
    /// Index of the bus.
    pub bus_id: u64,
    /// The largest `max_bits` that the table has rows for.
    pub range_max_bits: u32,
}

impl VariableRangeCheckerTable {
    /// Number of bins: `2^(range_max_bits + 1)`.
    pub fn bins(&self) -> usize {
        2 << self.range_max_bits
    }

    /// The bin of `[value, max_bits]`, `(1 << max_bits) + value - 1`, or `None` if the table has no such row.
    pub fn bin(&self, value: u32, max_bits: u32) -> Option<usize> {
        (max_bits <= self.range_max_bits && u64::from(value) < 1 << max_bits)
            .then(|| (1usize << max_bits) + value as usize - 1)
    }
}

/// The two-tuple range checker: lookups `[v0, v1]` say `v0 < sizes[0]` and `v1 < sizes[1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RangeTupleCheckerTable {
    /// Index of the bus.
    pub bus_id: u64,
    /// Exclusive bounds of the two values.
    pub sizes: [u32; 2],
}

impl RangeTupleCheckerTable {
    /// Number of bins: `sizes[0] * sizes[1]`.
    pub fn bins(&self) -> usize {
        self.sizes[0] as usize * self.sizes[1] as usize
    }

    /// The bin of `[v0, v1]`, `v0 * sizes[1] + v1`, or `None` if the table has no such row.
    pub fn bin(&self, v0: u32, v1: u32) -> Option<usize> {
        (v0 < self.sizes[0] && v1 < self.sizes[1])
            .then(|| v0 as usize * self.sizes[1] as usize + v1 as usize)
    }
}

/// The 8-bit bitwise lookup: `[x, y, z, selector]` says that `x` and `y` are bytes and, for selector 1,
/// that `z = x ^ y` (for selector 0, that `z = 0`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BitwiseLookupTable {
    /// Index of the bus.
    pub bus_id: u64,
}

impl BitwiseLookupTable {
    /// Bits of an operand.
    pub const OPERAND_BITS: u32 = 8;
    /// Bins of one half (range, then xor).
    pub const HALF_BINS: usize = 1 << (2 * Self::OPERAND_BITS);
    /// Number of bins: the range half, then the xor half.
    pub const BINS: usize = 2 * Self::HALF_BINS;

    /// The bin of `[x, y, _, selector]`: `x * 256 + y`, plus 65,536 for selector 1; `None` if the table
    /// has no such row.
    pub fn bin(&self, x: u32, y: u32, selector: u32) -> Option<usize> {
        (x < 1 << Self::OPERAND_BITS && y < 1 << Self::OPERAND_BITS && selector < 2).then(|| {
            ((x as usize) << Self::OPERAND_BITS) + y as usize + selector as usize * Self::HALF_BINS
        })
    }
}

/// The tables that a VM configuration has, with their buses and sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PeripheryTables {
    /// The variable range checker; every OpenVM system has one.
    pub variable_range_checker: Option<VariableRangeCheckerTable>,
    /// The two-tuple range checker, if an extension brought it.
    pub range_tuple_checker: Option<RangeTupleCheckerTable>,
    /// The bitwise lookup, if an extension brought it.
    pub bitwise_lookup: Option<BitwiseLookupTable>,
}

impl PeripheryTables {
    /// Those of OpenVM's default configuration, with the buses that it gives them.
    pub const OPENVM_DEFAULT: Self = Self {
        variable_range_checker: Some(VariableRangeCheckerTable {
            bus_id: 3,
            range_max_bits: 17,
        }),
        range_tuple_checker: Some(RangeTupleCheckerTable {
            bus_id: 7,
            sizes: [256, 2048],
        }),
        bitwise_lookup: Some(BitwiseLookupTable { bus_id: 6 }),
    };
}

/// What decides about the tables' bins: whoever counts with a program needs tables of the same sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSizes {
    /// Bins of the variable range checker; zero without one.
    pub variable_range_checker_bins: usize,
    /// Exclusive bounds of the two-tuple range checker; zeros without one.
    pub range_tuple_sizes: [u32; 2],
    /// Whether there is a bitwise lookup, which has one size only.
    pub has_bitwise_lookup: bool,
}

impl std::fmt::Display for TableSizes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [first, second] = self.range_tuple_sizes;
        write!(
            formatter,
            "a variable range checker of {} bins, a 2-tuple range checker of {first} × {second}, {} bitwise lookup",
            self.variable_range_checker_bins,
            if self.has_bitwise_lookup { "a" } else { "no" },
        )
    }
}

/// One of the three tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u32)]
pub enum TableKind {
    /// The variable range checker.
    VariableRangeChecker = 0,
    /// The two-tuple range checker.
    RangeTupleChecker = 1,
    /// The bitwise lookup.
    BitwiseLookup = 2,
}

impl TableKind {
    /// All tables, in the order of their numbers.
    pub const ALL: [TableKind; 3] = [
        TableKind::VariableRangeChecker,
        TableKind::RangeTupleChecker,
        TableKind::BitwiseLookup,
    ];
}

impl std::fmt::Display for TableKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            TableKind::VariableRangeChecker => "variable range checker",
            TableKind::RangeTupleChecker => "2-tuple range checker",
            TableKind::BitwiseLookup => "bitwise lookup",
        })
    }
}

impl PeripheryTables {
    /// The bus that reaches a table, if there is the table.
    pub fn bus_of_table(&self, table: TableKind) -> Option<u64> {
        match table {
            TableKind::VariableRangeChecker => {
                self.variable_range_checker.map(|table| table.bus_id)
            }
            TableKind::RangeTupleChecker => self.range_tuple_checker.map(|table| table.bus_id),
            TableKind::BitwiseLookup => self.bitwise_lookup.map(|table| table.bus_id),
        }
    }

    /// The table that a bus reaches, if it counts at all.
    pub fn table_of_bus(&self, bus_id: u64) -> Option<TableKind> {
        TableKind::ALL
            .into_iter()
            .find(|&table| self.bus_of_table(table) == Some(bus_id))
    }

    /// What decides about their bins.
    pub fn sizes(&self) -> TableSizes {
        TableSizes {
            variable_range_checker_bins: self
                .variable_range_checker
                .map_or(0, |table| table.bins()),
            range_tuple_sizes: self.range_tuple_checker.map_or([0; 2], |table| table.sizes),
            has_bitwise_lookup: self.bitwise_lookup.is_some(),
        }
    }

    /// Bins of each table, by [`TableKind`]; zero where it is absent.
    pub fn bins(&self) -> [usize; 3] {
        [
            self.variable_range_checker.map_or(0, |table| table.bins()),
            self.range_tuple_checker.map_or(0, |table| table.bins()),
            self.bitwise_lookup.map_or(0, |_| BitwiseLookupTable::BINS),
        ]
    }

    /// The bin of two bin arguments (`[value, max_bits]`, `[v0, v1]` or `[x, y]` with `selector`) in a table, or
    /// `None` if the table is absent or has no such row.
    pub fn bin(&self, table: TableKind, arguments: [u32; 2], selector: u32) -> Option<usize> {
        let [first, second] = arguments;
        match table {
            TableKind::VariableRangeChecker => self.variable_range_checker?.bin(first, second),
            TableKind::RangeTupleChecker => self.range_tuple_checker?.bin(first, second),
            TableKind::BitwiseLookup => self.bitwise_lookup?.bin(first, second, selector),
        }
    }
}

/// Counts per bin, one vector per table (empty where the table is absent).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Histograms {
    /// Bins of the variable range checker.
    pub variable_range_checker: Vec<u32>,
    /// Bins of the two-tuple range checker.
    pub range_tuple_checker: Vec<u32>,
    /// Bins of the bitwise lookup: the range half, then the xor half.
    pub bitwise_lookup: Vec<u32>,
}

impl Histograms {
    /// All counts zero.
    pub fn zeros(tables: &PeripheryTables) -> Self {
        let [variable_range_checker, range_tuple_checker, bitwise_lookup] = tables.bins();
        Self {
            variable_range_checker: vec![0; variable_range_checker],
            range_tuple_checker: vec![0; range_tuple_checker],
            bitwise_lookup: vec![0; bitwise_lookup],
        }
    }

    /// The bins of one table.
    pub fn of(&self, table: TableKind) -> &[u32] {
        match table {
            TableKind::VariableRangeChecker => &self.variable_range_checker,
            TableKind::RangeTupleChecker => &self.range_tuple_checker,
            TableKind::BitwiseLookup => &self.bitwise_lookup,
        }
    }

    /// Adds `multiplicity` to a bin. Counts wrap modulo `2^32`, as the device's do.
    pub fn add(&mut self, table: TableKind, bin: usize, multiplicity: u32) {
        let counts = match table {
            TableKind::VariableRangeChecker => &mut self.variable_range_checker,
            TableKind::RangeTupleChecker => &mut self.range_tuple_checker,
            TableKind::BitwiseLookup => &mut self.bitwise_lookup,
        };
        counts[bin] = counts[bin].wrapping_add(multiplicity);
    }

    /// Adds another histogram of the same tables.
    pub fn merge(&mut self, other: &Self) {
        for (counts, more) in [
            (
                &mut self.variable_range_checker,
                &other.variable_range_checker,
            ),
            (&mut self.range_tuple_checker, &other.range_tuple_checker),
            (&mut self.bitwise_lookup, &other.bitwise_lookup),
        ] {
            for (count, &more) in counts.iter_mut().zip(more) {
                *count = count.wrapping_add(more);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_of_every_bit_width() {
        let table = VariableRangeCheckerTable {
            bus_id: 3,
            range_max_bits: 17,
        };
        for max_bits in 0..=17 {
            let last = (1u32 << max_bits) - 1;
            assert_eq!(table.bin(0, max_bits), Some((1 << max_bits) - 1));
            assert_eq!(table.bin(last, max_bits), Some((2 << max_bits) - 2));
            assert_eq!(table.bin(last + 1, max_bits), None);
        }
        assert_eq!(table.bin(0, 18), None);
        assert_eq!(table.bin((1 << 17) - 1, 17), Some(table.bins() - 2));
    }

    #[test]
    fn bounds_of_tuples_and_bytes() {
        let tuple = RangeTupleCheckerTable {
            bus_id: 7,
            sizes: [256, 2048],
        };
        assert_eq!(tuple.bin(255, 2047), Some(tuple.bins() - 1));
        assert_eq!(tuple.bin(256, 0), None);
        assert_eq!(tuple.bin(0, 2048), None);
        let bitwise = BitwiseLookupTable { bus_id: 6 };
        assert_eq!(bitwise.bin(255, 255, 1), Some(BitwiseLookupTable::BINS - 1));
        assert_eq!(bitwise.bin(1, 2, 0), Some(258));
        assert_eq!(bitwise.bin(256, 0, 0), None);
        assert_eq!(bitwise.bin(0, 0, 2), None);
    }
}
