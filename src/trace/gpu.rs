//! APC trace generation on the GPU, substage by substage as [`super::cpu`].
//!
//! What does not depend on the segment (substitutions, derived columns, the bus program) is uploaded once per APC and
//! VM, and used by every segment and proof: [`DeviceApc`]. Everything else is enqueued on the prover's stream.

use std::{
    rc::Rc,
    sync::{
        atomic::{AtomicU64, Ordering},
        OnceLock,
    },
};

use openvm_cuda_backend::base::DeviceMatrix;
use openvm_cuda_common::{d_buffer::DeviceBuffer, stream::GpuDeviceCtx};
use openvm_stark_backend::prover::MatrixDimensions;
use powdr_autoprecompiles::expression::{AlgebraicExpression, AlgebraicReference};
use powdr_constraint_solver::constraint_system::ComputationMethod;
use powdr_number::{BabyBearField, ExpressionConvertible};

use super::{
    plan::{self, TracePlan},
    substage::{profiling, Substage},
    TraceError,
};
use crate::{
    apc::Autoprecompile,
    bus::{BusError, BusProgram, F},
    gpu::{
        derived::{DerivedCode, DerivedMethod},
        event::timed,
        launch::{derive, substitute, ApcTraceTarget},
        memory::{allocate, upload},
        BusScratch, BusTrace, DeviceBusProgram, DeviceDerivedColumns, GpuError, GpuSettings,
        OriginalCell, OriginalTrace, PeripheryCounts, Substitution,
    },
};

static PLAN_UPLOADS: AtomicU64 = AtomicU64::new(0);

/// How many APCs' plans (substitutions and derived columns) this process has uploaded: one per APC and VM, however many
/// segments and proofs it serves.
pub fn plan_uploads() -> u64 {
    PLAN_UPLOADS.load(Ordering::Relaxed)
}

/// With `POWDR_TRACE_PROFILE`, waits for the device.
///
/// # Errors
/// [`GpuError::Runtime`], also for a failure of earlier work.
pub fn wait_if_profiling(device_ctx: &GpuDeviceCtx) -> Result<(), GpuError> {
    if !profiling() {
        return Ok(());
    }
    device_ctx
        .stream
        .synchronize()
        .map_err(|source| GpuError::Runtime {
            call: "cudaStreamSynchronize",
            source,
        })
}

/// An APC's plan in device memory.
struct DevicePlan {
    substitutions: DeviceBuffer<Substitution>,
    derived: DeviceDerivedColumns,
}

/// What an APC keeps on the device for as long as its VM lives.
pub struct DeviceApc {
    device_ctx: GpuDeviceCtx,
    settings: GpuSettings,
    scratch: Rc<BusScratch>,
    plan: OnceLock<DevicePlan>,
    program: OnceLock<DeviceBusProgram>,
}

impl DeviceApc {
    /// Nothing is uploaded before the first call. All APCs of a VM share one `scratch`.
    pub fn new(settings: GpuSettings, scratch: Rc<BusScratch>, device_ctx: GpuDeviceCtx) -> Self {
        Self {
            device_ctx,
            settings,
            scratch,
            plan: OnceLock::new(),
            program: OnceLock::new(),
        }
    }

    /// The prover's stream.
    pub fn device_ctx(&self) -> &GpuDeviceCtx {
        &self.device_ctx
    }

    /// Runs a substage: span, counter and, in a recording, CUDA events. With `POWDR_TRACE_PROFILE` it ends when the
    /// device is done.
    pub fn substage<R>(
        &self,
        substage: Substage,
        apc: &str,
        work: impl FnOnce() -> Result<R, TraceError>,
    ) -> Result<R, TraceError> {
        substage.run(apc, || {
            let mut failure = None;
            let result = timed(substage.name(), apc, &self.device_ctx, || match work() {
                Ok(result) => Ok(Some(result)),
                Err(error) => {
                    failure = Some(error);
                    Ok(None)
                }
            })?;
            wait_if_profiling(&self.device_ctx)?;
            match (result, failure) {
                (_, Some(error)) => Err(error),
                (Some(result), None) => Ok(result),
                (None, None) => unreachable!("the work returned either a result or an error"),
            }
        })
    }

    /// Generates the trace of `calls` calls from the dummy traces of the plan's AIRs (in the plan's order): column-major,
    /// the first `calls` rows live, the rest zero; the height is the next power of two.
    ///
    /// # Errors
    /// [`TraceError::DummyTrace`] if a dummy trace is too short, [`TraceError::Gpu`] for failures of the device.
    pub fn generate_trace(
        &self,
        apc: &Autoprecompile,
        plan: &TracePlan,
        dummy_traces: &[DeviceMatrix<F>],
        dummy_names: &[String],
        calls: usize,
    ) -> Result<DeviceMatrix<F>, TraceError> {
        let (device_plan, original_traces) =
            self.substage(Substage::TracegenH2d, &apc.name, || {
                let device_plan = match self.plan.get() {
                    Some(device_plan) => device_plan,
                    None => {
                        let uploaded = self.upload_plan(apc, plan)?;
                        self.plan.get_or_init(|| uploaded)
                    }
                };
                let originals = original_traces(apc, plan, dummy_traces, dummy_names, calls)?;
                let what = || format!("the list of dummy traces of {}", apc.name);
                Ok((device_plan, upload(&originals, &what, &self.device_ctx)?))
            })?;

        let (width, height) = (apc.width(), calls.next_power_of_two());
        let cells = height
            .checked_mul(width)
            .ok_or_else(|| GpuError::TooLarge {
                apc: apc.name.clone(),
                what: format!(
                    "{calls} calls of {width} columns are more cells than can be addressed"
                ),
            })?;
        let values = allocate(
            cells,
            &|| format!("the trace of {}", apc.name),
            &self.device_ctx,
        )?;
        let target = ApcTraceTarget {
            apc: &apc.name,
            values: &values,
            height: height as u64,
            calls: calls as u64,
        };
        self.substage(Substage::TracegenKernel, &apc.name, || {
            Ok(substitute(
                &target,
                &original_traces,
                &device_plan.substitutions,
                &self.device_ctx,
            )?)
        })?;
        self.substage(Substage::Derived, &apc.name, || {
            Ok(derive(
                &target,
                &original_traces,
                &device_plan.derived,
                &self.device_ctx,
            )?)
        })?;
        Ok(DeviceMatrix::new(values.into(), height, width))
    }

    /// Counts the bus interactions of the first `calls` rows into the periphery chips' buffers. `compile` is called, and
    /// its program uploaded, the first time only; what a launch keeps in scratch is allocated before it.
    ///
    /// # Errors
    /// [`TraceError::Bus`] from `compile`, [`TraceError::Gpu`] for failures of the device.
    pub fn apply_bus(
        &self,
        apc: &Autoprecompile,
        compile: impl FnOnce() -> Result<std::sync::Arc<BusProgram>, BusError>,
        trace: &DeviceMatrix<F>,
        calls: usize,
        counts: PeripheryCounts,
    ) -> Result<(), TraceError> {
        let program = self.substage(Substage::BusCompileH2d, &apc.name, || {
            let program = match self.program.get() {
                Some(program) => program,
                None => {
                    let compiled = compile().map_err(|source| TraceError::Bus {
                        apc: apc.name.clone(),
                        source,
                    })?;
                    let uploaded = DeviceBusProgram::upload(
                        &apc.name,
                        &compiled,
                        &self.settings,
                        &self.device_ctx,
                    )?;
                    self.program.get_or_init(|| uploaded)
                }
            };
            program.reserve(calls as u64, &self.scratch, &self.device_ctx)?;
            Ok(program)
        })?;
        let bus_trace = BusTrace {
            values: trace.buffer().as_ptr(),
            height: trace.height() as u64,
            live_rows: calls as u64,
        };
        self.substage(Substage::BusKernel, &apc.name, || {
            Ok(program.launch(bus_trace, counts, &self.scratch, &self.device_ctx)?)
        })
    }

    fn upload_plan(
        &self,
        apc: &Autoprecompile,
        plan: &TracePlan,
    ) -> Result<DevicePlan, TraceError> {
        let mut substitutions: Vec<Substitution> = plan
            .substitutions
            .iter()
            .map(|substitution| Substitution {
                cell: device_cell(&substitution.source),
                apc_column: substitution.apc_column as u32,
            })
            .collect();
        // By source, so that blocks that run together read the same lines.
        substitutions.sort_unstable();
        let columns = plan
            .derived
            .iter()
            .map(|derived| (derived.apc_column as u32, over_cells(&derived.method, plan)))
            .collect::<Vec<_>>();
        let code = DerivedCode::compile(&apc.name, &columns)?;
        PLAN_UPLOADS.fetch_add(1, Ordering::Relaxed);
        Ok(DevicePlan {
            substitutions: upload(
                &substitutions,
                &|| format!("the substitutions of {}", apc.name),
                &self.device_ctx,
            )?,
            derived: DeviceDerivedColumns::upload(&apc.name, &code, &self.device_ctx)?,
        })
    }
}

fn device_cell(cell: &plan::OriginalCell) -> OriginalCell {
    OriginalCell {
        trace: cell.row.air as u32,
        column: cell.column as u32,
        row_in_call: cell.row.row as u32,
    }
}

/// A computation method with its column ids resolved to cells of the original traces.
fn over_cells(method: &plan::DerivedMethod, plan: &TracePlan) -> DerivedMethod {
    let over_cells_expression = |expression: &AlgebraicExpression<BabyBearField>| {
        expression.to_expression(
            &|number: &BabyBearField| powdr_expression::AlgebraicExpression::Number(*number),
            &|reference: &AlgebraicReference| {
                powdr_expression::AlgebraicExpression::Reference(device_cell(
                    // The plan refuses references that no cell backs.
                    &plan.cells[&reference.id],
                ))
            },
        )
    };
    match method {
        ComputationMethod::Constant(value) => ComputationMethod::Constant(*value),
        ComputationMethod::QuotientOrZero(dividend, divisor) => ComputationMethod::QuotientOrZero(
            over_cells_expression(dividend),
            over_cells_expression(divisor),
        ),
        ComputationMethod::IfEqZero(condition, if_zero, otherwise) => ComputationMethod::IfEqZero(
            over_cells_expression(condition),
            Box::new(over_cells(if_zero, plan)),
            Box::new(over_cells(otherwise, plan)),
        ),
    }
}

/// The device's view of the dummy traces, once it is known that each has the rows that the calls need.
fn original_traces(
    apc: &Autoprecompile,
    plan: &TracePlan,
    dummy_traces: &[DeviceMatrix<F>],
    dummy_names: &[String],
    calls: usize,
) -> Result<Vec<OriginalTrace>, TraceError> {
    plan.airs
        .iter()
        .zip(dummy_traces)
        .zip(dummy_names)
        .map(|((planned, trace), name)| {
            let expected = planned.rows_per_call.saturating_mul(calls);
            if trace.height() < expected {
                return Err(TraceError::DummyTrace {
                    apc: apc.name.clone(),
                    air: name.clone(),
                    rows: trace.height(),
                    width: trace.width(),
                    calls,
                    expected,
                });
            }
            Ok(OriginalTrace {
                values: trace.buffer().as_ptr(),
                height: trace.height() as u64,
                rows_per_call: planned.rows_per_call as u32,
                padding: 0,
            })
        })
        .collect()
}
