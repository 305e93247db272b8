//! Where the prover runs: the CPU, or an NVIDIA GPU (feature `cuda`).

use std::{path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    apc_traces::ApcTracesReport,
    device_memory::DeviceMemoryError,
    error::PipelineError,
    guest::GuestInput,
    stages::{
        ExecutionReport, Identity, Pipeline, ProveSettings, ProvenGuest, SelectedApcs, Setup,
    },
    trace_digests::TraceDigests,
};
use crate::vm::{digest::SegmentDigest, mock::MockReport};

/// Where the prover runs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// All cores of the CPU.
    #[default]
    Cpu,
    /// An NVIDIA GPU; needs a binary built with CUDA.
    Cuda,
}

/// The GPU's VM with APCs.
#[cfg(feature = "cuda")]
pub type GpuSetup = Setup<
    openvm_cuda_backend::BabyBearPoseidon2GpuEngine,
    crate::vm::gpu::ApcVmGpuBuilder<openvm_sdk_config::SdkVmGpuBuilder>,
>;

/// A VM with APCs on either device, ready to execute and prove one program.
pub enum DeviceSetup {
    /// On the CPU.
    Cpu(Box<Setup>),
    /// On the GPU.
    #[cfg(feature = "cuda")]
    Cuda(Box<GpuSetup>),
}

/// Runs the same expression on the setup of either device.
macro_rules! on_either {
    ($device_setup:expr, $setup:ident => $result:expr) => {
        match $device_setup {
            DeviceSetup::Cpu($setup) => $result,
            #[cfg(feature = "cuda")]
            DeviceSetup::Cuda($setup) => $result,
        }
    };
}

impl Device {
    /// Whether the prover can run there: to be asked before work that would be lost otherwise.
    ///
    /// # Errors
    /// [`PipelineError::NoCuda`] for a GPU with a binary built without CUDA, [`PipelineError::Gpu`] for a GPU that is
    /// not there or cannot run this binary.
    pub fn check(self) -> Result<(), PipelineError> {
        match self {
            Device::Cpu => Ok(()),
            #[cfg(not(feature = "cuda"))]
            Device::Cuda => Err(PipelineError::NoCuda),
            #[cfg(feature = "cuda")]
            Device::Cuda => Ok(crate::gpu::open_device().map(drop)?),
        }
    }
}

impl DeviceSetup {
    /// Sets up the VM with the APCs on the device that the settings name.
    ///
    /// # Errors
    /// [`PipelineError::NoCuda`] for a GPU with a binary built without CUDA, [`PipelineError::Gpu`] for a GPU that is
    /// not there or cannot run this binary, [`PipelineError::DeviceMemory`] for one that is too small, and those of
    /// [`Pipeline::setup_on`].
    pub fn new(
        pipeline: &Pipeline,
        selected: &SelectedApcs,
        settings: &ProveSettings,
    ) -> Result<Self, PipelineError> {
        match settings.device {
            Device::Cpu if settings.device_memory.is_some() => Err(DeviceMemoryError::NoGpu.into()),
            Device::Cpu => Ok(Self::Cpu(Box::new(pipeline.setup(selected, settings)?))),
            #[cfg(not(feature = "cuda"))]
            Device::Cuda => Err(PipelineError::NoCuda),
            #[cfg(feature = "cuda")]
            Device::Cuda => Ok(Self::Cuda(Box::new(gpu_setup(
                pipeline, selected, settings,
            )?))),
        }
    }

    /// Fits the segments to the device's memory, where [`ProveSettings::segment_memory`] leaves that open: to
    /// [`ProveSettings::device_memory`], else to what is free on the GPU. A GPU with room for OpenVM's default changes
    /// nothing. [`DeviceSetup::new`] does the same; whoever asks for an [execution](Pipeline::execution) does it first.
    ///
    /// # Errors
    /// As [`DeviceSetup::new`].
    pub fn fit(
        pipeline: &Pipeline,
        selected: &SelectedApcs,
        settings: ProveSettings,
    ) -> Result<ProveSettings, PipelineError> {
        match settings.device {
            Device::Cpu if settings.device_memory.is_some() => Err(DeviceMemoryError::NoGpu.into()),
            Device::Cpu => Ok(settings),
            #[cfg(not(feature = "cuda"))]
            Device::Cuda => {
                let _ = (pipeline, selected);
                Err(PipelineError::NoCuda)
            }
            #[cfg(feature = "cuda")]
            Device::Cuda => fit_segments(pipeline, selected, settings),
        }
    }

    /// See [`Pipeline::execute`].
    pub fn execute(
        &self,
        pipeline: &Pipeline,
        input: &GuestInput,
    ) -> Result<ExecutionReport, PipelineError> {
        on_either!(self, setup => pipeline.execute(setup, input))
    }

    /// See [`Pipeline::prove`].
    pub fn prove(
        &mut self,
        pipeline: &Pipeline,
        input: &GuestInput,
    ) -> Result<(ProvenGuest, Duration), PipelineError> {
        on_either!(self, setup => pipeline.prove(setup, input))
    }

    /// As [`DeviceSetup::prove`], with digests of the very traces that are proven. The time includes the digests'.
    pub fn prove_with_digests(
        &mut self,
        pipeline: &Pipeline,
        input: &GuestInput,
    ) -> Result<(ProvenGuest, Duration, TraceDigests), PipelineError> {
        let (proven, elapsed, segments) =
            on_either!(self, setup => pipeline.prove_with_digests(setup, input))?;
        Ok((proven, elapsed, self.digests(segments)))
    }

    /// See [`Pipeline::trace_digests`].
    pub fn trace_digests(
        &mut self,
        pipeline: &Pipeline,
        input: &GuestInput,
    ) -> Result<TraceDigests, PipelineError> {
        let segments = on_either!(self, setup => pipeline.trace_digests(setup, input))?;
        Ok(self.digests(segments))
    }

    /// See [`Pipeline::apc_traces`].
    pub fn apc_traces(
        &mut self,
        pipeline: &Pipeline,
        input: &GuestInput,
        path: &Path,
    ) -> Result<ApcTracesReport, PipelineError> {
        let device = self.device();
        on_either!(self, setup => pipeline.apc_traces(setup, input, device, path))
    }

    /// Which device it is.
    fn device(&self) -> Device {
        match self {
            Self::Cpu(_) => Device::Cpu,
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => Device::Cuda,
        }
    }

    fn digests(&self, segments: Vec<SegmentDigest>) -> TraceDigests {
        TraceDigests {
            device: self.device(),
            bus_kernel: on_either!(self, setup => setup.config.bus_kernel()),
            segments,
        }
    }

    /// See [`Pipeline::mock`].
    pub fn mock(
        &mut self,
        pipeline: &Pipeline,
        input: &GuestInput,
    ) -> Result<MockReport, PipelineError> {
        on_either!(self, setup => pipeline.mock(setup, input))
    }

    /// What identifies the program and the VM; from the artifacts, if it is there.
    ///
    /// # Errors
    /// As [`DeviceSetup::new`].
    pub fn identity(
        pipeline: &Pipeline,
        selected: &SelectedApcs,
        settings: &ProveSettings,
    ) -> Result<Identity, PipelineError> {
        pipeline.identity(selected, settings, || {
            let setup = Self::new(pipeline, selected, settings)?;
            on_either!(setup, setup => setup.identity())
        })
    }

    /// See [`Setup::exe_commit`].
    pub fn exe_commit(&self) -> Result<[u32; 8], PipelineError> {
        on_either!(self, setup => setup.exe_commit())
    }

    /// The verifying key.
    pub fn vk(
        &self,
    ) -> &openvm_stark_backend::keygen::types::MultiStarkVerifyingKey<
        openvm_stark_sdk::config::baby_bear_poseidon2::BabyBearPoseidon2Config,
    > {
        on_either!(self, setup => &setup.vk)
    }
}

/// Sets up the VM with the APCs on the GPU.
///
/// # Errors
/// As [`DeviceSetup::new`].
#[cfg(feature = "cuda")]
pub fn gpu_setup(
    pipeline: &Pipeline,
    selected: &SelectedApcs,
    settings: &ProveSettings,
) -> Result<GpuSetup, PipelineError> {
    use openvm_cuda_backend::BabyBearPoseidon2GpuEngine;

    use super::fault::{catch, Stage};

    // Before any of OpenVM's CUDA code runs: that code panics where there is no GPU.
    let info = crate::gpu::open_device()?;
    tracing::info!(
        "{} (compute capability {}, {} MiB)",
        info.name,
        info.capability,
        info.memory >> 20
    );
    let settings = fit_segments(pipeline, selected, settings.clone())?;
    let limit = settings
        .device_memory
        .map(crate::gpu::DeviceMemoryLimit::new)
        .transpose()?;
    let builder = crate::vm::gpu::ApcVmGpuBuilder {
        inner: openvm_sdk_config::SdkVmGpuBuilder,
        settings: settings.gpu,
    };
    let mut setup = catch(Stage::SetUp, || {
        let engine = BabyBearPoseidon2GpuEngine::new(settings.security.params());
        pipeline.setup_on(engine, builder, selected, &settings)
    })??;
    setup.device_memory = limit;
    Ok(setup)
}

#[cfg(feature = "cuda")]
fn fit_segments(
    pipeline: &Pipeline,
    selected: &SelectedApcs,
    mut settings: ProveSettings,
) -> Result<ProveSettings, PipelineError> {
    if settings.segment_memory.is_some() {
        return Ok(settings);
    }
    crate::gpu::open_device()?;
    let (free, total) = crate::gpu::device::memory_info()?;
    let usage = crate::gpu::memory::pool_usage();
    // What the pool has free serves the next proof as well.
    let mut available =
        (free + (usage.reserved.saturating_sub(usage.allocated)) as usize).min(total);
    if let Some(limit) = settings.device_memory {
        available = available.min(limit);
    }
    let system = &pipeline.guest().vm_config.system.config;
    let derived = super::device_memory::segment_memory(
        available,
        settings.gpu.bus_scratch,
        selected,
        system,
        &settings.security.params(),
    )?;
    // OpenVM's default needs no mention, so that artifacts of any large GPU, and of the CPU, are the same.
    if derived < system.segmentation_max_memory {
        tracing::info!(
            "segments of {} MiB, for {} MiB of device memory",
            derived >> 20,
            available >> 20
        );
        settings.segment_memory = Some(derived);
    }
    Ok(settings)
}
