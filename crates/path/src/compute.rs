//! The arithmetic of a path's training on each kind of device.

mod cpu;
#[cfg(feature = "cuda")]
mod gpu;
mod update;

use dipaco_model::{ModuleWeights, Profile, TokenBatch};

pub(crate) use self::cpu::CpuPath;
#[cfg(feature = "cuda")]
pub(crate) use self::gpu::GpuPath;
use crate::PathError;
use crate::inner_step::{InnerConfig, StepReport};
use crate::layout::FragmentLayout;
use crate::state::PathState;

/// A path whose training has ended. The next path of the same shape takes over its memory.
pub(crate) enum KeptPath {
    Cpu(Box<CpuPath>),
    #[cfg(feature = "cuda")]
    Gpu(Box<GpuPath>),
}

/// A path on a device.
pub(crate) trait Compute: Send {
    /// Takes a step: changes the weights and the moments. If the loss or the gradient is not finite, nothing changes,
    /// and the report shows it.
    fn step(
        &mut self,
        batch: &TokenBatch,
        config: &InnerConfig,
        learning_rate: f64,
        state: &mut PathState,
    ) -> Result<StepReport, PathError>;

    /// `ln p(target)` in nats of each position (B, T).
    fn token_log_probs(&mut self, batch: &TokenBatch) -> Result<Vec<f32>, PathError>;

    /// The weights of the modules, one per level.
    fn weights(&mut self) -> Result<Vec<ModuleWeights>, PathError>;

    /// The weights of one fragment of the module of a level; `None` if there is no such level.
    fn fragment(&mut self, level: usize, layout: &FragmentLayout) -> Result<Option<Vec<f32>>, PathError> {
        Ok(self.weights()?.get(level).map(|module| layout.gather(&module.values)))
    }

    /// Copies the moments from the device into `state`. A device that changes them where they lie does nothing.
    fn refresh(&mut self, _state: &mut PathState) -> Result<(), PathError> {
        Ok(())
    }

    /// The path, whose memory serves the next one.
    fn into_kept(self: Box<Self>) -> KeptPath;

    /// Adds up the time of the phases of a step in `profile` from now on. Only the CPU measures them.
    fn set_profile(&mut self, _profile: Profile) {}
}
