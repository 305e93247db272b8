// Substitution: fills the APC columns that are copies of cells of the original AIRs' traces.
#include <cuda_runtime.h>

#include "device_structs.cuh"
#include "launcher.cuh"

namespace {

constexpr unsigned THREADS = 256;
// Rows of one column that a block writes.
constexpr unsigned ROWS_PER_BLOCK = 4 * THREADS;

// One block fills `ROWS_PER_BLOCK` rows of one APC column. The host sorts the substitutions by source column, then by
// row within the call, so that blocks that run together read the same lines of the original trace.
// Rows from `calls` on are zero: every column of the APC is written, and the buffer needs no clearing.
__global__ void __launch_bounds__(THREADS) apc_tracegen_kernel(
    Fp *__restrict__ apc_trace,
    uint64_t height,
    uint64_t calls,
    const OriginalTrace *__restrict__ original_traces,
    const Substitution *__restrict__ substitutions,
    uint32_t substitution_count
) {
    const uint32_t index = blockIdx.x % substitution_count;
    const uint64_t first_row = uint64_t(blockIdx.x / substitution_count) * ROWS_PER_BLOCK;
    const Substitution substitution = substitutions[index];
    const OriginalTrace original = original_traces[substitution.cell.trace];
    const Fp *source = original.values + uint64_t(substitution.cell.column) * original.height + substitution.cell.row_in_call;
    Fp *target = apc_trace + uint64_t(substitution.apc_column) * height;
#pragma unroll
    for (unsigned step = 0; step < ROWS_PER_BLOCK / THREADS; step++) {
        const uint64_t row = first_row + step * THREADS + threadIdx.x;
        if (row < height) {
            target[row] = row < calls ? source[row * original.rows_per_call] : Fp::zero();
        }
    }
}

} // namespace

extern "C" int _apc_tracegen(
    Fp *apc_trace,
    uint64_t height,
    uint64_t calls,
    const OriginalTrace *original_traces,
    const Substitution *substitutions,
    uint32_t substitution_count,
    cudaStream_t stream
) {
    if (substitution_count == 0 || height == 0) return cudaSuccess;
    const uint64_t blocks = div_ceil(height, ROWS_PER_BLOCK) * substitution_count;
    if (blocks > 0x7fffffffull) return cudaErrorInvalidConfiguration;
    apc_tracegen_kernel<<<unsigned(blocks), THREADS, 0, stream>>>(
        apc_trace, height, calls, original_traces, substitutions, substitution_count
    );
    return CHECK_KERNEL();
}
