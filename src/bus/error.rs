//! What can go wrong between a bus interaction and its bin.

use thiserror::Error;

use super::table::TableKind;

/// An error of the floor `bus`. Interactions are numbered among all interactions of the APC.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BusError {
    /// A lookup with the wrong number of arguments.
    #[error("interaction {interaction} on the {table} has {found} arguments, which that table cannot take")]
    ArgumentCount {
        /// The interaction.
        interaction: usize,
        /// Its table.
        table: TableKind,
        /// Number of arguments.
        found: usize,
    },
    /// An expression over a column that the trace does not have.
    #[error("interaction {interaction} refers to column {column} (id {poly_id}), which the APC trace does not have")]
    UnknownColumn {
        /// The interaction.
        interaction: usize,
        /// Name of the column.
        column: String,
        /// Its id.
        poly_id: u64,
    },
    /// A lookup of something that the table has no row for.
    #[error(
        "interaction {interaction}, row {row}: the {table} has no row for {arguments:?} \
         (multiplicity {multiplicity}): the trace is broken"
    )]
    OutOfTable {
        /// The interaction.
        interaction: usize,
        /// Its table.
        table: TableKind,
        /// Row of the APC trace.
        row: usize,
        /// The evaluated bin arguments, and the selector for the bitwise lookup.
        arguments: Vec<u32>,
        /// The evaluated multiplicity.
        multiplicity: u32,
    },
    /// A trace that does not have the shape that the program was compiled for.
    #[error("the trace has {values} values, which is not {width} columns × {height} rows with {live_rows} live")]
    Shape {
        /// Number of values.
        values: usize,
        /// Number of columns.
        width: usize,
        /// Number of rows.
        height: usize,
        /// Live rows asked for.
        live_rows: usize,
    },
    /// Something that the program's encoding cannot hold.
    #[error(
        "interaction {interaction}: {what} is {value}, but the bus program's encoding ends at {limit}: \
         build smaller APCs (--max-columns), or use another --bus-kernel"
    )]
    TooLarge {
        /// The interaction.
        interaction: usize,
        /// What is too large.
        what: &'static str,
        /// How large it is.
        value: usize,
        /// The limit.
        limit: usize,
    },
    /// A kernel that does not exist.
    #[error("unknown bus kernel `{0}`: use one of {1}")]
    UnknownKernel(String, String),
}
