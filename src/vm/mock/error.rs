//! What is wrong with traces, for programs and for people.

use std::fmt::{self, Display, Formatter};

use itertools::Itertools;
use thiserror::Error;

/// Why a proof of these traces would not be made, or not be accepted.
#[derive(Debug, Error)]
pub enum MockError {
    /// The proving context and the proving key are of different VMs.
    #[error("there is a trace for AIR {air_id}, but the proving key knows only {airs} AIRs")]
    UnknownAir {
        /// Index of the AIR.
        air_id: usize,
        /// How many the proving key has.
        airs: usize,
    },
    /// Two traces for one AIR.
    #[error("AIR {air} has two traces")]
    DuplicateAir {
        /// Name of the AIR.
        air: String,
    },
    /// An AIR that every proof needs has none.
    #[error("AIR {air} has no trace, and every proof needs one")]
    MissingAir {
        /// Name of the AIR.
        air: String,
    },
    /// A part of a trace has another width than in the proving key.
    #[error("AIR {air}, {part}: {actual} columns where the proving key says {expected}")]
    Width {
        /// Name of the AIR.
        air: String,
        /// The part of its trace: common main, cached or preprocessed.
        part: String,
        /// Columns by the proving key.
        expected: usize,
        /// Columns that there are.
        actual: usize,
    },
    /// The parts of a trace differ in height.
    #[error("AIR {air}, {part}: height {actual} where the AIR's main trace has {expected}")]
    PartHeight {
        /// Name of the AIR.
        air: String,
        /// The part of its trace.
        part: String,
        /// Rows of the main trace.
        expected: usize,
        /// Rows of the part.
        actual: usize,
    },
    /// A height that the proof system does not know.
    #[error("AIR {air}: height {height} is no power of two up to 2^{max_log_height}")]
    Height {
        /// Name of the AIR.
        air: String,
        /// Rows of its trace.
        height: usize,
        /// Logarithm of the most rows.
        max_log_height: usize,
    },
    /// More or fewer cached traces than in the proving key.
    #[error("AIR {air}: {actual} cached traces where the proving key says {expected}")]
    CachedTraces {
        /// Name of the AIR.
        air: String,
        /// Cached traces by the proving key.
        expected: usize,
        /// Cached traces that there are.
        actual: usize,
    },
    /// More or fewer public values than in the proving key.
    #[error("AIR {air}: {actual} public values where the proving key says {expected}")]
    PublicValues {
        /// Name of the AIR.
        air: String,
        /// Public values by the proving key.
        expected: usize,
        /// Public values that there are.
        actual: usize,
    },
    /// The verifier bounds weighted sums of the trace heights, for the sake of the bus argument's soundness.
    #[error("the trace heights exceed the verifier's bound {index}: {value} where it allows less than {threshold}; use smaller segments")]
    TraceHeights {
        /// Position of the bound in the verifying key.
        index: usize,
        /// The weighted sum of the heights.
        value: u64,
        /// The bound, exclusive.
        threshold: u32,
    },
    /// The traces have the right shape, but are wrong.
    #[error("{0}")]
    Unsatisfied(Box<Unsatisfied>),
}

/// The constraints that do not hold and the messages that do not balance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsatisfied {
    /// Up to [`MAX_DESCRIBED`] violated constraints, each with its first row.
    pub constraints: Vec<ConstraintViolation>,
    /// How many constraints are violated somewhere, over all AIRs.
    pub violated_constraints: usize,
    /// Up to [`MAX_DESCRIBED`] unbalanced messages of each bus.
    pub messages: Vec<UnbalancedMessage>,
    /// How many messages are unbalanced, over all buses.
    pub unbalanced_messages: usize,
}

/// A constraint that is not zero on some row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstraintViolation {
    /// The AIR's name.
    pub air: String,
    /// Position in the verifying key's list of this AIR's constraints.
    pub constraint: usize,
    /// The constraint, with column names where they are known; `'` marks the next row.
    pub expression: String,
    /// The first row on which it does not hold.
    pub row: usize,
    /// On how many rows it does not hold.
    pub rows: usize,
    /// Its value on the first row, canonical.
    pub value: u64,
    /// The cells it reads on the first row: name and canonical value. At most 24.
    pub cells: Vec<(String, u64)>,
}

/// A bus message that is not received as often as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnbalancedMessage {
    /// Index and, where known, name of the bus.
    pub bus: String,
    /// The message, canonical.
    pub message: Vec<u64>,
    /// Sum of its multiplicities, as the representative of smallest absolute value.
    pub sum: i64,
    /// Who sends (positive) and receives (negative) it. At most 8.
    pub contributions: Vec<Contribution>,
    /// How many interactions have a part in it.
    pub interactions: usize,
}

/// One interaction's part in an unbalanced message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contribution {
    /// Name of the AIR.
    pub air: String,
    /// Row of its trace.
    pub row: usize,
    /// Position among the AIR's interactions.
    pub interaction: usize,
    /// Multiplicity, as the representative of smallest absolute value.
    pub count: i64,
}

impl Display for Unsatisfied {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} constraint(s) violated, {} bus message(s) unbalanced",
            self.violated_constraints, self.unbalanced_messages
        )?;
        for violation in &self.constraints {
            write!(f, "\n  {violation}")?;
        }
        write_more(f, self.violated_constraints, self.constraints.len())?;
        for message in &self.messages {
            write!(f, "\n  {message}")?;
        }
        write_more(f, self.unbalanced_messages, self.messages.len())
    }
}

fn write_more(f: &mut Formatter<'_>, total: usize, shown: usize) -> fmt::Result {
    match total - shown {
        0 => Ok(()),
        more => write!(f, "\n  … and {more} more"),
    }
}

impl Display for ConstraintViolation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "AIR {}, row {}, constraint {}: {} = {}",
            self.air, self.row, self.constraint, self.expression, self.value
        )?;
        if !self.cells.is_empty() {
            let cells = self
                .cells
                .iter()
                .map(|(name, value)| format!("{name} = {value}"))
                .join(", ");
            write!(f, ", where {cells}")?;
        }
        match self.rows {
            1 => Ok(()),
            rows => write!(f, " (violated on {rows} rows)"),
        }
    }
}

impl Display for UnbalancedMessage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bus {}, message {:?}: multiplicities sum to {}:",
            self.bus, self.message, self.sum
        )?;
        for contribution in &self.contributions {
            write!(
                f,
                "\n    {:+} from AIR {}, row {}, interaction {}",
                contribution.count, contribution.air, contribution.row, contribution.interaction
            )?;
        }
        match self.interactions - self.contributions.len() {
            0 => Ok(()),
            more => write!(f, "\n    … and {more} more"),
        }
    }
}
