// Where `terms` counts: in the periphery chips' buffers, or first in counters that a block has in shared memory.
#pragma once

#include "device_structs.cuh"
#include "periphery.cuh"
#include "terms_program.cuh"

namespace terms {

constexpr unsigned WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr uint32_t NO_BIN = 0xffffffffu;

__device__ __forceinline__ uint32_t *table_counts(const PeripheryCounts &counts, uint32_t table) {
    return table == periphery::VARIABLE_RANGE_CHECKER ? counts.variable_range_checker
           : table == periphery::RANGE_TUPLE_CHECKER  ? counts.range_tuple_checker
                                                      : counts.bitwise_lookup;
}

// Selected rather than indexed: an index that is not known beforehand would put the parameters into thread-local memory.
__device__ __forceinline__ TermsPrivateBins private_bins(const TermsLaunch &launch, uint32_t table) {
    return table == periphery::VARIABLE_RANGE_CHECKER ? launch.private_bins[0]
           : table == periphery::RANGE_TUPLE_CHECKER  ? launch.private_bins[1]
                                                      : launch.private_bins[2];
}

// Both destinations: `add` adds to the bins of a lane's rows (NO_BIN is none) relative to `first_bin`, and `settle` has to
// follow before the next `add`.

// A table's counts in global memory. Additions there are slow, so lanes with the same bin make one.
struct GlobalCounts {
    // Lanes in agreement from which on a frequent bin is worth counting apart.
    static constexpr unsigned FREQUENT_LANES = 2;
    static constexpr uint32_t first_bin = 0;
    uint32_t *counts;

    template <unsigned COUNT> struct Pending {};

    template <unsigned COUNT> __device__ __forceinline__ void add(const uint32_t (&bins)[COUNT], Pending<COUNT> &) const {
#pragma unroll
        for (unsigned r = 0; r < COUNT; r++) {
            if (bins[r] != NO_BIN) lookup::Histogram(counts, NO_BIN).add_count(bins[r]);
        }
    }

    template <unsigned COUNT> __device__ __forceinline__ void settle(const Pending<COUNT> &) const {}

    __device__ __forceinline__ void add_amount(uint32_t bin, uint32_t amount) const { atomicAdd(&counts[bin], amount); }
};

// A block's private counters are 16 bits wide, two to a word. Whoever adds reads what it added to, and if the counter had
// reached DRAIN_FROM before, moves all of it to global memory before it adds to any counter again. So a counter is below
// DRAIN_FROM when the last addition finds it so; it then holds that addition, and what other warps add before they look.
constexpr uint32_t DRAIN_FROM = 1u << 14;

// The part of a table that a block counts privately.
struct PrivateCounters {
    static constexpr unsigned FREQUENT_LANES = 6;
    uint32_t first_bin;
    // The counts from `first_bin` on, in global memory.
    uint32_t *counts;
    // In shared memory.
    uint32_t *counters;

    // Spreads bins that differ by multiples of 64 over the banks; a permutation of each 32 words, and its own inverse.
    __device__ static __forceinline__ uint32_t bank_spread(uint32_t word) { return word ^ ((word >> 7) & 31); }

    __device__ __forceinline__ uint32_t *word(uint32_t bin) const { return counters + bank_spread(bin >> 1); }
    __device__ static __forceinline__ uint32_t shift(uint32_t bin) { return 16 * (bin & 1); }

    __device__ static __forceinline__ void drain(uint32_t *word, uint32_t shift, uint32_t *count) {
        uint32_t seen = *reinterpret_cast<volatile uint32_t *>(word);
        while (true) {
            const uint32_t counter = (seen >> shift) & 0xffff;
            if (counter < DRAIN_FROM) return;
            const uint32_t before = atomicCAS(word, seen, seen - (counter << shift));
            if (before == seen) {
                atomicAdd(count, counter);
                return;
            }
            seen = before;
        }
    }

    template <unsigned COUNT> struct Pending {
        uint32_t bins[COUNT];
        // What the words held before.
        uint32_t words[COUNT];
    };

    template <unsigned COUNT>
    __device__ __forceinline__ void add(const uint32_t (&bins)[COUNT], Pending<COUNT> &pending) const {
#pragma unroll
        for (unsigned r = 0; r < COUNT; r++) {
            pending.bins[r] = bins[r];
            pending.words[r] = 0;
            if (bins[r] != NO_BIN) pending.words[r] = atomicAdd(word(bins[r]), (bins[r] & 1) * 0xffff + 1);
        }
    }

    // Looks at both counters of each word: the neighbour's is only looked at too often.
    template <unsigned COUNT> __device__ __forceinline__ void settle(const Pending<COUNT> &pending) const {
        constexpr uint32_t FULL = (0x10000 - DRAIN_FROM) * 0x10001;
        uint32_t combined = 0;
#pragma unroll
        for (unsigned r = 0; r < COUNT; r++) combined |= pending.words[r];
        if ((combined & FULL) == 0) return;
#pragma unroll
        for (unsigned r = 0; r < COUNT; r++) {
            if (pending.words[r] & FULL) drain(word(pending.bins[r]), shift(pending.bins[r]), counts + pending.bins[r]);
        }
    }

    __device__ __forceinline__ void add_amount(uint32_t bin, uint32_t amount) const {
        const uint32_t before = atomicAdd(word(bin), amount << shift(bin));
        if (((before >> shift(bin)) & 0xffff) >= DRAIN_FROM) drain(word(bin), shift(bin), counts + bin);
    }
};

// Adds to the counts of the two bins that a word of private counters is for. Both at once: a count below 2^32 does not
// carry into the next.
__device__ __forceinline__ void
add_pair(const TermsLaunch &launch, const PeripheryCounts &counts, uint32_t word, uint32_t even, uint32_t odd) {
#pragma unroll
    for (uint32_t table = 0; table < 3; table++) {
        const TermsPrivateBins own = launch.private_bins[table];
        // Words that only fill up a region hold zeros.
        const uint32_t pair = PrivateCounters::bank_spread(word - own.first_word);
        if (word >= own.first_word && pair < own.bins / 2) {
            auto *pairs = reinterpret_cast<unsigned long long *>(table_counts(counts, table) + own.first_bin);
            atomicAdd(pairs + pair, even | (uint64_t(odd) << 32));
        }
    }
}

} // namespace terms
