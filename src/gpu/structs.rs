//! Structures that the kernels read: the host's side of `cuda/include/device_structs.cuh`.

use std::mem::{align_of, offset_of, size_of};

use openvm_cuda_common::d_buffer::DeviceBuffer;

use crate::bus::{terms, F};

/// The trace of an original AIR: column-major, the rows of one call together.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OriginalTrace {
    /// Device pointer to the values.
    pub values: *const F,
    /// Rows.
    pub height: u64,
    /// Rows that one call of the APC fills.
    pub rows_per_call: u32,
    /// Always zero.
    pub padding: u32,
}

const _: () = assert!(size_of::<OriginalTrace>() == 24 && align_of::<OriginalTrace>() == 8);
const _: () = assert!(offset_of!(OriginalTrace, height) == 8);
const _: () = assert!(offset_of!(OriginalTrace, rows_per_call) == 16);

// SAFETY: the pointer is only ever dereferenced on the device; moving or sharing its value between threads is harmless.
unsafe impl Send for OriginalTrace {}
// SAFETY: as above.
unsafe impl Sync for OriginalTrace {}

/// One cell of the original traces, the same in every call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginalCell {
    /// Index of the original trace.
    pub trace: u32,
    /// Column of it.
    pub column: u32,
    /// Row within the rows of one call.
    pub row_in_call: u32,
}

const _: () = assert!(size_of::<OriginalCell>() == 12 && align_of::<OriginalCell>() == 4);
const _: () = assert!(offset_of!(OriginalCell, column) == 4);
const _: () = assert!(offset_of!(OriginalCell, row_in_call) == 8);

/// An APC column that is a copy of an original cell.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Substitution {
    /// Where the value comes from.
    pub cell: OriginalCell,
    /// The column that it fills.
    pub apc_column: u32,
}

const _: () = assert!(size_of::<Substitution>() == 16 && align_of::<Substitution>() == 4);
const _: () = assert!(offset_of!(Substitution, apc_column) == 12);

/// An APC column computed by a span of stack bytecode whose columns are original cells.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DerivedColumn {
    /// The column that it fills.
    pub apc_column: u32,
    /// First word of its code.
    pub code_start: u32,
    /// Words of its code.
    pub code_length: u32,
}

const _: () = assert!(size_of::<DerivedColumn>() == 12 && align_of::<DerivedColumn>() == 4);
const _: () = assert!(offset_of!(DerivedColumn, code_start) == 4);
const _: () = assert!(offset_of!(DerivedColumn, code_length) == 8);

/// Where the periphery chips count, as u32; null and zero where the VM has no such table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PeripheryCounts {
    /// Device pointer to the variable range checker's counts.
    pub variable_range_checker: *mut u32,
    /// Device pointer to the two-tuple range checker's counts.
    pub range_tuple_checker: *mut u32,
    /// Device pointer to the bitwise lookup's counts.
    pub bitwise_lookup: *mut u32,
    /// Bins of the variable range checker.
    pub variable_range_checker_bins: u32,
    /// Exclusive bounds of the two-tuple range checker.
    pub range_tuple_sizes: [u32; 2],
    /// Always zero.
    pub padding: u32,
}

const _: () = assert!(size_of::<PeripheryCounts>() == 40 && align_of::<PeripheryCounts>() == 8);
const _: () = assert!(offset_of!(PeripheryCounts, range_tuple_checker) == 8);
const _: () = assert!(offset_of!(PeripheryCounts, bitwise_lookup) == 16);
const _: () = assert!(offset_of!(PeripheryCounts, variable_range_checker_bins) == 24);
const _: () = assert!(offset_of!(PeripheryCounts, range_tuple_sizes) == 28);

// SAFETY: the pointers are only ever dereferenced on the device, by atomic additions.
unsafe impl Send for PeripheryCounts {}
// SAFETY: as above.
unsafe impl Sync for PeripheryCounts {}

impl PeripheryCounts {
    /// No table at all.
    pub fn none() -> Self {
        Self {
            variable_range_checker: std::ptr::null_mut(),
            range_tuple_checker: std::ptr::null_mut(),
            bitwise_lookup: std::ptr::null_mut(),
            variable_range_checker_bins: 0,
            range_tuple_sizes: [0; 2],
            padding: 0,
        }
    }

    /// Bins of each table, by [`TableKind`](crate::bus::table::TableKind).
    pub fn bins(&self) -> [usize; 3] {
        [
            self.variable_range_checker_bins as usize,
            self.range_tuple_sizes[0] as usize * self.range_tuple_sizes[1] as usize,
            if self.bitwise_lookup.is_null() {
                0
            } else {
                crate::bus::table::BitwiseLookupTable::BINS
            },
        ]
    }

    /// Counts into the variable range checker's buffer of `bins` u32.
    pub fn with_variable_range_checker<T>(mut self, counts: &DeviceBuffer<T>) -> Self {
        const { assert!(size_of::<T>() == 4) };
        self.variable_range_checker = counts.as_mut_ptr().cast();
        self.variable_range_checker_bins = counts.len() as u32;
        self
    }

    /// Counts into the two-tuple range checker's buffer of `sizes[0] * sizes[1]` u32.
    pub fn with_range_tuple_checker<T>(
        mut self,
        counts: &DeviceBuffer<T>,
        sizes: [u32; 2],
    ) -> Self {
        const { assert!(size_of::<T>() == 4) };
        assert_eq!(
            counts.len() as u64,
            u64::from(sizes[0]) * u64::from(sizes[1])
        );
        self.range_tuple_checker = counts.as_mut_ptr().cast();
        self.range_tuple_sizes = sizes;
        self
    }

    /// Counts into the 8-bit bitwise lookup's buffer of 131,072 u32.
    pub fn with_bitwise_lookup<T>(mut self, counts: &DeviceBuffer<T>) -> Self {
        const { assert!(size_of::<T>() == 4) };
        assert_eq!(counts.len(), crate::bus::table::BitwiseLookupTable::BINS);
        self.bitwise_lookup = counts.as_mut_ptr().cast();
        self
    }
}

/// A trace on the device, as a bus kernel reads it: column-major, `height` rows, the first `live_rows` of them counting.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BusTrace {
    /// Device pointer to the values.
    pub values: *const F,
    /// Rows.
    pub height: u64,
    /// Rows that count.
    pub live_rows: u64,
}

const _: () = assert!(size_of::<BusTrace>() == 24 && align_of::<BusTrace>() == 8);
const _: () = assert!(offset_of!(BusTrace, height) == 8);
const _: () = assert!(offset_of!(BusTrace, live_rows) == 16);

/// The `terms` program in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TermsProgram {
    /// Device pointer to the interactions.
    pub interactions: *const terms::Interaction,
    /// Device pointer to their linear terms.
    pub linear: *const terms::Linear,
    /// Device pointer to their quadratic terms.
    pub products: *const terms::Product,
    /// Number of interactions.
    pub interaction_count: u32,
    /// Always zero.
    pub padding: u32,
}

const _: () = assert!(size_of::<TermsProgram>() == 32 && align_of::<TermsProgram>() == 8);
const _: () = assert!(offset_of!(TermsProgram, interaction_count) == 24);

// The kernels read and write field elements as the 32-bit words that they are.
const _: () = assert!(size_of::<F>() == 4 && align_of::<F>() == 4);
