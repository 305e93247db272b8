//! The GPU with the counts of the periphery tables, and one launch after the other.

use eyre::Result;
use openvm_apc::{
    bus::{Histograms, F},
    gpu::{memory::upload, BusScratch, BusTrace, DeviceBusProgram, DeviceHistograms},
};
use openvm_cuda_common::{d_buffer::DeviceBuffer, stream::GpuDeviceCtx};

use super::{files::HostTrace, programs::TABLES};

/// The GPU, as one check after the other uses it.
pub struct Device {
    /// What kernels count into.
    pub histograms: DeviceHistograms,
    /// The intermediates of `dag`.
    pub scratch: BusScratch,
    /// The stream.
    pub device_ctx: GpuDeviceCtx,
}

impl Device {
    /// The current device.
    pub fn new() -> Result<Self> {
        let device_ctx = GpuDeviceCtx::for_current_device()?;
        Ok(Self {
            histograms: DeviceHistograms::zeros(&TABLES, &device_ctx)?,
            scratch: BusScratch::default(),
            device_ctx,
        })
    }

    /// Copies a trace to the device.
    pub fn upload_trace(&self, trace: &HostTrace) -> Result<DeviceBuffer<F>> {
        Ok(upload(
            &trace.values,
            &|| "the trace".to_string(),
            &self.device_ctx,
        )?)
    }

    /// What one launch counts.
    pub fn counts_of(&self, program: &DeviceBusProgram, trace: BusTrace) -> Result<Histograms> {
        self.histograms.clear(&self.device_ctx)?;
        program.launch(
            trace,
            self.histograms.pointers(),
            &self.scratch,
            &self.device_ctx,
        )?;
        Ok(self.histograms.to_host(&self.device_ctx)?)
    }
}

/// A trace on the device, of whose `height` rows the first `live_rows` count.
pub fn view(buffer: &DeviceBuffer<F>, height: usize, live_rows: usize) -> BusTrace {
    BusTrace {
        values: buffer.as_ptr(),
        height: height as u64,
        live_rows: live_rows as u64,
    }
}
