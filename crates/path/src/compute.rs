//! The arithmetic of a path's training on each kind of device.

mod cpu;
#[cfg(feature = "cuda")]
mod gpu;

use dipaco_model::{ModelConfig, ModuleWeights, Profile};
use dipaco_topology::Topology;

use self::cpu::CpuPath;
#[cfg(feature = "cuda")]
use self::gpu::GpuPath;
use crate::PathError;
use crate::device::TrainDevice;
use crate::inner_step::{InnerConfig, StepReport};
use crate::layout::FragmentLayout;
use crate::state::PathState;

/// A path on a device.
pub(crate) enum Compute {
    Cpu(CpuPath),
    #[cfg(feature = "cuda")]
    Gpu(Box<GpuPath>),
}

impl Compute {
    /// Puts a path on a device. `state` holds as many moments as the path has parameters.
    pub(crate) fn new(
        device: &TrainDevice,
        model: &ModelConfig,
        topology: &Topology,
        weights: &[ModuleWeights],
        state: &PathState,
        config: &InnerConfig,
    ) -> Result<Self, PathError> {
        // Only the GPU takes a copy of the moments.
        #[cfg(not(feature = "cuda"))]
        let _ = state;
        match device {
            TrainDevice::Cpu => {
                CpuPath::new(model, topology, weights, config.activation_checkpointing).map(Self::Cpu)
            }
            #[cfg(feature = "cuda")]
            TrainDevice::Cuda(gpu) => GpuPath::new(gpu, model, topology, weights, state, config)
                .map(|path| Self::Gpu(Box::new(path))),
        }
    }

    /// Takes a step: changes the weights and the moments. If the loss or the gradient is not finite, nothing changes,
    /// and the report shows it.
    pub(crate) fn step(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        config: &InnerConfig,
        learning_rate: f64,
        state: &mut PathState,
    ) -> Result<StepReport, PathError> {
        match self {
            Self::Cpu(path) => path.step(tokens, targets, config, learning_rate, state),
            #[cfg(feature = "cuda")]
            Self::Gpu(path) => path.step(tokens, targets, config, learning_rate),
        }
    }

    /// `ln p(target)` in nats of each position (B, T), B = `rows`.
    pub(crate) fn token_log_probs(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        rows: usize,
    ) -> Result<Vec<f32>, PathError> {
        match self {
            Self::Cpu(path) => path.token_log_probs(tokens, targets, rows),
            #[cfg(feature = "cuda")]
            Self::Gpu(path) => path.token_log_probs(tokens, targets, rows),
        }
    }

    /// The weights of the modules, one per level.
    pub(crate) fn weights(&mut self) -> Result<Vec<ModuleWeights>, PathError> {
        match self {
            Self::Cpu(path) => path.weights(),
            #[cfg(feature = "cuda")]
            Self::Gpu(path) => path.weights(),
        }
    }

    /// The weights of one fragment of the module of a level.
    pub(crate) fn fragment(
        &mut self,
        level: usize,
        layout: &FragmentLayout,
    ) -> Result<Option<Vec<f32>>, PathError> {
        match self {
            Self::Cpu(path) => path.fragment(level, layout),
            #[cfg(feature = "cuda")]
            Self::Gpu(path) => Ok(path.weights()?.get(level).map(|module| layout.gather(&module.values))),
        }
    }

    /// Copies the moments from the device into `state`; on the CPU they are always there.
    #[cfg_attr(not(feature = "cuda"), expect(clippy::unnecessary_wraps, reason = "a GPU may fail"))]
    pub(crate) fn refresh(&mut self, state: &mut PathState) -> Result<(), PathError> {
        #[cfg(not(feature = "cuda"))]
        let _ = state;
        match self {
            Self::Cpu(_) => Ok(()),
            #[cfg(feature = "cuda")]
            Self::Gpu(path) => path.refresh(state),
        }
    }

    /// The same path, with the CPU's time added up in `profile`.
    pub(crate) fn with_profile(self, profile: Profile) -> Self {
        match self {
            Self::Cpu(path) => Self::Cpu(path.with_profile(profile)),
            #[cfg(feature = "cuda")]
            gpu @ Self::Gpu(_) => gpu,
        }
    }
}
