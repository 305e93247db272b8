// The `terms` bus kernel: a warp takes one interaction and many rows. Operands are flat sums over columns, evaluated in
// registers; counts are collected per warp (the bin that most of its lanes meet), per block (shared memory, for the parts of
// the tables that fit there) and then in the periphery chips' buffers.
#include <cuda_runtime.h>

#include <type_traits>

#include "device_structs.cuh"
#include "launcher.cuh"
#include "terms_counters.cuh"
#include "terms_operands.cuh"
#include "terms_program.cuh"

namespace {

using namespace terms;

// Chunks that a warp takes in a row with one interaction, at most. Bounds what a warp adds to a counter at once.
constexpr unsigned TILE_CHUNKS = 8;
// Threads of a block that counts in global memory, and of one that counts in shared memory.
constexpr unsigned GLOBAL_THREADS = 256;
constexpr unsigned PRIVATE_THREADS = 896;

// What one warp adds before it looks, and what all of them do: see `terms_counters.cuh`.
constexpr unsigned ADDED_BY_WARP = TILE_CHUNKS * 4 * WARP;
static_assert(DRAIN_FROM + (PRIVATE_THREADS / WARP + 1) * ADDED_BY_WARP < (1u << 16), "a private counter could overflow");

// The bin that many lanes of a warp meet: counted in registers, and added once.
struct FrequentBin {
    uint32_t bin = NO_BIN;
    uint32_t count = 0;
    bool chosen = false;

    // Tries two lanes' bins; takes the better one if `enough` lanes agree.
    __device__ __forceinline__ void choose(uint32_t candidate, unsigned enough) {
        const unsigned lanes = __ballot_sync(ALL_LANES, candidate != NO_BIN);
        if (lanes == 0) return;
        chosen = true;
        const uint32_t first = __shfl_sync(ALL_LANES, candidate, __ffs(lanes) - 1);
        const uint32_t last = __shfl_sync(ALL_LANES, candidate, 31 - __clz(lanes));
        const unsigned with_first = __popc(__ballot_sync(ALL_LANES, candidate == first));
        const unsigned with_last = __popc(__ballot_sync(ALL_LANES, candidate == last));
        if (max(with_first, with_last) >= enough) bin = with_last > with_first ? last : first;
    }

    // Takes its bin out of a lane's bins.
    template <unsigned ROWS> __device__ __forceinline__ void collect(uint32_t (&bins)[ROWS]) {
        if (bin == NO_BIN) return;
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            if (bins[r] == bin) {
                count++;
                bins[r] = NO_BIN;
            }
        }
    }
};

// Counts one interaction on the chunks `[begin, end)`.
template <unsigned ROWS, typename Operands, typename Destination>
__device__ __forceinline__ void apply(
    const BusTrace &trace,
    const TermsProgram &program,
    const TermsInteraction &interaction,
    const Destination &destination,
    uint32_t begin,
    uint32_t end
) {
    constexpr bool ANY = std::is_same_v<Operands, AnyOperands<ROWS>>;
    const unsigned lane = threadIdx.x % WARP;
    const uint32_t *trace_values = reinterpret_cast<const uint32_t *>(trace.values);
    const uint32_t live_rows = uint32_t(trace.live_rows);
    const Operands operands(program, interaction, trace);
    const uint32_t first_bin = interaction.first_bin - destination.first_bin, stride = interaction.stride;
    const uint32_t bounds[2] = {interaction.bounds[0], interaction.bounds[1]};
    // Lanes beyond the live rows read row 0, and count nothing.
    const auto values_of = [&](uint32_t row) { return trace_values + (row < live_rows ? row : 0); };

    FrequentBin frequent;
    typename Destination::template Pending<ROWS> pending = {};
    uint32_t row = (begin * WARP + lane) * ROWS;
    const uint32_t end_row = (end * WARP + lane) * ROWS;
    typename Operands::Loaded loaded = operands.load(values_of(row));
#pragma unroll 1
    while (row < end_row) {
        Rows<ROWS> first, second;
        operands.evaluate(values_of(row), loaded, first, second);
        uint32_t bins[ROWS];
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            const bool counts = row + r < live_rows && first.at[r] < bounds[0] && second.at[r] < bounds[1];
            bins[r] = counts ? first_bin + first.at[r] * stride + second.at[r] : NO_BIN;
        }
        row += WARP * ROWS;
        // The next chunk's columns are on their way while this one is counted, and its additions while that is evaluated.
        if (row < end_row) loaded = operands.load(values_of(row));
        if (ANY && !(interaction.flags & periphery::MULTIPLICITY_IS_ONE)) {
            if constexpr (ANY) {
                const Rows<ROWS> amounts = operands.multiplicity(values_of(row - WARP * ROWS));
#pragma unroll
                for (unsigned r = 0; r < ROWS; r++) {
                    if (bins[r] != NO_BIN && amounts.at[r] != 0) atomicAdd(&destination.counts[bins[r]], amounts.at[r]);
                }
            }
        } else {
            if (!frequent.chosen) frequent.choose(bins[0], Destination::FREQUENT_LANES);
            frequent.collect(bins);
            if (Operands::SIMPLE) destination.settle(pending);
            destination.add(bins, pending);
            if (!Operands::SIMPLE) destination.settle(pending);
        }
    }
    if (Operands::SIMPLE) destination.settle(pending);
    if (frequent.bin != NO_BIN) {
        const uint32_t amount = __reduce_add_sync(ALL_LANES, frequent.count);
        if (lane == 0) destination.add_amount(frequent.bin, amount);
    }
}

// Counts one interaction, by its shape.
template <unsigned ROWS, typename Destination>
__device__ __forceinline__ void apply_shape(
    const BusTrace &trace,
    const TermsProgram &program,
    const TermsInteraction &interaction,
    const Destination &destination,
    uint32_t begin,
    uint32_t end
) {
    // Traces of one or two rows need no shape of their own.
    const bool simple = ROWS > 1 && (interaction.flags & periphery::MULTIPLICITY_IS_ONE) &&
                        interaction.first.products() == 0 && interaction.second.products() == 0;
    const uint32_t first = interaction.first.linear(), second = interaction.second.linear();
    if (simple && first == 1 && second == 1) {
        apply<ROWS, TwoColumns<ROWS>>(trace, program, interaction, destination, begin, end);
    } else if (simple && first == 1 && second == 0) {
        apply<ROWS, FirstOperand<ROWS, true>>(trace, program, interaction, destination, begin, end);
    } else if (simple && first > 1 && second == 0) {
        apply<ROWS, FirstOperand<ROWS, false>>(trace, program, interaction, destination, begin, end);
    } else {
        apply<ROWS, AnyOperands<ROWS>>(trace, program, interaction, destination, begin, end);
    }
}

template <unsigned ROWS, unsigned THREADS, bool PRIVATE>
__global__ void __launch_bounds__(THREADS, PRIVATE ? 1 : 3) apc_apply_bus_terms_kernel(
    const BusTrace trace,
    const TermsProgram program,
    const TermsLaunch launch,
    const PeripheryCounts counts
) {
    extern __shared__ uint32_t shared_counters[];
    if constexpr (PRIVATE) {
        for (uint32_t word = threadIdx.x; word < launch.shared_words; word += THREADS) shared_counters[word] = 0;
        __syncthreads();
    }
    const uint32_t group = blockIdx.x / launch.splits;
    const uint32_t split = blockIdx.x % launch.splits;
    const uint32_t first_interaction = uint64_t(program.interaction_count) * split / launch.splits;
    const uint32_t last_interaction = uint64_t(program.interaction_count) * (split + 1) / launch.splits;
    const uint32_t chunks = uint32_t((trace.live_rows + ROWS * WARP - 1) / (ROWS * WARP));
    const uint32_t first_chunk = group * launch.chunks_per_group;
    const uint32_t last_chunk = min(first_chunk + launch.chunks_per_group, chunks);
    // Tiles one after the other, so that the interactions that share a column read it at about the same time.
    for (uint32_t tile = first_chunk; tile < last_chunk; tile += TILE_CHUNKS) {
        const uint32_t tile_end = min(tile + TILE_CHUNKS, last_chunk);
        const uint32_t parts = (tile_end - tile + launch.chunks_per_warp - 1) / launch.chunks_per_warp;
        const uint32_t items = (last_interaction - first_interaction) * parts;
        for (uint32_t item = threadIdx.x / WARP; item < items; item += THREADS / WARP) {
            const TermsInteraction &interaction = program.interactions[first_interaction + item / parts];
            const uint32_t begin = tile + (item % parts) * launch.chunks_per_warp;
            const uint32_t end = min(begin + launch.chunks_per_warp, tile_end);
            uint32_t *table = table_counts(counts, interaction.table);
            if constexpr (PRIVATE) {
                const TermsPrivateBins own = private_bins(launch, interaction.table);
                const uint32_t last_bin = interaction.first_bin + (interaction.bounds[0] - 1) * interaction.stride +
                                          interaction.bounds[1] - 1;
                if (interaction.first_bin >= own.first_bin && last_bin < own.first_bin + own.bins) {
                    const PrivateCounters counters = {own.first_bin, table + own.first_bin, shared_counters + own.first_word};
                    apply_shape<ROWS>(trace, program, interaction, counters, begin, end);
                    continue;
                }
            }
            apply_shape<ROWS>(trace, program, interaction, GlobalCounts{table}, begin, end);
        }
    }
    if constexpr (PRIVATE) {
        __syncthreads();
        for (uint32_t word = threadIdx.x; word < launch.shared_words; word += THREADS) {
            const uint32_t pair = shared_counters[word];
            if (pair != 0) add_pair(launch, counts, word, pair & 0xffff, pair >> 16);
        }
    }
}

template <unsigned ROWS, unsigned THREADS, bool PRIVATE>
int launch_kernel(
    const BusTrace &trace,
    const TermsProgram &program,
    const TermsLaunch &launch,
    const PeripheryCounts &counts,
    cudaStream_t stream
) {
    const auto kernel = apc_apply_bus_terms_kernel<ROWS, THREADS, PRIVATE>;
    const size_t shared_bytes = PRIVATE ? size_t(launch.shared_words) * sizeof(uint32_t) : 0;
    if constexpr (PRIVATE) {
        const cudaError_t status =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));
        if (status != cudaSuccess) return status;
    }
    // Chunks are planned for four rows a lane: with one, they may not reach the last live row.
    if (uint64_t(launch.groups) * launch.chunks_per_group * ROWS * WARP < trace.live_rows) return cudaErrorInvalidValue;
    const uint64_t blocks = uint64_t(launch.groups) * launch.splits;
    if (blocks == 0 || blocks > 0x7fffffffull) return cudaErrorInvalidConfiguration;
    kernel<<<unsigned(blocks), THREADS, shared_bytes, stream>>>(trace, program, launch, counts);
    return CHECK_KERNEL();
}

} // namespace

// Has the driver load the kernels, which it would else do in the middle of the first launch of each.
extern "C" int _apc_apply_bus_terms_load() {
    cudaFuncAttributes attributes;
    cudaError_t status = cudaFuncGetAttributes(&attributes, apc_apply_bus_terms_kernel<1, GLOBAL_THREADS, false>);
    if (status == cudaSuccess) {
        status = cudaFuncGetAttributes(&attributes, apc_apply_bus_terms_kernel<4, GLOBAL_THREADS, false>);
    }
    if (status == cudaSuccess) {
        status = cudaFuncGetAttributes(&attributes, apc_apply_bus_terms_kernel<4, PRIVATE_THREADS, true>);
    }
    return status;
}

extern "C" int _apc_apply_bus_terms(
    BusTrace trace,
    TermsProgram program,
    TermsLaunch launch,
    PeripheryCounts counts,
    cudaStream_t stream
) {
    if (program.interaction_count == 0 || trace.live_rows == 0) return cudaSuccess;
    // Rows are numbered in 32 bits; BabyBear has no domain as large.
    if (trace.height > 0x80000000ull) return cudaErrorInvalidValue;
    if (launch.chunks_per_warp == 0 || launch.chunks_per_warp > TILE_CHUNKS) return cudaErrorInvalidValue;
    // Loads of four rows are aligned where the height is a multiple of four. Of the heights of traces, 1 and 2 are not.
    if (trace.height % 4 != 0) {
        return launch_kernel<1, GLOBAL_THREADS, false>(trace, program, launch, counts, stream);
    }
    if (launch.shared_words == 0) {
        return launch_kernel<4, GLOBAL_THREADS, false>(trace, program, launch, counts, stream);
    }
    return launch_kernel<4, PRIVATE_THREADS, true>(trace, program, launch, counts, stream);
}

// Warps of a block: of one that counts in global memory, and of one that counts in shared memory.
extern "C" uint32_t _apc_apply_bus_terms_warps(bool counts_in_shared_memory) {
    return (counts_in_shared_memory ? PRIVATE_THREADS : GLOBAL_THREADS) / WARP;
}
