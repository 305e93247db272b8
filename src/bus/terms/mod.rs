//! The `terms` program: every operand a flat sum `c + Σ cᵢ·xᵢ + Σ cⱼₖ·xⱼ·xₖ` over columns; its compiler and CPU interpreter.
//!
//! `vm` and `dag` give a thread one row and all interactions. `terms` splits the interactions over warps and blocks as well:
//! each is a record of its own, free of what the others computed. A warp takes one interaction and many rows, so the record
//! is decoded once for hundreds of rows; and since the sums have neither a stack nor slots, nothing lives in memory between
//! the columns and the bin.
//!
//! Operands of a higher degree, operands that expand to more than [`MAX_TERMS`] terms, and lookups whose table part (a range
//! check's width, a bitwise lookup's selector) is no constant are left to a [`vm::Program`]; real APCs have none.

pub mod compiler;
mod interpreter;
pub mod launch;
mod sum;

use super::{
    table::{PeripheryTables, TableKind},
    vm,
};
use crate::layout::device_layout;

/// Terms that an operand may expand to.
pub const MAX_TERMS: usize = 1024;

/// Set in [`Interaction::flags`] if the multiplicity is provably one on live rows; the operand is then unused.
pub const MULTIPLICITY_IS_ONE: u32 = 1;

/// A linear term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Linear {
    /// Index of the column.
    pub column: u32,
    /// Canonical coefficient.
    pub coefficient: u32,
}

/// A quadratic term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Product {
    /// Indices of the two columns.
    pub columns: [u32; 2],
    /// Canonical coefficient.
    pub coefficient: u32,
    /// Always zero.
    pub padding: u32,
}

/// A sum: a constant and how many terms follow those of the operand before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Operand {
    /// Canonical constant.
    pub constant: u32,
    /// Linear terms in the lower half, quadratic ones in the upper half.
    pub terms: u32,
}

impl Operand {
    /// Number of linear terms.
    pub fn linear(self) -> usize {
        (self.terms & 0xffff) as usize
    }

    /// Number of quadratic terms.
    pub fn products(self) -> usize {
        (self.terms >> 16) as usize
    }
}

/// A counting interaction, as the device reads it. It counts into bin `first_bin + first * stride + second` of its table,
/// and into none if `first >= bounds[0]` or `second >= bounds[1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Interaction {
    /// The table, as [`TableKind`]'s number.
    pub table: u32,
    /// [`MULTIPLICITY_IS_ONE`] or zero.
    pub flags: u32,
    /// Bin of two zeros.
    pub first_bin: u32,
    /// Bins from one value of `first` to the next.
    pub stride: u32,
    /// Exclusive bounds of the two operands; zeros if the table has no row for this interaction at all.
    pub bounds: [u32; 2],
    /// Index of the first linear term: those of `first`, `second` and `multiplicity` follow each other.
    pub linear_start: u32,
    /// Index of the first quadratic term, in the same order.
    pub product_start: u32,
    /// The operand that is multiplied by `stride`.
    pub first: Operand,
    /// The operand that is added.
    pub second: Operand,
    /// The multiplicity.
    pub multiplicity: Operand,
    /// Always zero.
    pub padding: [u32; 2],
}

device_layout!(Linear: size 8, align 4 { column: 0, coefficient: 4 });
device_layout!(Product: size 16, align 16 { columns: 0, coefficient: 8, padding: 12 });
device_layout!(Operand: size 8, align 4 { constant: 0, terms: 4 });
device_layout!(Interaction: size 64, align 16 {
    table: 0, flags: 4, first_bin: 8, stride: 12, bounds: 16, linear_start: 24, product_start: 28,
    first: 32, second: 40, multiplicity: 48, padding: 56,
});

impl Interaction {
    /// The bin of two canonical values, or `None` if the table has no such row.
    pub fn bin(&self, first: u32, second: u32) -> Option<usize> {
        (first < self.bounds[0] && second < self.bounds[1]).then(|| {
            self.first_bin as usize + first as usize * self.stride as usize + second as usize
        })
    }

    /// The bins that it can count into, first and last, or `None` if the table has no row for it.
    pub fn bins(&self) -> Option<[usize; 2]> {
        let last = |bound: u32| bound.checked_sub(1);
        let last = self.bin(last(self.bounds[0])?, last(self.bounds[1])?)?;
        Some([self.first_bin as usize, last])
    }
}

/// How the interactions of an APC are evaluated, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// The next one of [`Program::interactions`].
    Here(TablePart),
    /// The next one of [`Program::rest`].
    Rest,
}

/// The constant that decides about the part of the table, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TablePart {
    /// A range check's width in bits.
    MaxBits(u32),
    /// A bitwise lookup's selector.
    Selector(u32),
    /// The two-tuple range checker has but one part.
    Whole,
}

/// An APC's counting interactions as term tables. A pure function of the APC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    interactions: Vec<Interaction>,
    linear: Vec<Linear>,
    products: Vec<Product>,
    rest: vm::Program,
    /// For each interaction of the APC that counts.
    places: Vec<Place>,
    /// For messages: the interactions' indices among all of the APC, and their tables.
    indices: Vec<usize>,
    kinds: Vec<TableKind>,
    tables: PeripheryTables,
    width: usize,
}

impl Program {
    /// The interactions with term tables.
    pub fn interactions(&self) -> &[Interaction] {
        &self.interactions
    }

    /// The linear terms of all of them.
    pub fn linear(&self) -> &[Linear] {
        &self.linear
    }

    /// The quadratic terms of all of them.
    pub fn products(&self) -> &[Product] {
        &self.products
    }

    /// The interactions without.
    pub fn rest(&self) -> &vm::Program {
        &self.rest
    }

    /// The tables that the bins are of.
    pub fn tables(&self) -> &PeripheryTables {
        &self.tables
    }
}
