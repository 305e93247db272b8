// The `dag` bus kernel: one thread per row evaluates the deduplicated rules of all interactions into slots, and
// dispatches each interaction from its output descriptors after the rule that completes them (in the seed's schedule:
// all of them after the last rule). Rules are encoded by the prover backend's own codec.
#include <cuda_runtime.h>

#include "codec.cuh"
#include "device_structs.cuh"
#include "launcher.cuh"
#include "layout.cuh"
#include "periphery.cuh"

PIN_LAYOUT(Rule, 16, 8);

// Where an interaction finds an operand once all rules have run.
struct DagOutput {
    uint32_t kind;
    uint32_t value;
};
PIN_LAYOUT(DagOutput, 8, 4);
PIN_FIELD(DagOutput, kind, 0);
PIN_FIELD(DagOutput, value, 4);

enum DagOutputKind : uint32_t {
    OUTPUT_SLOT = 0,
    OUTPUT_COLUMN = 1,
    OUTPUT_CONSTANT = 2,
};

// One counted interaction: which table, and its operands. `selector` is used for the bitwise table alone.
struct DagInteraction {
    uint32_t table;
    uint32_t flags;
    DagOutput multiplicity;
    DagOutput first;
    DagOutput second;
    DagOutput selector;
    // How many rules run before the interaction is dispatched; not decreasing.
    uint32_t dispatch_after;
};
PIN_LAYOUT(DagInteraction, 44, 4);
PIN_FIELD(DagInteraction, table, 0);
PIN_FIELD(DagInteraction, flags, 4);
PIN_FIELD(DagInteraction, multiplicity, 8);
PIN_FIELD(DagInteraction, first, 16);
PIN_FIELD(DagInteraction, second, 24);
PIN_FIELD(DagInteraction, selector, 32);
PIN_FIELD(DagInteraction, dispatch_after, 40);

namespace {

constexpr unsigned THREADS = 128;

// What a thread sees of its row and of its slots. Slots are slot-major, so that the 32 threads of a warp read one line.
struct RowContext {
    const Fp *values;
    uint64_t height;
    Fp *slots;
    uint64_t slot_stride;

    __device__ __forceinline__ Fp column(uint32_t index) const { return values[uint64_t(index) * height]; }
    __device__ __forceinline__ Fp slot(uint32_t index) const { return slots[uint64_t(index) * slot_stride]; }

    __device__ __forceinline__ Fp source(const SourceInfo &source) const {
        switch (source.type) {
        case ENTRY_MAIN:
            return column(source.index);
        case SRC_INTERMEDIATE:
            return slot(source.index);
        default: // SRC_CONSTANT: the compiler emits no other kind
            return Fp(source.index);
        }
    }

    // The canonical value of an output.
    __device__ __forceinline__ uint32_t output(const DagOutput &output) const {
        switch (output.kind) {
        case OUTPUT_SLOT:
            return slot(output.value).asUInt32();
        case OUTPUT_COLUMN:
            return column(output.value).asUInt32();
        default: // OUTPUT_CONSTANT
            return output.value;
        }
    }
};

// Threads stride over the rows, so that the slots need `blocks × THREADS × slot count` words whatever the height.
__global__ void __launch_bounds__(THREADS) apc_apply_bus_dag_kernel(
    const BusTrace trace,
    const Rule *__restrict__ rules,
    const DagInteraction *__restrict__ interactions,
    uint32_t interaction_count,
    Fp *intermediates,
    const PeripheryCounts counts
) {
    const uint64_t threads = uint64_t(gridDim.x) * THREADS;
    const uint64_t thread = uint64_t(blockIdx.x) * THREADS + threadIdx.x;
    RowContext context;
    context.height = trace.height;
    context.slots = intermediates + thread;
    context.slot_stride = threads;
    for (uint64_t row = thread; row < trace.live_rows; row += threads) {
        context.values = trace.values + row;
        uint32_t next = 0;
        for (uint32_t index = 0; index < interaction_count; index++) {
            const DagInteraction &interaction = interactions[index];
            for (; next < interaction.dispatch_after; next++) {
                const Rule rule = rules[next];
                const RuleHeader header = decode_rule_header(rule);
                // A rule that fills no slot is a bare column, which its users read themselves.
                if (!header.buffer_result) continue;
                Fp result = context.source(header.x);
                switch (header.op) {
                case OP_ADD:
                    result = result + context.source(decode_y(rule));
                    break;
                case OP_SUB:
                    result = result - context.source(decode_y(rule));
                    break;
                case OP_MUL:
                    result = result * context.source(decode_y(rule));
                    break;
                case OP_NEG:
                    result = Fp::fromRaw(0) - result;
                    break;
                default: // OP_VAR: a buffered column
                    break;
                }
                context.slots[uint64_t(decode_z_index(rule)) * threads] = result;
            }
            uint32_t multiplicity = 1;
            if (!(interaction.flags & periphery::MULTIPLICITY_IS_ONE)) {
                multiplicity = context.output(interaction.multiplicity);
                if (multiplicity == 0) continue;
            }
            const uint32_t table = interaction.table;
            const uint32_t first = context.output(interaction.first);
            const uint32_t second = context.output(interaction.second);
            const uint32_t selector = table == periphery::BITWISE_LOOKUP ? context.output(interaction.selector) : 0;
            periphery::apply(counts, table, first, second, selector, multiplicity);
        }
    }
}

} // namespace

// `intermediates` holds `slot count × threads` words; `threads` is a multiple of the block size (`_apc_apply_bus_dag_block`).
extern "C" int _apc_apply_bus_dag(
    BusTrace trace,
    const Rule *rules,
    const DagInteraction *interactions,
    uint32_t interaction_count,
    Fp *intermediates,
    uint64_t threads,
    PeripheryCounts counts,
    cudaStream_t stream
) {
    if (interaction_count == 0 || trace.live_rows == 0) return cudaSuccess;
    if (threads == 0 || threads % THREADS != 0 || threads / THREADS > 0x7fffffffull) return cudaErrorInvalidConfiguration;
    apc_apply_bus_dag_kernel<<<unsigned(threads / THREADS), THREADS, 0, stream>>>(
        trace, rules, interactions, interaction_count, intermediates, counts
    );
    return CHECK_KERNEL();
}

extern "C" uint32_t _apc_apply_bus_dag_block() { return THREADS; }
