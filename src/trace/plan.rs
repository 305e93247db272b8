//! What an APC's trace is made of: a pure function of the APC, computed once and used by every segment.

use std::collections::{BTreeMap, HashMap};

use powdr_autoprecompiles::expression::AlgebraicExpression;
use powdr_constraint_solver::constraint_system::ComputationMethod;
use powdr_number::BabyBearField;

use super::error::TraceError;
use crate::apc::{AirIndex, Autoprecompile};

/// An original AIR that contributes columns to the APC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedAir {
    /// The AIR.
    pub air: AirIndex,
    /// Rows of its dummy trace per call of the APC: one for each instruction of which a column survived.
    pub rows_per_call: usize,
}

/// Where an original row stands: in the dummy trace of `airs[air]`, call `c` has it in row
/// `c * rows_per_call + row`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OriginalRow {
    /// Index into [`TracePlan::airs`].
    pub air: usize,
    /// Index among the AIR's rows of one call.
    pub row: usize,
}

/// A cell of an original row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OriginalCell {
    /// The row.
    pub row: OriginalRow,
    /// The column of the original AIR.
    pub column: usize,
}

/// A column that survives: copied out of an original row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Substitution {
    /// From.
    pub source: OriginalCell,
    /// To: column of the APC trace.
    pub apc_column: usize,
}

/// How a derived column is computed, over cells of the original rows.
pub type DerivedMethod = ComputationMethod<BabyBearField, AlgebraicExpression<BabyBearField>>;

/// A column that the optimizer introduced.
#[derive(Clone, Debug)]
pub struct DerivedColumn {
    /// Column of the APC trace.
    pub apc_column: usize,
    /// How to compute it; references are column ids, found in [`TracePlan::cells`].
    pub method: DerivedMethod,
}

/// What an APC's trace is made of.
#[derive(Clone, Debug)]
pub struct TracePlan {
    /// The original AIRs that contribute, in order of first occurrence.
    pub airs: Vec<PlannedAir>,
    /// For each instruction, its original row, or `None` if no column of it survived: its record is discarded.
    pub rows: Vec<Option<OriginalRow>>,
    /// The columns that survive.
    pub substitutions: Vec<Substitution>,
    /// The columns to compute.
    pub derived: Vec<DerivedColumn>,
    /// Column ids to the original cells they stand for.
    pub cells: HashMap<u64, OriginalCell>,
}

impl TracePlan {
    /// Plans the trace of an APC.
    pub fn new(apc: &Autoprecompile) -> Result<Self, TraceError> {
        let inconsistent = |what: String| TraceError::Plan {
            apc: apc.name.clone(),
            what,
        };
        if apc.substitutions.len() != apc.instructions.len()
            || apc.original_airs.len() != apc.instructions.len()
        {
            return Err(inconsistent(format!(
                "{} instructions, {} substitution lists, {} AIRs",
                apc.instructions.len(),
                apc.substitutions.len(),
                apc.original_airs.len()
            )));
        }
        let column_indices = apc.column_indices();
        let mut airs: Vec<PlannedAir> = Vec::new();
        let mut planned: BTreeMap<AirIndex, usize> = BTreeMap::new();
        let mut rows = Vec::with_capacity(apc.instructions.len());
        let mut substitutions = Vec::new();
        let mut cells = HashMap::new();
        for (substitution_list, &air) in apc.substitutions.iter().zip(&apc.original_airs) {
            if substitution_list.is_empty() {
                rows.push(None);
                continue;
            }
            let air = *planned.entry(air).or_insert_with(|| {
                airs.push(PlannedAir {
                    air,
                    rows_per_call: 0,
                });
                airs.len() - 1
            });
            let row = OriginalRow {
                air,
                row: airs[air].rows_per_call,
            };
            airs[air].rows_per_call += 1;
            rows.push(Some(row));
            for substitution in substitution_list {
                let source = OriginalCell {
                    row,
                    column: substitution.original_poly_index,
                };
                cells.insert(substitution.apc_poly_id, source);
                if let Some(&apc_column) = column_indices.get(&substitution.apc_poly_id) {
                    substitutions.push(Substitution { source, apc_column });
                }
            }
        }
        let derived = apc
            .machine
            .derived_columns
            .iter()
            .filter(|derived| derived.is_new)
            .map(|derived| {
                let apc_column = *column_indices.get(&derived.variable.id).ok_or_else(|| {
                    inconsistent(format!(
                        "derived column {} is no column of the trace",
                        derived.variable
                    ))
                })?;
                check_backed(&derived.computation_method, &cells).map_err(|name| {
                    inconsistent(format!(
                        "derived column {} refers to {name}, which no original row backs",
                        derived.variable
                    ))
                })?;
                Ok(DerivedColumn {
                    apc_column,
                    method: derived.computation_method.clone(),
                })
            })
            .collect::<Result<Vec<_>, TraceError>>()?;

        let mut sources = vec![0usize; apc.width()];
        for column in substitutions
            .iter()
            .map(|substitution| substitution.apc_column)
            .chain(derived.iter().map(|derived| derived.apc_column))
        {
            sources[column] += 1;
        }
        if let Some(column) = sources.iter().position(|&count| count != 1) {
            return Err(inconsistent(format!(
                "column {} ({}) has {} sources",
                column, apc.columns[column].name, sources[column]
            )));
        }
        Ok(Self {
            airs,
            rows,
            substitutions,
            derived,
            cells,
        })
    }
}

/// `Err` with the name of a reference that no original cell backs.
fn check_backed(method: &DerivedMethod, cells: &HashMap<u64, OriginalCell>) -> Result<(), String> {
    use powdr_autoprecompiles::powdr::UniqueReferences;

    let expressions: Vec<_> = method.expressions().collect();
    for expression in expressions {
        for reference in expression.unique_references() {
            if !cells.contains_key(&reference.id) {
                return Err(reference.to_string());
            }
        }
    }
    Ok(())
}
