// Operands of `terms` interactions: sums over columns, for the rows that a lane has at a time.
#pragma once

#include "device_structs.cuh"
#include "fp.h"
#include "terms_program.cuh"

namespace terms {

// ---- arithmetic -----------------------------------------------------------------------------------------------------
// Columns are in Montgomery form (x · 2^32 mod P), coefficients canonical. A 64-bit sum of their products, kept below
// P · 2^32, gives the canonical value by one Montgomery reduction.

constexpr uint32_t MODULUS = Fp::P;
// Inverse of P modulo 2^32.
constexpr uint32_t MODULUS_INVERSE = Fp::M;
// 2^32 mod P: the constant 1 in Montgomery form.
constexpr uint32_t MONTGOMERY_ONE = uint32_t((uint64_t(1) << 32) % Fp::P);
static_assert(uint32_t(MODULUS * MODULUS_INVERSE) == 1, "not the inverse of the modulus");

// A constant and this many terms stay below P · 2^32 by themselves: factors are below P.
constexpr unsigned FREE_TERMS = 2;
static_assert(uint64_t(FREE_TERMS) * MODULUS + MONTGOMERY_ONE <= (uint64_t(1) << 32), "a sum could exceed P * 2^32");

// sum / 2^32 mod P, in [0, P), for sum < P · 2^32.
__device__ __forceinline__ uint32_t reduce(uint64_t sum) {
    const uint32_t quotient = uint32_t(sum) * MODULUS_INVERSE;
    const uint32_t difference = uint32_t(sum >> 32) - __umulhi(quotient, MODULUS);
    return min(difference, difference + MODULUS);
}

// The values of a lane's consecutive rows.
template <unsigned ROWS> struct Rows {
    uint32_t at[ROWS];
};

template <unsigned ROWS> __device__ __forceinline__ Rows<ROWS> load_rows(const uint32_t *first) {
    Rows<ROWS> rows;
    if constexpr (ROWS == 4) {
        const uint4 values = __ldg(reinterpret_cast<const uint4 *>(first));
        rows.at[0] = values.x;
        rows.at[1] = values.y;
        rows.at[2] = values.z;
        rows.at[3] = values.w;
    } else {
        static_assert(ROWS == 1, "rows are loaded one or four at a time");
        rows.at[0] = __ldg(first);
    }
    return rows;
}

template <unsigned ROWS> __device__ __forceinline__ Rows<ROWS> same(uint32_t value) {
    Rows<ROWS> rows;
#pragma unroll
    for (unsigned r = 0; r < ROWS; r++) rows.at[r] = value;
    return rows;
}

template <unsigned ROWS> struct Sums {
    uint64_t at[ROWS];

    __device__ __forceinline__ explicit Sums(uint32_t constant) {
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) at[r] = uint64_t(constant) * MONTGOMERY_ONE;
    }

    // One of the first FREE_TERMS terms.
    __device__ __forceinline__ void add_free(uint32_t coefficient, const Rows<ROWS> &rows) {
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) at[r] += uint64_t(coefficient) * rows.at[r];
    }

    // Any term: the sum stays below P · 2^32.
    __device__ __forceinline__ void add(uint32_t coefficient, const Rows<ROWS> &rows) {
        add_free(coefficient, rows);
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            const uint32_t high = uint32_t(at[r] >> 32);
            at[r] = (uint64_t(min(high, high - MODULUS)) << 32) | uint32_t(at[r]);
        }
    }

    // The canonical values.
    __device__ __forceinline__ Rows<ROWS> values() const {
        Rows<ROWS> values;
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) values.at[r] = reduce(at[r]);
        return values;
    }
};

// ---- shapes ---------------------------------------------------------------------------------------------------------
// Both operands of an interaction, once for each shape. `values` is the lane's first row in column 0. Loads come apart from
// the rest, so that other work can be done while they are under way. SIMPLE ones leave registers for more of that.

// Any sum. Its terms follow from `terms` and `products` on.
template <unsigned ROWS>
__device__ __forceinline__ Rows<ROWS> evaluate_sum(
    const TermsOperand &operand,
    const TermsLinear *__restrict__ terms,
    const TermsProduct *__restrict__ products,
    const uint32_t *values,
    uint32_t height
) {
    Sums<ROWS> sums(operand.constant);
#pragma unroll 1
    for (uint32_t index = 0; index < operand.linear(); index++) {
        sums.add(terms[index].coefficient, load_rows<ROWS>(values + uint64_t(terms[index].column) * height));
    }
#pragma unroll 1
    for (uint32_t index = 0; index < operand.products(); index++) {
        const TermsProduct term = products[index];
        Rows<ROWS> left = load_rows<ROWS>(values + uint64_t(term.columns[0]) * height);
        const Rows<ROWS> right = load_rows<ROWS>(values + uint64_t(term.columns[1]) * height);
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) left.at[r] = reduce(uint64_t(left.at[r]) * right.at[r]);
        sums.add(term.coefficient, left);
    }
    return sums.values();
}

// Any two sums.
template <unsigned ROWS> struct AnyOperands {
    static constexpr bool SIMPLE = false;
    const TermsInteraction &interaction;
    const TermsLinear *terms;
    const TermsProduct *products;
    uint32_t height;

    __device__ __forceinline__
    AnyOperands(const TermsProgram &program, const TermsInteraction &interaction, const BusTrace &trace)
        : interaction(interaction), terms(program.linear + interaction.linear_start),
          products(program.products + interaction.product_start), height(uint32_t(trace.height)) {}

    struct Loaded {};
    __device__ __forceinline__ Loaded load(const uint32_t *) const { return {}; }

    __device__ __forceinline__ void
    evaluate(const uint32_t *values, const Loaded &, Rows<ROWS> &first, Rows<ROWS> &second) const {
        first = evaluate_sum<ROWS>(interaction.first, terms, products, values, height);
        second = evaluate_sum<ROWS>(
            interaction.second, terms + interaction.first.linear(), products + interaction.first.products(), values, height
        );
    }

    __device__ __forceinline__ Rows<ROWS> multiplicity(const uint32_t *values) const {
        return evaluate_sum<ROWS>(
            interaction.multiplicity, terms + interaction.first.linear() + interaction.second.linear(),
            products + interaction.first.products() + interaction.second.products(), values, height
        );
    }
};

// The second operand is constant, the first has linear terms alone, one at least. The first of them is read once for all
// chunks.
template <unsigned ROWS, bool ONE_TERM> struct FirstOperand {
    static constexpr bool SIMPLE = ONE_TERM;
    uint32_t column;
    uint32_t coefficient;
    uint32_t constants[2];
    uint32_t height;
    const TermsLinear *terms;
    uint32_t count;

    __device__ __forceinline__
    FirstOperand(const TermsProgram &program, const TermsInteraction &interaction, const BusTrace &trace)
        : constants{interaction.first.constant, interaction.second.constant}, height(uint32_t(trace.height)),
          terms(program.linear + interaction.linear_start), count(interaction.first.linear()) {
        column = terms[0].column;
        coefficient = terms[0].coefficient;
    }

    using Loaded = Rows<ROWS>;

    __device__ __forceinline__ Loaded load(const uint32_t *values) const {
        return load_rows<ROWS>(values + uint64_t(column) * height);
    }

    __device__ __forceinline__ void
    evaluate(const uint32_t *values, const Loaded &loaded, Rows<ROWS> &first, Rows<ROWS> &second) const {
        Sums<ROWS> sums(constants[0]);
        sums.add_free(coefficient, loaded);
        if constexpr (!ONE_TERM) {
#pragma unroll 2
            for (uint32_t index = 1; index < count; index++) {
                sums.add(terms[index].coefficient, load_rows<ROWS>(values + uint64_t(terms[index].column) * height));
            }
        }
        first = sums.values();
        second = same<ROWS>(constants[1]);
    }
};

// One linear term each.
template <unsigned ROWS> struct TwoColumns {
    static constexpr bool SIMPLE = true;
    uint32_t columns[2];
    uint32_t coefficients[2];
    uint32_t constants[2];
    uint32_t height;

    __device__ __forceinline__
    TwoColumns(const TermsProgram &program, const TermsInteraction &interaction, const BusTrace &trace)
        : constants{interaction.first.constant, interaction.second.constant}, height(uint32_t(trace.height)) {
        const TermsLinear *terms = program.linear + interaction.linear_start;
#pragma unroll
        for (unsigned j = 0; j < 2; j++) {
            columns[j] = terms[j].column;
            coefficients[j] = terms[j].coefficient;
        }
    }

    struct Loaded {
        Rows<ROWS> columns[2];
    };

    __device__ __forceinline__ Loaded load(const uint32_t *values) const {
        return {
            load_rows<ROWS>(values + uint64_t(columns[0]) * height), load_rows<ROWS>(values + uint64_t(columns[1]) * height)
        };
    }

    __device__ __forceinline__ void
    evaluate(const uint32_t *, const Loaded &loaded, Rows<ROWS> &first, Rows<ROWS> &second) const {
        Sums<ROWS> first_sums(constants[0]), second_sums(constants[1]);
        first_sums.add_free(coefficients[0], loaded.columns[0]);
        second_sums.add_free(coefficients[1], loaded.columns[1]);
        first = first_sums.values();
        second = second_sums.values();
    }
};

} // namespace terms
