// Applying one bus interaction to the periphery tables: the bins of `src/bus/table.rs`, on the device.
#pragma once

#include <cstdint>

#include "device_structs.cuh"
#include "fp.h"
#include "primitives/histogram.cuh"

namespace periphery {

enum Table : uint32_t {
    VARIABLE_RANGE_CHECKER = 0,
    RANGE_TUPLE_CHECKER = 1,
    BITWISE_LOOKUP = 2,
};

// The flag of interactions whose multiplicity is 1 on every live row.
constexpr uint32_t MULTIPLICITY_IS_ONE = 1;

// Rows of the range half of the bitwise table for 8-bit operands; the xor half follows.
constexpr uint32_t BITWISE_ROWS = 1u << 16;

// Adds `multiplicity` to a bin. A bin outside the table, which only a trace that breaks its constraints can ask for, is
// ignored: the proof then fails on the unbalanced bus, and `vm::mock` says where.
__device__ __forceinline__ void add(uint32_t *counts, uint32_t bins, uint32_t bin, uint32_t multiplicity) {
    if (multiplicity == 1) {
        lookup::Histogram(counts, bins).add_count(bin);
    } else if (multiplicity != 0 && bin < bins) {
        atomicAdd(&counts[bin], multiplicity);
    }
}

// Arguments are canonical integers: `(value, max_bits, -)`, `(v0, v1, -)` or `(x, y, selector)`.
__device__ __forceinline__ void apply(
    const PeripheryCounts &counts,
    uint32_t table,
    uint32_t first,
    uint32_t second,
    uint32_t selector,
    uint32_t multiplicity
) {
    switch (table) {
    case VARIABLE_RANGE_CHECKER:
        // A width of 32 or more, or a value beyond its width, must not wrap into another width's bins; and the widths of the
        // table end before its last bin, which is padding.
        if (second < 31 && (2u << second) <= counts.variable_range_checker_bins && first < (1u << second)) {
            add(counts.variable_range_checker, counts.variable_range_checker_bins, (1u << second) + first - 1,
                multiplicity);
        }
        break;
    case RANGE_TUPLE_CHECKER:
        if (first < counts.range_tuple_sizes[0] && second < counts.range_tuple_sizes[1]) {
            add(counts.range_tuple_checker, counts.range_tuple_sizes[0] * counts.range_tuple_sizes[1],
                first * counts.range_tuple_sizes[1] + second, multiplicity);
        }
        break;
    case BITWISE_LOOKUP:
        if (first < 256 && second < 256 && selector < 2) {
            add(counts.bitwise_lookup, 2 * BITWISE_ROWS, selector * BITWISE_ROWS + first * 256 + second, multiplicity);
        }
        break;
    }
}

} // namespace periphery
