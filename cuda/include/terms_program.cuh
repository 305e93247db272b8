// The `terms` bus program on the device: the host's side is `src/bus/terms`, where the records are explained.
#pragma once

#include <cstdint>

#include "layout.cuh"

// coefficient · column
struct TermsLinear {
    uint32_t column;
    uint32_t coefficient;
};
PIN_LAYOUT(TermsLinear, 8, 4);
PIN_FIELD(TermsLinear, column, 0);
PIN_FIELD(TermsLinear, coefficient, 4);

// coefficient · column · column
struct alignas(16) TermsProduct {
    uint32_t columns[2];
    uint32_t coefficient;
    uint32_t padding;
};
PIN_LAYOUT(TermsProduct, 16, 16);
PIN_FIELD(TermsProduct, columns, 0);
PIN_FIELD(TermsProduct, coefficient, 8);
PIN_FIELD(TermsProduct, padding, 12);

// A sum: its constant, and the numbers of its linear (lower half) and quadratic (upper half) terms.
struct TermsOperand {
    uint32_t constant;
    uint32_t terms;

    __device__ __forceinline__ uint32_t linear() const { return terms & 0xffff; }
    __device__ __forceinline__ uint32_t products() const { return terms >> 16; }
};
PIN_LAYOUT(TermsOperand, 8, 4);
PIN_FIELD(TermsOperand, constant, 0);
PIN_FIELD(TermsOperand, terms, 4);

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
PIN_LAYOUT(TermsInteraction, 64, 16);
PIN_FIELD(TermsInteraction, table, 0);
PIN_FIELD(TermsInteraction, flags, 4);
PIN_FIELD(TermsInteraction, first_bin, 8);
PIN_FIELD(TermsInteraction, stride, 12);
PIN_FIELD(TermsInteraction, bounds, 16);
PIN_FIELD(TermsInteraction, linear_start, 24);
PIN_FIELD(TermsInteraction, product_start, 28);
PIN_FIELD(TermsInteraction, first, 32);
PIN_FIELD(TermsInteraction, second, 40);
PIN_FIELD(TermsInteraction, multiplicity, 48);
PIN_FIELD(TermsInteraction, padding, 56);

struct TermsProgram {
    const TermsInteraction *interactions;
    const TermsLinear *linear;
    const TermsProduct *products;
    uint32_t interaction_count;
    uint32_t padding;
};
PIN_LAYOUT(TermsProgram, 32, 8);
PIN_FIELD(TermsProgram, interactions, 0);
PIN_FIELD(TermsProgram, linear, 8);
PIN_FIELD(TermsProgram, products, 16);
PIN_FIELD(TermsProgram, interaction_count, 24);
PIN_FIELD(TermsProgram, padding, 28);

// Bins of a table that every block counts in shared memory: `bins` of them from `first_bin` on (both even), two to a word,
// from word `first_word` on. No bins: the table is counted in global memory.
struct TermsPrivateBins {
    uint32_t first_bin;
    uint32_t bins;
    uint32_t first_word;
};
PIN_LAYOUT(TermsPrivateBins, 12, 4);
PIN_FIELD(TermsPrivateBins, first_bin, 0);
PIN_FIELD(TermsPrivateBins, bins, 4);
PIN_FIELD(TermsPrivateBins, first_word, 8);

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
PIN_LAYOUT(TermsLaunch, 56, 4);
PIN_FIELD(TermsLaunch, groups, 0);
PIN_FIELD(TermsLaunch, splits, 4);
PIN_FIELD(TermsLaunch, chunks_per_group, 8);
PIN_FIELD(TermsLaunch, chunks_per_warp, 12);
PIN_FIELD(TermsLaunch, shared_words, 16);
PIN_FIELD(TermsLaunch, private_bins, 20);
