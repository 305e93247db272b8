// Structures shared by the host (`src/gpu/structs.rs`) and the kernels. Both sides pin size and offsets
// (`layout.cuh`): a change here that is not made there does not compile.
#pragma once

#include <cstdint>

#include "fp.h"
#include "layout.cuh"

// The trace of an original AIR, made from the records of all instructions of an APC that belong to it. Column-major;
// the rows of one call lie together: row `call * rows_per_call + row_in_call`.
struct OriginalTrace {
    const Fp *values;
    uint64_t height;
    uint32_t rows_per_call;
    uint32_t padding;
};
PIN_LAYOUT(OriginalTrace, 24, 8);
PIN_FIELD(OriginalTrace, values, 0);
PIN_FIELD(OriginalTrace, height, 8);
PIN_FIELD(OriginalTrace, rows_per_call, 16);
PIN_FIELD(OriginalTrace, padding, 20);

// One cell of an original trace, the same in every call: `original_traces[trace].values[column * height + row]`.
struct OriginalCell {
    uint32_t trace;
    uint32_t column;
    uint32_t row_in_call;
};
PIN_LAYOUT(OriginalCell, 12, 4);
PIN_FIELD(OriginalCell, trace, 0);
PIN_FIELD(OriginalCell, column, 4);
PIN_FIELD(OriginalCell, row_in_call, 8);

// An APC column that is a copy of a cell of an original trace.
struct Substitution {
    OriginalCell cell;
    uint32_t apc_column;
};
PIN_LAYOUT(Substitution, 16, 4);
PIN_FIELD(Substitution, cell, 0);
PIN_FIELD(Substitution, apc_column, 12);

// An APC column computed from cells of the original traces by a span of stack bytecode.
struct DerivedColumn {
    uint32_t apc_column;
    uint32_t code_start;
    uint32_t code_length;
};
PIN_LAYOUT(DerivedColumn, 12, 4);
PIN_FIELD(DerivedColumn, apc_column, 0);
PIN_FIELD(DerivedColumn, code_start, 4);
PIN_FIELD(DerivedColumn, code_length, 8);

// The multiplicity counts of the periphery chips, as u32. A table that the VM lacks has a null pointer and no bins.
struct PeripheryCounts {
    uint32_t *variable_range_checker;
    uint32_t *range_tuple_checker;
    uint32_t *bitwise_lookup;
    uint32_t variable_range_checker_bins;
    uint32_t range_tuple_sizes[2];
    uint32_t padding;
};
PIN_LAYOUT(PeripheryCounts, 40, 8);
PIN_FIELD(PeripheryCounts, variable_range_checker, 0);
PIN_FIELD(PeripheryCounts, range_tuple_checker, 8);
PIN_FIELD(PeripheryCounts, bitwise_lookup, 16);
PIN_FIELD(PeripheryCounts, variable_range_checker_bins, 24);
PIN_FIELD(PeripheryCounts, range_tuple_sizes, 28);
PIN_FIELD(PeripheryCounts, padding, 36);

// What a bus kernel reads besides its program: a column-major trace, `height` rows of which the first `live_rows` count.
struct BusTrace {
    const Fp *values;
    uint64_t height;
    uint64_t live_rows;
};
PIN_LAYOUT(BusTrace, 24, 8);
PIN_FIELD(BusTrace, values, 0);
PIN_FIELD(BusTrace, height, 8);
PIN_FIELD(BusTrace, live_rows, 16);
