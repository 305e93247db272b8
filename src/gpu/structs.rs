//! Structures that the kernels read: the host's side of `cuda/include/device_structs.cuh`.

use std::mem::{align_of, size_of};

use openvm_cuda_common::d_buffer::DeviceBuffer;

use crate::{
    bus::{table::TableSizes, terms, F},
    layout::device_layout,
};

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

device_layout!(OriginalTrace: size 24, align 8 { values: 0, height: 8, rows_per_call: 16, padding: 20 });

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

device_layout!(OriginalCell: size 12, align 4 { trace: 0, column: 4, row_in_call: 8 });

/// An APC column that is a copy of an original cell.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Substitution {
    /// Where the value comes from.
    pub cell: OriginalCell,
    /// The column that it fills.
    pub apc_column: u32,
}

device_layout!(Substitution: size 16, align 4 { cell: 0, apc_column: 12 });

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

device_layout!(DerivedColumn: size 12, align 4 { apc_column: 0, code_start: 4, code_length: 8 });

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

device_layout!(PeripheryCounts: size 40, align 8 {
    variable_range_checker: 0, range_tuple_checker: 8, bitwise_lookup: 16, variable_range_checker_bins: 24,
    range_tuple_sizes: 28, padding: 36,
});

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

    /// What decides about the tables' bins.
    pub fn sizes(&self) -> TableSizes {
        TableSizes {
            variable_range_checker_bins: self.variable_range_checker_bins as usize,
            range_tuple_sizes: self.range_tuple_sizes,
            has_bitwise_lookup: !self.bitwise_lookup.is_null(),
        }
    }

    /// Counts into the variable range checker's buffer of `bins` u32.
    pub fn with_variable_range_checker<T>(mut self, counts: &DeviceBuffer<T>) -> Self {
        const { assert!(size_of::<T>() == 4) };
        self.variable_range_checker = counts.as_mut_ptr().cast();
        self.variable_range_checker_bins = counts.len() as u32;
        self
    }

    /// Counts into the two-tuple range checker's buffer of `sizes[0] * sizes[1]` u32.
    ///
    /// # Panics
    /// If the buffer has another length: kernels would write beyond it.
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
    ///
    /// # Panics
    /// If the buffer has another length: kernels would write beyond it.
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

device_layout!(BusTrace: size 24, align 8 { values: 0, height: 8, live_rows: 16 });

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

device_layout!(TermsProgram: size 32, align 8 {
    interactions: 0, linear: 8, products: 16, interaction_count: 24, padding: 28,
});

// The kernels read and write field elements as the 32-bit words that they are.
const _: () = assert!(size_of::<F>() == 4 && align_of::<F>() == 4);
