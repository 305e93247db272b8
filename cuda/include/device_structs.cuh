// Structures shared by the host (`src/gpu/structs.rs`) and the kernels. Both sides pin size and offsets: a change here
// that is not made there does not compile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fp.h"

// The trace of an original AIR, made from the records of all instructions of an APC that belong to it. Column-major;
// the rows of one call lie together: row `call * rows_per_call + row_in_call`.
struct OriginalTrace {
    const Fp *values;
    uint64_t height;
    uint32_t rows_per_call;
    uint32_t padding;
};
static_assert(sizeof(OriginalTrace) == 24 && alignof(OriginalTrace) == 8, "OriginalTrace differs from the host's");
static_assert(offsetof(OriginalTrace, height) == 8 && offsetof(OriginalTrace, rows_per_call) == 16,
              "OriginalTrace differs from the host's");

// One cell of an original trace, the same in every call: `original_traces[trace].values[column * height + row]`.
struct OriginalCell {
    uint32_t trace;
    uint32_t column;
    uint32_t row_in_call;
};
static_assert(sizeof(OriginalCell) == 12 && alignof(OriginalCell) == 4, "OriginalCell differs from the host's");
static_assert(offsetof(OriginalCell, column) == 4 && offsetof(OriginalCell, row_in_call) == 8,
              "OriginalCell differs from the host's");

// An APC column that is a copy of a cell of an original trace.
struct Substitution {
    OriginalCell cell;
    uint32_t apc_column;
};
static_assert(sizeof(Substitution) == 16 && alignof(Substitution) == 4, "Substitution differs from the host's");
static_assert(offsetof(Substitution, apc_column) == 12, "Substitution differs from the host's");

// An APC column computed from cells of the original traces by a span of stack bytecode.
struct DerivedColumn {
    uint32_t apc_column;
    uint32_t code_start;
    uint32_t code_length;
};
static_assert(sizeof(DerivedColumn) == 12 && alignof(DerivedColumn) == 4, "DerivedColumn differs from the host's");
static_assert(offsetof(DerivedColumn, code_start) == 4 && offsetof(DerivedColumn, code_length) == 8,
              "DerivedColumn differs from the host's");

// The multiplicity counts of the periphery chips, as u32. A table that the VM lacks has a null pointer and no bins.
struct PeripheryCounts {
    uint32_t *variable_range_checker;
    uint32_t *range_tuple_checker;
    uint32_t *bitwise_lookup;
    uint32_t variable_range_checker_bins;
    uint32_t range_tuple_sizes[2];
    uint32_t padding;
};
static_assert(sizeof(PeripheryCounts) == 40 && alignof(PeripheryCounts) == 8, "PeripheryCounts differs from the host's");
static_assert(offsetof(PeripheryCounts, range_tuple_checker) == 8 && offsetof(PeripheryCounts, bitwise_lookup) == 16 &&
                  offsetof(PeripheryCounts, variable_range_checker_bins) == 24 &&
                  offsetof(PeripheryCounts, range_tuple_sizes) == 28,
              "PeripheryCounts differs from the host's");

// What a bus kernel reads besides its program: a column-major trace, `height` rows of which the first `live_rows` count.
struct BusTrace {
    const Fp *values;
    uint64_t height;
    uint64_t live_rows;
};
static_assert(sizeof(BusTrace) == 24 && alignof(BusTrace) == 8, "BusTrace differs from the host's");
static_assert(offsetof(BusTrace, height) == 8 && offsetof(BusTrace, live_rows) == 16, "BusTrace differs from the host's");
