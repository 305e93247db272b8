// The `terms` bus program on the device: the host's side is `src/bus/terms`, where the records are explained.
#pragma once

#include <cstddef>
#include <cstdint>

// coefficient · column
struct TermsLinear {
    uint32_t column;
    uint32_t coefficient;
};
static_assert(sizeof(TermsLinear) == 8, "TermsLinear differs from the host's");

// coefficient · column · column
struct alignas(16) TermsProduct {
    uint32_t columns[2];
    uint32_t coefficient;
    uint32_t padding;
};
static_assert(sizeof(TermsProduct) == 16 && offsetof(TermsProduct, coefficient) == 8,
              "TermsProduct differs from the host's");

// A sum: its constant, and the numbers of its linear (lower half) and quadratic (upper half) terms.
struct TermsOperand {
    uint32_t constant;
    uint32_t terms;

    __device__ __forceinline__ uint32_t linear() const { return terms & 0xffff; }
    __device__ __forceinline__ uint32_t products() const { return terms >> 16; }
};

// Counts into bin `first_bin + first * stride + second` of its table if both operands are below their bounds. The linear
// terms of `first`, `second` and `multiplicity` follow each other from `linear_start` on; likewise the quadratic ones.
struct alignas(16) TermsInteraction {
    uint32_t table;
    uint32_t flags;
    uint32_t first_bin;
    uint32_t stride;
    uint32_t bounds[2];
    uint32_t linear_start;
    uint32_t product_start;
    TermsOperand first;
    TermsOperand second;
    TermsOperand multiplicity;
    uint32_t padding[2];
};
static_assert(sizeof(TermsInteraction) == 64 && offsetof(TermsInteraction, first_bin) == 8 &&
                  offsetof(TermsInteraction, bounds) == 16 && offsetof(TermsInteraction, linear_start) == 24 &&
                  offsetof(TermsInteraction, first) == 32 && offsetof(TermsInteraction, multiplicity) == 48,
              "TermsInteraction differs from the host's");

struct TermsProgram {
    const TermsInteraction *interactions;
    const TermsLinear *linear;
    const TermsProduct *products;
    uint32_t interaction_count;
    uint32_t padding;
};
static_assert(sizeof(TermsProgram) == 32 && offsetof(TermsProgram, interaction_count) == 24,
              "TermsProgram differs from the host's");

// Bins of a table that every block counts in shared memory: `bins` of them from `first_bin` on (both even), two to a word,
// from word `first_word` on. No bins: the table is counted in global memory.
struct TermsPrivateBins {
    uint32_t first_bin;
    uint32_t bins;
    uint32_t first_word;
};
static_assert(sizeof(TermsPrivateBins) == 12, "TermsPrivateBins differs from the host's");

// How the work is split: `groups × splits` blocks; a group is `chunks_per_group` chunks of rows, a split a part of the
// interactions; a warp takes `chunks_per_warp` of them at a time with one interaction.
struct TermsLaunch {
    uint32_t groups;
    uint32_t splits;
    uint32_t chunks_per_group;
    uint32_t chunks_per_warp;
    uint32_t shared_words;
    TermsPrivateBins private_bins[3];
};
static_assert(sizeof(TermsLaunch) == 56 && offsetof(TermsLaunch, shared_words) == 16 && offsetof(TermsLaunch, private_bins) == 20,
              "TermsLaunch differs from the host's");
