// The `vm` bus kernel: one thread per row walks all interactions; every expression is a span of stack bytecode.
#include <cuda_runtime.h>

#include "device_structs.cuh"
#include "launcher.cuh"
#include "layout.cuh"
#include "periphery.cuh"
#include "stack_machine.cuh"

// A span of bytecode, in words.
struct CodeSpan {
    uint32_t start;
    uint32_t length;
};
PIN_LAYOUT(CodeSpan, 8, 4);
PIN_FIELD(CodeSpan, start, 0);
PIN_FIELD(CodeSpan, length, 4);

// One counted interaction: which table, and where its expressions are. `selector` is empty but for the bitwise table.
struct VmInteraction {
    uint32_t table;
    uint32_t flags;
    CodeSpan multiplicity;
    CodeSpan first;
    CodeSpan second;
    CodeSpan selector;
};
PIN_LAYOUT(VmInteraction, 40, 4);
PIN_FIELD(VmInteraction, table, 0);
PIN_FIELD(VmInteraction, flags, 4);
PIN_FIELD(VmInteraction, multiplicity, 8);
PIN_FIELD(VmInteraction, first, 16);
PIN_FIELD(VmInteraction, second, 24);
PIN_FIELD(VmInteraction, selector, 32);

namespace {

constexpr unsigned THREADS = 128;

__global__ void __launch_bounds__(THREADS) apc_apply_bus_vm_kernel(
    const BusTrace trace,
    const uint32_t *__restrict__ code,
    const VmInteraction *__restrict__ interactions,
    uint32_t interaction_count,
    const PeripheryCounts counts
) {
    const uint64_t row = uint64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (row >= trace.live_rows) return;
    const Fp *__restrict__ values = trace.values + row;
    const uint64_t height = trace.height;
    auto evaluate = [&](CodeSpan span) {
        return stack_machine::evaluate(code, span.start, span.length, [&](uint32_t column) {
                   return values[uint64_t(column) * height];
               }).asUInt32();
    };
    for (uint32_t index = 0; index < interaction_count; index++) {
        const VmInteraction &interaction = interactions[index];
        uint32_t multiplicity = 1;
        if (!(interaction.flags & periphery::MULTIPLICITY_IS_ONE)) {
            multiplicity = evaluate(interaction.multiplicity);
            if (multiplicity == 0) continue;
        }
        const uint32_t table = interaction.table;
        const uint32_t first = evaluate(interaction.first);
        const uint32_t second = evaluate(interaction.second);
        const uint32_t selector = table == periphery::BITWISE_LOOKUP ? evaluate(interaction.selector) : 0;
        periphery::apply(counts, table, first, second, selector, multiplicity);
    }
}

} // namespace

extern "C" int _apc_apply_bus_vm(
    BusTrace trace,
    const uint32_t *code,
    const VmInteraction *interactions,
    uint32_t interaction_count,
    PeripheryCounts counts,
    cudaStream_t stream
) {
    if (interaction_count == 0 || trace.live_rows == 0) return cudaSuccess;
    const uint64_t blocks = div_ceil(trace.live_rows, THREADS);
    if (blocks > 0x7fffffffull) return cudaErrorInvalidConfiguration;
    apc_apply_bus_vm_kernel<<<unsigned(blocks), THREADS, 0, stream>>>(
        trace, code, interactions, interaction_count, counts
    );
    return CHECK_KERNEL();
}
