//! APC trace generation on the host.

use openvm_stark_backend::p3_matrix::dense::RowMajorMatrix;
use p3_field::{Field, PrimeCharacteristicRing};
use powdr_constraint_solver::constraint_system::ComputationMethod;
use rayon::prelude::*;

use super::{
    error::TraceError,
    plan::{DerivedMethod, OriginalCell, TracePlan},
    substage::Substage,
};
use crate::{
    apc::Autoprecompile,
    bus::{field::to_f, reference::evaluate, BusProgram, Histograms, OutOfTable, TraceView, F},
};

/// A column-major trace: `values[column * height + row]`, `width × height`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApcTrace {
    /// The values.
    pub values: Vec<F>,
    /// Number of columns.
    pub width: usize,
    /// Number of rows, a power of two.
    pub height: usize,
}

impl ApcTrace {
    /// The trace as the bus programs read it.
    pub fn view(&self) -> TraceView<'_> {
        TraceView::new(&self.values, self.width, self.height)
    }

    /// The same, row-major, as the CPU backend takes it.
    pub fn into_row_major(self) -> RowMajorMatrix<F> {
        // A column-major `width × height` matrix is the row-major transpose.
        RowMajorMatrix::new(self.values, self.height).transpose()
    }
}

/// Generates the trace of `calls` calls from the dummy traces of the plan's AIRs (in the plan's order, row-major).
///
/// The first `calls` rows are live, the rest zero; the height is the next power of two.
pub fn generate_trace(
    apc: &Autoprecompile,
    plan: &TracePlan,
    dummy_traces: &[RowMajorMatrix<F>],
    dummy_names: &[&str],
    calls: usize,
) -> Result<ApcTrace, TraceError> {
    use openvm_stark_backend::p3_matrix::Matrix;

    for ((planned, trace), name) in plan.airs.iter().zip(dummy_traces).zip(dummy_names) {
        let expected = planned.rows_per_call * calls;
        if trace.height() < expected {
            return Err(TraceError::DummyTrace {
                apc: apc.name.clone(),
                air: name.to_string(),
                rows: trace.height(),
                width: trace.width,
                calls,
                expected,
            });
        }
    }
    let (width, height) = (apc.width(), calls.next_power_of_two());
    // Nothing moves on a CPU: what is left of this substage is room for the trace, and where each column comes from.
    let (mut values, source_of) = Substage::TracegenH2d.run(&apc.name, || {
        let mut source_of: Vec<Option<OriginalCell>> = vec![None; width];
        for substitution in &plan.substitutions {
            source_of[substitution.apc_column] = Some(substitution.source);
        }
        (F::zero_vec(width * height), source_of)
    });
    let mut columns: Vec<&mut [F]> = values.chunks_exact_mut(height).collect();
    let cell = |cell: &OriginalCell, call: usize| {
        let trace = &dummy_traces[cell.row.air];
        let row = call * plan.airs[cell.row.air].rows_per_call + cell.row.row;
        trace.values[row * trace.width + cell.column]
    };

    Substage::TracegenKernel.run(&apc.name, || {
        columns
            .par_iter_mut()
            .zip(&source_of)
            .for_each(|(column, source)| {
                if let Some(source) = source {
                    for (call, value) in column[..calls].iter_mut().enumerate() {
                        *value = cell(source, call);
                    }
                }
            });
    });
    Substage::Derived.run(&apc.name, || {
        for derived in &plan.derived {
            columns[derived.apc_column][..calls]
                .par_iter_mut()
                .enumerate()
                .for_each(|(call, value)| {
                    let column = |poly_id: u64| cell(&plan.cells[&poly_id], call);
                    *value = derive(&derived.method, &column);
                });
        }
    });
    Ok(ApcTrace {
        values,
        width,
        height,
    })
}

/// The value of a derived column on one row.
fn derive(method: &DerivedMethod, column: &impl Fn(u64) -> F) -> F {
    match method {
        ComputationMethod::Constant(value) => to_f(*value),
        ComputationMethod::QuotientOrZero(dividend, divisor) => evaluate(divisor, column)
            .try_inverse()
            .map_or(F::ZERO, |inverse| evaluate(dividend, column) * inverse),
        ComputationMethod::IfEqZero(condition, then, otherwise) => {
            if evaluate(condition, column) == F::ZERO {
                derive(then, column)
            } else {
                derive(otherwise, column)
            }
        }
    }
}

/// Replays the bus interactions of the live rows into the histograms.
pub fn apply_bus(
    apc: &Autoprecompile,
    program: &BusProgram,
    trace: &ApcTrace,
    calls: usize,
    histograms: &mut Histograms,
) -> Result<(), TraceError> {
    Substage::BusKernel
        .run(&apc.name, || {
            program.replay(trace.view(), calls, histograms, OutOfTable::Report)
        })
        .map_err(|source| TraceError::Bus {
            apc: apc.name.clone(),
            source,
        })
}
