// The stack bytecode of the `vm` bus kernel and of derived columns, and its interpreter for one row.
// The encoding is that of `src/bus/vm`: u32 words, an operation and, for the two pushes, one operand.
#pragma once

#include <cstdint>

#include "fp.h"

namespace stack_machine {

enum Operation : uint32_t {
    PUSH_COLUMN = 0,
    PUSH_CONSTANT = 1,
    ADD = 2,
    SUB = 3,
    MUL = 4,
    NEG = 5,
    INVERT_OR_ZERO = 6,
};

// The host refuses programs that need more.
constexpr unsigned STACK_DEPTH = 16;

// Evaluates `length` words of bytecode; `load(index)` gives the value of the column (or cell) with that index. The top of
// the stack lives in a register, the rest in `STACK_DEPTH` words of thread-local memory.
template <typename Load>
__device__ __forceinline__ Fp evaluate(const uint32_t *__restrict__ code, uint32_t start, uint32_t length, Load load) {
    Fp below[STACK_DEPTH];
    unsigned depth = 0;
    Fp top = Fp::fromRaw(0);
    const uint32_t end = start + length;
    for (uint32_t position = start; position < end;) {
        const uint32_t operation = code[position++];
        switch (operation) {
        case PUSH_COLUMN:
            below[depth++] = top;
            top = load(code[position++]);
            break;
        case PUSH_CONSTANT:
            below[depth++] = top;
            top = Fp(code[position++]);
            break;
        case ADD:
            top = below[--depth] + top;
            break;
        case SUB:
            top = below[--depth] - top;
            break;
        case MUL:
            top = below[--depth] * top;
            break;
        case NEG:
            top = Fp::fromRaw(0) - top;
            break;
        case INVERT_OR_ZERO:
            top = inv(top);
            break;
        }
    }
    return top;
}

} // namespace stack_machine
