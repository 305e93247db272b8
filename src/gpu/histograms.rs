//! Histograms on the device: what bus kernels count into where there are no periphery chips.

use openvm_cuda_common::{copy::MemCopyD2H, d_buffer::DeviceBuffer, stream::GpuDeviceCtx};

use super::{error::GpuError, memory::allocate, structs::PeripheryCounts};
use crate::bus::{Histograms, PeripheryTables};

/// The counts of a VM's periphery tables; those of a table that it lacks are empty.
pub struct DeviceHistograms {
    tables: PeripheryTables,
    variable_range_checker: DeviceBuffer<u32>,
    range_tuple_checker: DeviceBuffer<u32>,
    bitwise_lookup: DeviceBuffer<u32>,
}

impl DeviceHistograms {
    /// All counts zero.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] or [`GpuError::Runtime`].
    pub fn zeros(tables: &PeripheryTables, device_ctx: &GpuDeviceCtx) -> Result<Self, GpuError> {
        let [variable_range_checker, range_tuple_checker, bitwise_lookup] = tables.bins();
        let buffer = |bins| allocate(bins, &|| "the counts".to_string(), device_ctx);
        let histograms = Self {
            tables: *tables,
            variable_range_checker: buffer(variable_range_checker)?,
            range_tuple_checker: buffer(range_tuple_checker)?,
            bitwise_lookup: buffer(bitwise_lookup)?,
        };
        histograms.clear(device_ctx)?;
        Ok(histograms)
    }

    /// Enqueues setting all counts to zero.
    ///
    /// # Errors
    /// [`GpuError::Runtime`].
    pub fn clear(&self, device_ctx: &GpuDeviceCtx) -> Result<(), GpuError> {
        for counts in [
            &self.variable_range_checker,
            &self.range_tuple_checker,
            &self.bitwise_lookup,
        ] {
            counts
                .fill_zero_on(device_ctx)
                .map_err(|source| GpuError::Runtime {
                    call: "cudaMemsetAsync",
                    source,
                })?;
        }
        Ok(())
    }

    /// Where they lie, for a kernel.
    pub fn pointers(&self) -> PeripheryCounts {
        let mut counts = PeripheryCounts::none();
        if self.tables.variable_range_checker.is_some() {
            counts = counts.with_variable_range_checker(&self.variable_range_checker);
        }
        if let Some(table) = self.tables.range_tuple_checker {
            counts = counts.with_range_tuple_checker(&self.range_tuple_checker, table.sizes);
        }
        if self.tables.bitwise_lookup.is_some() {
            counts = counts.with_bitwise_lookup(&self.bitwise_lookup);
        }
        counts
    }

    /// Waits for the stream, and copies the counts.
    ///
    /// # Errors
    /// [`GpuError::Copy`], also for a failure of earlier work.
    pub fn to_host(&self, device_ctx: &GpuDeviceCtx) -> Result<Histograms, GpuError> {
        let copy = |counts: &DeviceBuffer<u32>| {
            counts
                .to_host_on(device_ctx)
                .map_err(|source| GpuError::Copy {
                    what: "the counts".to_string(),
                    source,
                })
        };
        Ok(Histograms {
            variable_range_checker: copy(&self.variable_range_checker)?,
            range_tuple_checker: copy(&self.range_tuple_checker)?,
            bitwise_lookup: copy(&self.bitwise_lookup)?,
        })
    }
}
