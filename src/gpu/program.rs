//! Bus programs on the device: uploaded once per APC, launched once per segment.

use std::{
    mem::size_of,
    sync::{
        atomic::{AtomicU64, Ordering},
        Mutex, MutexGuard, PoisonError,
    },
};

use openvm_cuda_common::{d_buffer::DeviceBuffer, stream::GpuDeviceCtx};

use super::{
    device::limits,
    error::GpuError,
    ffi,
    launch::check,
    memory,
    profiler::Capture,
    structs::{BusTrace, PeripheryCounts, TermsProgram},
};
use crate::bus::{
    dag,
    table::TableSizes,
    terms::{
        self,
        launch::{DeviceLimits, Launch, SharedCounters},
    },
    vm, BusProgram, F,
};

/// Additions of a `terms` launch from which on its blocks count in shared memory, unless told otherwise: measured
/// (`docs/experiments.md`).
pub const DEFAULT_PRIVATE_FROM_ADDITIONS: u64 = 5 << 17;

/// Bytes of intermediates that a `dag` launch may use unless told otherwise.
pub const DEFAULT_BUS_SCRATCH: usize = 256 << 20;

/// What may be set about the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSettings {
    /// Upper bound of the memory for a launch's intermediates, in bytes. Below what all rows need, the threads of `dag`
    /// stride over the rows. The other kernels have none.
    pub bus_scratch: usize,
    /// Additions (rows × interactions) from which on the blocks of a `terms` launch count in shared memory.
    pub private_from_additions: u64,
}

impl Default for GpuSettings {
    fn default() -> Self {
        Self {
            bus_scratch: DEFAULT_BUS_SCRATCH,
            private_from_additions: DEFAULT_PRIVATE_FROM_ADDITIONS,
        }
    }
}

/// Device memory for the intermediates of `dag` launches, one for all APCs of a VM: their launches follow each other on
/// one stream. It grows to what the largest launch needs, within [`GpuSettings::bus_scratch`], and stays: growing waits for
/// the device, which [`DeviceBusProgram::reserve`] keeps out of the launch.
#[derive(Default)]
pub struct BusScratch(Mutex<Option<DeviceBuffer<F>>>);

impl BusScratch {
    /// At least `elements` field elements; `apc` names what they are for in errors.
    fn at_least(
        &self,
        elements: usize,
        apc: &str,
        device_ctx: &GpuDeviceCtx,
    ) -> Result<MutexGuard<'_, Option<DeviceBuffer<F>>>, GpuError> {
        // A panic elsewhere leaves the buffer whole.
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.as_ref().is_none_or(|buffer| buffer.len() < elements) {
            // Freed first, in stream order, so that both are never held at once.
            *held = None;
            *held = Some(memory::allocate(
                elements,
                &|| format!("the intermediates of {apc}"),
                device_ctx,
            )?);
        }
        Ok(held)
    }
}

static UPLOADS: AtomicU64 = AtomicU64::new(0);

/// How many bus programs this process has uploaded: one per APC and VM, however many segments and proofs it serves.
pub fn program_uploads() -> u64 {
    UPLOADS.load(Ordering::Relaxed)
}

/// A bus program in device memory.
pub struct DeviceBusProgram {
    apc: String,
    /// Of the tables that it was compiled for.
    sizes: TableSizes,
    kind: Kind,
}

enum Kind {
    /// No counted interaction.
    Empty,
    Vm(DeviceVmProgram),
    Dag {
        rules: DeviceBuffer<u128>,
        interactions: DeviceBuffer<dag::Interaction>,
        slots: usize,
        scratch: usize,
    },
    Terms {
        interactions: DeviceBuffer<terms::Interaction>,
        linear: DeviceBuffer<terms::Linear>,
        products: DeviceBuffer<terms::Product>,
        shared: SharedCounters,
        limits: DeviceLimits,
        rest: DeviceVmProgram,
    },
}

struct DeviceVmProgram {
    code: DeviceBuffer<u32>,
    interactions: DeviceBuffer<vm::Interaction>,
}

impl DeviceVmProgram {
    fn upload(
        apc: &str,
        program: &vm::Program,
        device_ctx: &GpuDeviceCtx,
    ) -> Result<Self, GpuError> {
        Ok(Self {
            code: memory::upload(
                program.code(),
                &|| format!("the bytecode of {apc}"),
                device_ctx,
            )?,
            interactions: memory::upload(
                program.interactions(),
                &|| format!("the bus interactions of {apc}"),
                device_ctx,
            )?,
        })
    }

    /// Enqueues the kernel, if there is anything to do.
    fn launch(
        &self,
        apc: &str,
        trace: BusTrace,
        counts: PeripheryCounts,
        device_ctx: &GpuDeviceCtx,
    ) -> Result<(), GpuError> {
        if self.interactions.is_empty() {
            return Ok(());
        }
        let _capture = Capture::of_large(self.interactions.len());
        // SAFETY: all pointers are device memory that lives until the stream has passed this point (buffers are freed in
        // stream order); the program only names columns of this APC, as its compiler checked.
        let status = unsafe {
            ffi::_apc_apply_bus_vm(
                trace,
                self.code.as_ptr(),
                self.interactions.as_raw_ptr(),
                self.interactions.len() as u32,
                counts,
                device_ctx.stream.as_raw(),
            )
        };
        check("apc_apply_bus_vm", apc, status)
    }

    fn bytes(&self) -> usize {
        self.code.len() * size_of::<u32>() + self.interactions.len() * size_of::<vm::Interaction>()
    }
}

impl DeviceBusProgram {
    /// Copies a program to the device. `apc` names it in errors.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::Copy`], or [`GpuError::TooLarge`] if not even one block of threads has room
    /// for its intermediates.
    pub fn upload(
        apc: &str,
        program: &BusProgram,
        settings: &GpuSettings,
        device_ctx: &GpuDeviceCtx,
    ) -> Result<Self, GpuError> {
        let kind = match program {
            BusProgram::Vm(program) if program.interactions().is_empty() => Kind::Empty,
            BusProgram::Dag(program) if program.interactions().is_empty() => Kind::Empty,
            BusProgram::Terms(program)
                if program.interactions().is_empty()
                    && program.rest().interactions().is_empty() =>
            {
                Kind::Empty
            }
            BusProgram::Vm(program) => Kind::Vm(DeviceVmProgram::upload(apc, program, device_ctx)?),
            BusProgram::Dag(program) => {
                let block_bytes = block_threads() as usize * program.slots() * size_of::<F>();
                if block_bytes > settings.bus_scratch {
                    return Err(GpuError::TooLarge {
                        apc: apc.to_string(),
                        what: format!(
                            "its {} slots need {block_bytes} bytes of scratch for the smallest launch, more than the {} \
                             allowed: raise --bus-scratch or use --bus-kernel vm",
                            program.slots(),
                            settings.bus_scratch
                        ),
                    });
                }
                Kind::Dag {
                    rules: memory::upload(
                        program.rules(),
                        &|| format!("the rules of {apc}"),
                        device_ctx,
                    )?,
                    interactions: memory::upload(
                        program.interactions(),
                        &|| format!("the bus interactions of {apc}"),
                        device_ctx,
                    )?,
                    slots: program.slots(),
                    scratch: settings.bus_scratch,
                }
            }
            BusProgram::Terms(program) => {
                let limits = limits(settings.private_from_additions)?;
                // SAFETY: takes no arguments, and touches no memory of ours.
                let status = unsafe { ffi::_apc_apply_bus_terms_load() };
                check("apc_apply_bus_terms", apc, status)?;
                Kind::Terms {
                    interactions: memory::upload(
                        program.interactions(),
                        &|| format!("the bus interactions of {apc}"),
                        device_ctx,
                    )?,
                    linear: memory::upload(
                        program.linear(),
                        &|| format!("the linear terms of {apc}"),
                        device_ctx,
                    )?,
                    products: memory::upload(
                        program.products(),
                        &|| format!("the quadratic terms of {apc}"),
                        device_ctx,
                    )?,
                    shared: SharedCounters::choose(program, limits.shared_memory),
                    limits,
                    rest: DeviceVmProgram::upload(apc, program.rest(), device_ctx)?,
                }
            }
        };
        UPLOADS.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            apc: apc.to_string(),
            sizes: program.tables().sizes(),
            kind,
        })
    }

    /// Makes room for the intermediates of a launch of `live_rows` rows, so that the launch itself need not.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn reserve(
        &self,
        live_rows: u64,
        scratch: &BusScratch,
        device_ctx: &GpuDeviceCtx,
    ) -> Result<(), GpuError> {
        if let Kind::Dag {
            slots,
            scratch: scratch_bytes,
            ..
        } = &self.kind
        {
            let threads = dag_threads(live_rows, *slots, *scratch_bytes);
            drop(scratch.at_least(threads as usize * slots, &self.apc, device_ctx)?);
        }
        Ok(())
    }

    /// Enqueues the kernel: adds every live row's interactions to the periphery chips' counts. Launches that share a
    /// `scratch` have to be on one stream.
    ///
    /// # Errors
    /// [`GpuError::OtherTables`], [`GpuError::OutOfMemory`] for the intermediates, or [`GpuError::Launch`].
    ///
    /// # Panics
    /// If there are more live rows than rows, or rows without values.
    pub fn launch(
        &self,
        trace: BusTrace,
        counts: PeripheryCounts,
        scratch: &BusScratch,
        device_ctx: &GpuDeviceCtx,
    ) -> Result<(), GpuError> {
        if trace.live_rows == 0 || matches!(self.kind, Kind::Empty) {
            return Ok(());
        }
        // Kernels add wherever the program says: what was checked for its tables has to hold for these.
        if counts.sizes() != self.sizes {
            return Err(GpuError::OtherTables {
                apc: self.apc.clone(),
                program: self.sizes,
                chips: counts.sizes(),
            });
        }
        assert!(
            trace.live_rows <= trace.height && !trace.values.is_null(),
            "live rows lie within the trace"
        );
        let stream = device_ctx.stream.as_raw();
        match &self.kind {
            Kind::Empty => Ok(()),
            Kind::Vm(program) => program.launch(&self.apc, trace, counts, device_ctx),
            Kind::Terms {
                interactions,
                linear,
                products,
                shared,
                limits,
                rest,
            } => {
                rest.launch(&self.apc, trace, counts, device_ctx)?;
                if interactions.is_empty() {
                    return Ok(());
                }
                let _capture = Capture::of_large(linear.len());
                let launch = Launch::plan(trace.live_rows, interactions.len(), shared, limits);
                // SAFETY: all pointers are device memory that lives until the stream has passed this point; the program only
                // names columns of this APC and bins of these tables, as its compiler checked, and the counts have as many
                // bins, as just checked.
                let status = unsafe {
                    ffi::_apc_apply_bus_terms(
                        trace,
                        TermsProgram {
                            interactions: interactions.as_ptr(),
                            linear: linear.as_ptr(),
                            products: products.as_ptr(),
                            interaction_count: interactions.len() as u32,
                            padding: 0,
                        },
                        launch,
                        counts,
                        stream,
                    )
                };
                check("apc_apply_bus_terms", &self.apc, status)
            }
            Kind::Dag {
                rules,
                interactions,
                slots,
                scratch: scratch_bytes,
            } => {
                let threads = dag_threads(trace.live_rows, *slots, *scratch_bytes);
                let held = scratch.at_least(threads as usize * slots, &self.apc, device_ctx)?;
                let intermediates = held
                    .as_ref()
                    .map_or(std::ptr::null_mut(), DeviceBuffer::as_mut_ptr);
                let _capture = Capture::of_large(rules.len());
                // SAFETY: as above; the intermediates hold at least `slots` words for each of `threads` threads, slots are
                // below `slots`, as the compiler checked, and no other launch uses them at the same time: all are on
                // one stream.
                let status = unsafe {
                    ffi::_apc_apply_bus_dag(
                        trace,
                        rules.as_raw_ptr(),
                        interactions.as_raw_ptr(),
                        interactions.len() as u32,
                        intermediates,
                        threads,
                        counts,
                        stream,
                    )
                };
                check("apc_apply_bus_dag", &self.apc, status)
            }
        }
    }

    /// Bytes of device memory that the program itself takes.
    pub fn bytes(&self) -> usize {
        match &self.kind {
            Kind::Empty => 0,
            Kind::Vm(program) => program.bytes(),
            Kind::Terms {
                interactions,
                linear,
                products,
                rest,
                ..
            } => {
                interactions.len() * size_of::<terms::Interaction>()
                    + linear.len() * size_of::<terms::Linear>()
                    + products.len() * size_of::<terms::Product>()
                    + rest.bytes()
            }
            Kind::Dag {
                rules,
                interactions,
                ..
            } => {
                rules.len() * size_of::<u128>() + interactions.len() * size_of::<dag::Interaction>()
            }
        }
    }
}

/// Threads of a block of the `dag` kernel.
fn block_threads() -> u64 {
    // SAFETY: takes no arguments and touches no device.
    u64::from(unsafe { ffi::_apc_apply_bus_dag_block() })
}

/// Threads of a `dag` launch: whole blocks, one thread a row if the scratch allows it.
fn dag_threads(live_rows: u64, slots: usize, scratch: usize) -> u64 {
    let block = block_threads();
    let wanted = live_rows.div_ceil(block);
    let block_bytes = block * (slots.max(1) * size_of::<F>()) as u64;
    wanted.min((scratch as u64 / block_bytes).max(1)) * block
}

/// Enqueues a kernel that reads every one of `columns` once: the time below which no bus kernel can stay.
///
/// # Errors
/// [`GpuError::Launch`].
pub fn column_read_floor(
    trace: BusTrace,
    columns: &DeviceBuffer<u32>,
    sink: &DeviceBuffer<u32>,
    device_ctx: &GpuDeviceCtx,
) -> Result<(), GpuError> {
    // SAFETY: all pointers are device memory that lives until the stream has passed this point.
    let status = unsafe {
        ffi::_column_read_floor(
            trace,
            columns.as_ptr(),
            columns.len() as u32,
            sink.as_mut_ptr(),
            device_ctx.stream.as_raw(),
        )
    };
    check("column_read_floor", "the benchmark", status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_follow_the_rows_until_the_scratch_is_full() {
        let block = block_threads();
        assert_eq!(dag_threads(1, 10, DEFAULT_BUS_SCRATCH), block);
        assert_eq!(dag_threads(block + 1, 10, DEFAULT_BUS_SCRATCH), 2 * block);
        // 2^20 rows of 2,125 slots would need 8.9 GB.
        let threads = dag_threads(1 << 20, 2125, DEFAULT_BUS_SCRATCH);
        assert!(threads as usize * 2125 * 4 <= DEFAULT_BUS_SCRATCH);
        assert!((threads + block) as usize * 2125 * 4 > DEFAULT_BUS_SCRATCH);
        assert_eq!(dag_threads(1 << 20, 0, DEFAULT_BUS_SCRATCH), 1 << 20);
    }
}
