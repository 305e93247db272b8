//! The `dag` program: expressions → dag → the prover backend's rules → encoded words and output descriptors.
//!
//! All expressions of an APC's counting interactions become one dag with common subexpressions shared; the backend's
//! `SymbolicRulesBuilder` assigns values to slots; rules and descriptors are what the device reads, and what the CPU
//! interpreter reads as well.

mod compiler;
mod interpreter;
mod order;
mod rules;

pub(crate) use order::children;
pub use order::reordered;

use super::table::{PeripheryTables, TableKind};
use crate::layout::device_layout;

/// Columns that the codec can name: it holds an index in 16 bits.
pub const MAX_COLUMNS: usize = 1 << 16;
/// Slots that the codec can name: it holds an index in 20 bits, and masks what does not fit.
pub const MAX_SLOTS: usize = 1 << 20;

/// Set in [`Interaction::flags`] if the multiplicity is provably one on live rows.
pub const MULTIPLICITY_IS_ONE: u32 = 1;

/// When an interaction's values are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dispatch {
    /// After all rules: every output keeps its slot to the end. The seed's schedule.
    Pinned,
    /// As soon as its outputs exist: a slot is free again after its true last use.
    Early,
}

/// What happens to a column that several rules use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharedColumns {
    /// It is copied into a slot once (`buffer_vars`).
    Buffered,
    /// It is read again.
    ReadAgain,
}

/// How rules are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// When interactions are dispatched.
    pub dispatch: Dispatch,
    /// What happens to shared columns.
    pub shared_columns: SharedColumns,
}

impl Schedule {
    /// The schedule of the seed.
    pub const SEED: Schedule = Schedule {
        dispatch: Dispatch::Pinned,
        shared_columns: SharedColumns::Buffered,
    };

    /// The schedule of [`BusKernel::Dag`](crate::bus::BusKernel): the fewest slots, on every program counted so far.
    pub const FEWEST_SLOTS: Schedule = Schedule {
        dispatch: Dispatch::Early,
        shared_columns: SharedColumns::ReadAgain,
    };

    /// All four.
    pub const ALL: [Schedule; 4] = [
        Schedule::SEED,
        Schedule {
            dispatch: Dispatch::Pinned,
            shared_columns: SharedColumns::ReadAgain,
        },
        Schedule {
            dispatch: Dispatch::Early,
            shared_columns: SharedColumns::Buffered,
        },
        Schedule::FEWEST_SLOTS,
    ];
}

/// An operand is in a slot; the value is its index.
pub const OUTPUT_SLOT: u32 = 0;
/// An operand is a bare column; the value is its index.
pub const OUTPUT_COLUMN: u32 = 1;
/// An operand is a constant; the value is canonical.
pub const OUTPUT_CONSTANT: u32 = 2;

/// Where an operand of an interaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Output {
    /// [`OUTPUT_SLOT`], [`OUTPUT_COLUMN`] or [`OUTPUT_CONSTANT`].
    pub kind: u32,
    /// What the kind says.
    pub value: u32,
}

impl Output {
    /// A constant.
    pub const fn constant(value: u32) -> Self {
        Self {
            kind: OUTPUT_CONSTANT,
            value,
        }
    }
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
    pub multiplicity: Output,
    /// The first bin argument.
    pub first: Output,
    /// The second bin argument.
    pub second: Output,
    /// The selector of the bitwise lookup; zero for the other tables.
    pub selector: Output,
    /// How many rules run before the interaction is dispatched; not decreasing.
    pub dispatch_after: u32,
}

device_layout!(Output: size 8, align 4 { kind: 0, value: 4 });
device_layout!(Interaction: size 44, align 4 {
    table: 0, flags: 4, multiplicity: 8, first: 16, second: 24, selector: 32, dispatch_after: 40,
});

/// An APC's counting interactions as encoded rules. A pure function of the APC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    schedule: Schedule,
    rules: Vec<u128>,
    interactions: Vec<Interaction>,
    slots: usize,
    nodes: usize,
    /// For messages: the interactions' indices among all of the APC.
    indices: Vec<usize>,
    kinds: Vec<TableKind>,
    tables: PeripheryTables,
    width: usize,
}

impl Program {
    /// The schedule it was compiled with.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// The rules, encoded by the backend's codec.
    pub fn rules(&self) -> &[u128] {
        &self.rules
    }

    /// The interactions, in the order of their dispatch.
    pub fn interactions(&self) -> &[Interaction] {
        &self.interactions
    }

    /// The tables that it counts into.
    pub fn tables(&self) -> &PeripheryTables {
        &self.tables
    }

    /// Number of slots that the rules need.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Number of nodes of the dag: expression nodes after sharing and folding.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}
