//! The GPU with the counts of the periphery tables, and one launch after the other.

use eyre::Result;
use openvm_apc::{
    bus::{Histograms, F},
    gpu::{
        memory::{allocate, upload},
        BusScratch, BusTrace, DeviceBusProgram, PeripheryCounts,
    },
};
use openvm_cuda_common::{copy::MemCopyD2H, d_buffer::DeviceBuffer, stream::GpuDeviceCtx};

use super::{files::HostTrace, programs::TABLES};

/// The periphery chips' counts on the device.
pub struct Counts {
    variable_range_checker: DeviceBuffer<u32>,
    range_tuple_checker: DeviceBuffer<u32>,
    bitwise_lookup: DeviceBuffer<u32>,
    sizes: [u32; 2],
}

impl Counts {
    fn new(device_ctx: &GpuDeviceCtx) -> Result<Self> {
        let zeros = Histograms::zeros(&TABLES);
        let buffer = |length| allocate(length, &|| "the counts".to_string(), device_ctx);
        Ok(Self {
            variable_range_checker: buffer(zeros.variable_range_checker.len())?,
            range_tuple_checker: buffer(zeros.range_tuple_checker.len())?,
            bitwise_lookup: buffer(zeros.bitwise_lookup.len())?,
            sizes: TABLES
                .range_tuple_checker
                .map(|table| table.sizes)
                .unwrap_or_default(),
        })
    }

    fn clear(&self, device_ctx: &GpuDeviceCtx) -> Result<()> {
        self.variable_range_checker.fill_zero_on(device_ctx)?;
        self.range_tuple_checker.fill_zero_on(device_ctx)?;
        self.bitwise_lookup.fill_zero_on(device_ctx)?;
        Ok(())
    }

    /// Where they lie.
    pub fn pointers(&self) -> PeripheryCounts {
        PeripheryCounts::none()
            .with_variable_range_checker(&self.variable_range_checker)
            .with_range_tuple_checker(&self.range_tuple_checker, self.sizes)
            .with_bitwise_lookup(&self.bitwise_lookup)
    }

    fn to_host(&self, device_ctx: &GpuDeviceCtx) -> Result<Histograms> {
        Ok(Histograms {
            variable_range_checker: self.variable_range_checker.to_host_on(device_ctx)?,
            range_tuple_checker: self.range_tuple_checker.to_host_on(device_ctx)?,
            bitwise_lookup: self.bitwise_lookup.to_host_on(device_ctx)?,
        })
    }
}

/// The GPU, as one check after the other uses it.
pub struct Device {
    /// What kernels count into.
    pub counts: Counts,
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
            counts: Counts::new(&device_ctx)?,
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

    /// Histograms of one launch.
    pub fn histograms(&self, program: &DeviceBusProgram, trace: BusTrace) -> Result<Histograms> {
        self.counts.clear(&self.device_ctx)?;
        program.launch(
            trace,
            self.counts.pointers(),
            &self.scratch,
            &self.device_ctx,
        )?;
        self.counts.to_host(&self.device_ctx)
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
