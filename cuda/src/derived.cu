// Derived columns: APC columns computed from cells of the original traces (`QuotientOrZero` and the like), and constants.
#include <cuda_runtime.h>

#include "device_structs.cuh"
#include "launcher.cuh"
#include "stack_machine.cuh"

namespace {

constexpr unsigned THREADS = 128;

// One thread computes one row of one derived column. Rows from `calls` on are zero.
__global__ void __launch_bounds__(THREADS) derived_kernel(
    Fp *__restrict__ apc_trace,
    uint64_t height,
    uint64_t calls,
    const OriginalTrace *__restrict__ original_traces,
    const OriginalCell *__restrict__ cells,
    const uint32_t *__restrict__ code,
    const DerivedColumn *__restrict__ columns,
    uint32_t column_count
) {
    const DerivedColumn column = columns[blockIdx.x % column_count];
    const uint64_t row = uint64_t(blockIdx.x / column_count) * THREADS + threadIdx.x;
    if (row >= height) return;
    Fp value = Fp::fromRaw(0);
    if (row < calls) {
        value = stack_machine::evaluate(code, column.code_start, column.code_length, [&](uint32_t index) {
            const OriginalCell cell = cells[index];
            const OriginalTrace original = original_traces[cell.trace];
            return original.values[uint64_t(cell.column) * original.height + row * original.rows_per_call + cell.row_in_call];
        });
    }
    apc_trace[uint64_t(column.apc_column) * height + row] = value;
}

} // namespace

extern "C" int _apc_derived(
    Fp *apc_trace,
    uint64_t height,
    uint64_t calls,
    const OriginalTrace *original_traces,
    const OriginalCell *cells,
    const uint32_t *code,
    const DerivedColumn *columns,
    uint32_t column_count,
    cudaStream_t stream
) {
    if (column_count == 0 || height == 0) return cudaSuccess;
    const uint64_t blocks = div_ceil(height, THREADS) * column_count;
    if (blocks > 0x7fffffffull) return cudaErrorInvalidConfiguration;
    derived_kernel<<<unsigned(blocks), THREADS, 0, stream>>>(
        apc_trace, height, calls, original_traces, cells, code, columns, column_count
    );
    return CHECK_KERNEL();
}
