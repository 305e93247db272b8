// The floor that bus kernels are measured against: reads every used column once, and does nothing else.
#include <cuda_runtime.h>

#include "device_structs.cuh"
#include "launcher.cuh"

namespace {

constexpr unsigned THREADS = 256;
constexpr unsigned LOADS_PER_THREAD = 4;

__device__ __forceinline__ void store_if_impossible(uint32_t value, uint32_t *sink) {
    // Field elements are below 2^31, so a combination by `or` never has all bits set: the loads cannot be dropped,
    // and nothing is ever stored.
    if (value == 0xffffffffu) *sink = value;
}

// `Vector` is uint4 (four rows a load) where the height allows it, else uint32_t.
template <typename Vector>
__global__ void __launch_bounds__(THREADS) column_read_floor_kernel(
    const uint32_t *__restrict__ trace,
    uint64_t height,
    uint64_t vectors,
    const uint32_t *__restrict__ columns,
    uint32_t column_count,
    uint32_t *sink
) {
    const uint32_t column = columns[blockIdx.x % column_count];
    const uint64_t first = uint64_t(blockIdx.x / column_count) * (THREADS * LOADS_PER_THREAD) + threadIdx.x;
    const Vector *source = reinterpret_cast<const Vector *>(trace + uint64_t(column) * height);
    uint32_t combined = 0;
#pragma unroll
    for (unsigned step = 0; step < LOADS_PER_THREAD; step++) {
        const uint64_t position = first + step * THREADS;
        if (position < vectors) {
            const Vector loaded = source[position];
            if constexpr (sizeof(Vector) == sizeof(uint32_t)) {
                combined |= loaded;
            } else {
                combined |= loaded.x | loaded.y | loaded.z | loaded.w;
            }
        }
    }
    store_if_impossible(combined, sink);
}

} // namespace

extern "C" int _column_read_floor(
    BusTrace trace,
    const uint32_t *columns,
    uint32_t column_count,
    uint32_t *sink,
    cudaStream_t stream
) {
    if (column_count == 0 || trace.live_rows == 0) return cudaSuccess;
    const bool wide = trace.height % 4 == 0;
    const uint64_t vectors = wide ? div_ceil(trace.live_rows, 4) : trace.live_rows;
    const uint64_t blocks = div_ceil(vectors, THREADS * LOADS_PER_THREAD) * column_count;
    if (blocks > 0x7fffffffull) return cudaErrorInvalidConfiguration;
    const uint32_t *values = reinterpret_cast<const uint32_t *>(trace.values);
    if (wide) {
        column_read_floor_kernel<uint4>
            <<<unsigned(blocks), THREADS, 0, stream>>>(values, trace.height, vectors, columns, column_count, sink);
    } else {
        column_read_floor_kernel<uint32_t>
            <<<unsigned(blocks), THREADS, 0, stream>>>(values, trace.height, vectors, columns, column_count, sink);
    }
    return CHECK_KERNEL();
}
