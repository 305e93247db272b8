//! What an APC's bus programs cost, for people and for tests.

use std::{collections::BTreeSet, fmt};

use powdr_autoprecompiles::expression::AlgebraicExpression;
use powdr_expression::{AlgebraicBinaryOperation, AlgebraicUnaryOperation};
use serde::Serialize;

use super::{
    dag::{self, Schedule},
    error::BusError,
    interaction::{CountingInteractions, Expression, Multiplicity},
    table::TableKind,
    terms, vm, F,
};

/// What one schedule of the dag needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScheduleStats {
    /// Rules.
    pub rules: usize,
    /// Slots.
    pub slots: usize,
    /// The largest number of slots whose value is still needed at once.
    pub live_maximum: usize,
    /// Slots after reordering the interactions.
    pub slots_reordered: usize,
}

/// What the bus programs of one APC cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BusStats {
    /// The APC, or `maxima`.
    pub name: String,
    /// Columns of the trace.
    pub columns: usize,
    /// Counting interactions: the updates a live row makes, if all multiplicities are nonzero.
    pub updates_per_row: usize,
    /// Of those, on the variable range checker.
    pub variable_range_checker: usize,
    /// Of those, on the two-tuple range checker.
    pub range_tuple_checker: usize,
    /// Of those, on the bitwise lookup.
    pub bitwise_lookup: usize,
    /// Interactions whose multiplicity is provably one on live rows.
    pub static_multiplicities: usize,
    /// Expression nodes of all operands, before sharing.
    pub nodes: usize,
    /// Nodes of the dag, after sharing and folding.
    pub shared_nodes: usize,
    /// Words of stack bytecode.
    pub bytecode_words: usize,
    /// Terms of all operands that a `terms` program has.
    pub terms: usize,
    /// Interactions that such a program leaves to bytecode.
    pub left_to_bytecode: usize,
    /// Distinct columns that a row's interactions read.
    pub used_columns: usize,
    /// Bytes of the trace that they take.
    pub bytes_per_row: usize,
    /// Outputs pinned to the end, shared columns buffered: the seed's schedule.
    pub pinned_buffered: ScheduleStats,
    /// Outputs pinned to the end, shared columns read again.
    pub pinned_read_again: ScheduleStats,
    /// Interactions dispatched early, shared columns buffered.
    pub early_buffered: ScheduleStats,
    /// Interactions dispatched early, shared columns read again.
    pub early_read_again: ScheduleStats,
}

impl BusStats {
    /// Compiles an APC's interactions in every way and counts.
    pub fn of(name: &str, interactions: &CountingInteractions) -> Result<Self, BusError> {
        let list = interactions.interactions();
        let operands = || {
            list.iter().flat_map(|interaction| {
                let multiplicity = match &interaction.multiplicity {
                    Multiplicity::One => None,
                    Multiplicity::Expression(expression) => Some(expression),
                };
                multiplicity
                    .into_iter()
                    .chain(&interaction.arguments)
                    .chain(&interaction.selector)
            })
        };
        let on = |table: TableKind| list.iter().filter(|i| i.table == table).count();
        let mut used = BTreeSet::new();
        operands().for_each(|operand| collect_columns(operand, &mut used));
        let terms = terms::Program::compile(interactions)?;
        let reordered = dag::reordered(interactions)?;
        let schedule = |schedule: Schedule| -> Result<ScheduleStats, BusError> {
            let program = dag::Program::compile(interactions, schedule)?;
            Ok(ScheduleStats {
                rules: program.rules().len(),
                slots: program.slots(),
                live_maximum: program.live_maximum(),
                slots_reordered: dag::Program::compile(&reordered, schedule)?.slots(),
            })
        };
        let [pinned_buffered, pinned_read_again, early_buffered, early_read_again] = Schedule::ALL;
        Ok(Self {
            name: name.to_string(),
            columns: interactions.columns().width(),
            updates_per_row: list.len(),
            variable_range_checker: on(TableKind::VariableRangeChecker),
            range_tuple_checker: on(TableKind::RangeTupleChecker),
            bitwise_lookup: on(TableKind::BitwiseLookup),
            static_multiplicities: list
                .iter()
                .filter(|interaction| interaction.multiplicity == Multiplicity::One)
                .count(),
            nodes: operands().map(count_nodes).sum(),
            shared_nodes: dag::Program::compile(interactions, Schedule::SEED)?.nodes(),
            bytecode_words: vm::Program::compile(interactions)?.code().len(),
            terms: terms.linear().len() + terms.products().len(),
            left_to_bytecode: terms.rest().interactions().len(),
            used_columns: used.len(),
            bytes_per_row: used.len() * size_of::<F>(),
            pinned_buffered: schedule(pinned_buffered)?,
            pinned_read_again: schedule(pinned_read_again)?,
            early_buffered: schedule(early_buffered)?,
            early_read_again: schedule(early_read_again)?,
        })
    }

    /// Field by field the largest of several APCs.
    pub fn maxima<'a>(all: impl IntoIterator<Item = &'a BusStats>) -> Self {
        let schedule = |a: ScheduleStats, b: ScheduleStats| ScheduleStats {
            rules: a.rules.max(b.rules),
            slots: a.slots.max(b.slots),
            live_maximum: a.live_maximum.max(b.live_maximum),
            slots_reordered: a.slots_reordered.max(b.slots_reordered),
        };
        all.into_iter().fold(
            Self {
                name: "maxima".to_string(),
                ..Self::default()
            },
            |a, b| Self {
                name: a.name,
                columns: a.columns.max(b.columns),
                updates_per_row: a.updates_per_row.max(b.updates_per_row),
                variable_range_checker: a.variable_range_checker.max(b.variable_range_checker),
                range_tuple_checker: a.range_tuple_checker.max(b.range_tuple_checker),
                bitwise_lookup: a.bitwise_lookup.max(b.bitwise_lookup),
                static_multiplicities: a.static_multiplicities.max(b.static_multiplicities),
                nodes: a.nodes.max(b.nodes),
                shared_nodes: a.shared_nodes.max(b.shared_nodes),
                bytecode_words: a.bytecode_words.max(b.bytecode_words),
                terms: a.terms.max(b.terms),
                left_to_bytecode: a.left_to_bytecode.max(b.left_to_bytecode),
                used_columns: a.used_columns.max(b.used_columns),
                bytes_per_row: a.bytes_per_row.max(b.bytes_per_row),
                pinned_buffered: schedule(a.pinned_buffered, b.pinned_buffered),
                pinned_read_again: schedule(a.pinned_read_again, b.pinned_read_again),
                early_buffered: schedule(a.early_buffered, b.early_buffered),
                early_read_again: schedule(a.early_read_again, b.early_read_again),
            },
        )
    }

    fn cells(&self) -> [String; 13] {
        let slots = |stats: ScheduleStats| format!("{}/{}", stats.slots, stats.slots_reordered);
        [
            self.columns.to_string(),
            format!(
                "{}/{}/{}",
                self.variable_range_checker, self.range_tuple_checker, self.bitwise_lookup
            ),
            self.static_multiplicities.to_string(),
            format!("{}/{}", self.nodes, self.shared_nodes),
            self.bytecode_words.to_string(),
            self.pinned_buffered.rules.to_string(),
            slots(self.pinned_buffered),
            slots(self.pinned_read_again),
            slots(self.early_buffered),
            slots(self.early_read_again),
            match self.left_to_bytecode {
                0 => self.terms.to_string(),
                left => format!("{} (+{left} left)", self.terms),
            },
            self.updates_per_row.to_string(),
            self.bytes_per_row.to_string(),
        ]
    }
}

/// Several APCs' costs and their maxima, as a table for people.
pub struct StatsTable<'a>(pub &'a [BusStats]);

impl fmt::Display for StatsTable<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEADERS: [&str; 13] = [
            "columns",
            "range/tuple/bitwise",
            "static mult.",
            "nodes/shared",
            "vm words",
            "dag rules",
            "pinned, buffered",
            "pinned, again",
            "early, buffered",
            "early, again",
            "terms",
            "updates/row",
            "bytes/row",
        ];
        writeln!(
            formatter,
            "Bus programs. Slots of the dag per schedule, before/after reordering interactions."
        )?;
        let maxima = BusStats::maxima(self.0);
        let rows: Vec<(&str, [String; 13])> = self
            .0
            .iter()
            .chain([&maxima])
            .map(|stats| (stats.name.as_str(), stats.cells()))
            .collect();
        let name_width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let widths: Vec<usize> = HEADERS
            .iter()
            .enumerate()
            .map(|(column, header)| {
                rows.iter()
                    .map(|(_, cells)| cells[column].len())
                    .chain([header.len()])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        write!(formatter, "{:<name_width$}", "APC")?;
        for (header, width) in HEADERS.iter().zip(&widths) {
            write!(formatter, "  {header:>width$}")?;
        }
        for (name, cells) in &rows {
            write!(formatter, "\n{name:<name_width$}")?;
            for (cell, width) in cells.iter().zip(&widths) {
                write!(formatter, "  {cell:>width$}")?;
            }
        }
        Ok(())
    }
}

fn count_nodes(expression: &Expression) -> usize {
    match expression {
        AlgebraicExpression::Number(_) | AlgebraicExpression::Reference(_) => 1,
        AlgebraicExpression::BinaryOperation(AlgebraicBinaryOperation { left, right, .. }) => {
            1 + count_nodes(left) + count_nodes(right)
        }
        AlgebraicExpression::UnaryOperation(AlgebraicUnaryOperation { expr, .. }) => {
            1 + count_nodes(expr)
        }
    }
}

fn collect_columns(expression: &Expression, columns: &mut BTreeSet<u64>) {
    match expression {
        AlgebraicExpression::Number(_) => {}
        AlgebraicExpression::Reference(reference) => {
            columns.insert(reference.id);
        }
        AlgebraicExpression::BinaryOperation(AlgebraicBinaryOperation { left, right, .. }) => {
            collect_columns(left, columns);
            collect_columns(right, columns);
        }
        AlgebraicExpression::UnaryOperation(AlgebraicUnaryOperation { expr, .. }) => {
            collect_columns(expr, columns);
        }
    }
}
