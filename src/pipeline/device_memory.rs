//! How large a segment may be, given the memory of a GPU.
//!
//! OpenVM ends a segment when its estimate of the *proof's* memory reaches a limit (`--segment-memory`). The estimate is
//! exact about what it covers, and three things of ours are outside it:
//!
//! 1. what stays on the device between segments: the CUDA context, keys, the committed program, periphery counts, the
//!    intermediates of bus kernels ([`RESIDENT`], and `bus_scratch`);
//! 2. the image of the guest's memory with its Merkle tree, on the device before anything else of a segment
//!    ([`memory_image`]): 4.5 GiB for OpenVM's address space of 512 MiB;
//! 3. the traces of an APC's original instructions, all there at once while the APC's own trace is made ([`trace_factor`]):
//!    for keccak's round 15 times the size of the APC's.
//!
//! The second and the third are gone before the proof of the segment begins, and the third comes after the second, so that
//! the peak is `resident + max(memory image, factor × limit)`. `docs/faults.md` has what was measured.

use openvm_circuit::arch::{AddressSpaceHostLayout, MemoryConfig, SystemConfig};
use openvm_stark_backend::SystemParams;
use thiserror::Error;

use super::stages::SelectedApcs;
use crate::{apc::Autoprecompile, trace::TracePlan};

const MEBIBYTE: usize = 1 << 20;

/// Device memory that is taken whatever the segment: the CUDA context with OpenVM's kernels, proving key, committed program.
pub const RESIDENT: usize = 1 << 30;

/// The least limit that is derived: below it, what every proof needs leaves no room for rows.
pub const LEAST_SEGMENT_MEMORY: usize = 1 << 30;

/// Derived limits are whole multiples of this, so that a GPU's free memory may vary a little without other segments.
const STEP: usize = 256 * MEBIBYTE;

/// Bytes of a field element.
const FIELD: usize = 4;
/// Bytes of a leaf of the interactions' argument: numerator and denominator in the extension field.
const INTERACTION_LEAF: usize = 2 * 4 * FIELD;
/// Bytes of a node of a Merkle tree.
const DIGEST: usize = 8 * FIELD;
/// Memory cells of a leaf.
const LEAF_CELLS: usize = 8;

/// A GPU's memory does not suffice, whatever the segments.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceMemoryError {
    /// Not enough for the smallest useful segment.
    #[error(
        "{} MiB of device memory are too little for this guest: {} MiB are needed with these APCs, of which {} MiB for \
         the image of the guest's memory. Raise --device-memory, use a larger GPU or fewer APCs, or name \
         --segment-memory to try all the same",
        available >> 20, needed.div_ceil(MEBIBYTE), memory_image >> 20
    )]
    TooSmall {
        /// Bytes that may be used.
        available: usize,
        /// Bytes that the smallest useful segment needs.
        needed: usize,
        /// Bytes of the guest's memory image, a part of them.
        memory_image: usize,
    },
    /// The limit is meant for a GPU.
    #[error("--device-memory limits a GPU's memory: use it with --device cuda")]
    NoGpu,
}

/// The limit for OpenVM's estimate of a segment's proof, for `available` bytes of device memory: never more than the
/// configuration's own, which is what a large GPU gets.
///
/// # Errors
/// [`DeviceMemoryError::TooSmall`].
pub fn segment_memory(
    available: usize,
    bus_scratch: usize,
    selected: &SelectedApcs,
    system: &SystemConfig,
    params: &SystemParams,
) -> Result<usize, DeviceMemoryError> {
    let resident = RESIDENT.saturating_add(bus_scratch);
    let image = memory_image(&system.memory_config);
    let factor = selected
        .apcs
        .iter()
        .map(|apc| trace_factor(apc, params.log_blowup))
        .fold(1.0, f64::max);
    let usable = available.saturating_sub(resident);
    let limit = (usable as f64 / factor) as usize / STEP * STEP;
    if usable < image || limit < LEAST_SEGMENT_MEMORY {
        let segment = (LEAST_SEGMENT_MEMORY as f64 * factor) as usize;
        return Err(DeviceMemoryError::TooSmall {
            available,
            needed: resident.saturating_add(image.max(segment)),
            memory_image: image,
        });
    }
    Ok(limit.min(system.segmentation_max_memory))
}

/// Bytes of the guest's memory on the device, with a Merkle tree over every leaf of it.
pub fn memory_image(config: &MemoryConfig) -> usize {
    config
        .addr_spaces
        .iter()
        .map(|space| {
            let leaves = space.num_cells / LEAF_CELLS;
            space.num_cells * space.layout.size() + 2 * leaves * DIGEST
        })
        .sum()
}

/// How many times OpenVM's estimate for the calls of an APC is on the device while the APC's trace is made: the APC's trace
/// and its original instructions' traces, over what the estimate counts for a call at least. The other AIRs of a segment
/// raise the estimate, not the originals: what is measured lies below.
pub fn trace_factor(apc: &Autoprecompile, log_blowup: usize) -> f64 {
    let own = apc.width() * FIELD;
    // The leaves, and the work buffer that goes with them.
    let interactions = apc.machine.bus_interactions.len() * INTERACTION_LEAF * 5 / 4;
    let estimate = own + interactions.max(own << log_blowup);
    // Instructions of which no column survived have no trace. Heights are padded to powers of two, an AIR's of `rows × calls`
    // to at most that of `rows` times that of `calls`, which the estimate counts. As if all rows were of one width: an APC
    // does not say its AIRs'.
    let instructions = apc.instructions.len().max(1);
    let rows = TracePlan::new(apc).map_or(2 * instructions, |plan| {
        plan.airs
            .iter()
            .map(|air| air.rows_per_call.next_power_of_two())
            .sum()
    });
    let originals = (apc.original_width * FIELD) as f64 * rows as f64 / instructions as f64;
    (own as f64 + originals) / estimate as f64
}
