//! The `vm` program: stack bytecode, one span per operand; its compiler and its CPU interpreter.
//!
//! `vm` walks each interaction's spans with a stack machine. Everything is `u32` words, as the device reads them.

pub mod compiler;
mod interpreter;

use super::table::{PeripheryTables, TableKind};
use crate::layout::device_layout;

/// Push the value of a column; the next word is its index.
pub const PUSH_COLUMN: u32 = 0;
/// Push a constant; the next word is its canonical value.
pub const PUSH_CONSTANT: u32 = 1;
/// Replace the two topmost values by their sum.
pub const ADD: u32 = 2;
/// Replace the two topmost values by the lower minus the upper.
pub const SUB: u32 = 3;
/// Replace the two topmost values by their product.
pub const MUL: u32 = 4;
/// Replace the topmost value by its negation.
pub const NEG: u32 = 5;
/// Replace the topmost value by its inverse, or by zero. Derived columns use it, interactions do not.
pub const INVERT_OR_ZERO: u32 = 6;

/// Values that a span may have on the stack at once: what the device reserves per thread.
pub const STACK_DEPTH: usize = 16;

/// Set in [`Interaction::flags`] if the multiplicity is provably one on live rows; its span is then empty.
pub const MULTIPLICITY_IS_ONE: u32 = 1;

/// Words of bytecode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    /// Index of the first word.
    pub start: u32,
    /// Number of words.
    pub length: u32,
}

/// A counting interaction, as the device reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Interaction {
    /// The table, as [`TableKind`]'s number.
    pub table: u32,
    /// [`MULTIPLICITY_IS_ONE`] or zero.
    pub flags: u32,
    /// The multiplicity.
    pub multiplicity: Span,
    /// The first bin argument.
    pub first: Span,
    /// The second bin argument.
    pub second: Span,
    /// The selector of the bitwise lookup; empty for the other tables.
    pub selector: Span,
}

device_layout!(Span: size 8, align 4 { start: 0, length: 4 });
device_layout!(Interaction: size 40, align 4 {
    table: 0, flags: 4, multiplicity: 8, first: 16, second: 24, selector: 32,
});

/// An APC's counting interactions as stack bytecode. A pure function of the APC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    code: Vec<u32>,
    interactions: Vec<Interaction>,
    /// For messages: the interactions' indices among all of the APC.
    indices: Vec<usize>,
    kinds: Vec<TableKind>,
    tables: PeripheryTables,
    width: usize,
}

impl Program {
    /// The bytecode.
    pub fn code(&self) -> &[u32] {
        &self.code
    }

    /// The interactions.
    pub fn interactions(&self) -> &[Interaction] {
        &self.interactions
    }

    /// The tables that it counts into.
    pub fn tables(&self) -> &PeripheryTables {
        &self.tables
    }
}
