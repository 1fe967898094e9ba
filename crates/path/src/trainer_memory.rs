//! Memory of a training that the next training takes over.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "cuda")]
use crate::compute::GpuPath;
use crate::compute::{CpuPath, KeptPath};

/// Memory of the path that was trained last: weights, gradients, kept activations and packed operands. Training a path of
/// the same shape takes it over. To allocate it anew, the system would have to hand out and zero each page again; a GPU also
/// keeps the kernels that it has loaded and the records of its steps. Clones share the memory. The results do not depend on
/// it.
#[derive(Clone, Default)]
pub struct TrainerMemory(Arc<Mutex<Option<KeptPath>>>);

impl TrainerMemory {
    fn take(&self) -> Option<KeptPath> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The path, if it was trained on the CPU. A path of another device is dropped.
    pub(crate) fn take_cpu(&self) -> Option<CpuPath> {
        match self.take()? {
            KeptPath::Cpu(path) => Some(*path),
            #[cfg(feature = "cuda")]
            KeptPath::Gpu(_) => None,
        }
    }

    /// The path, if it was trained on a GPU. A path of another device is dropped.
    #[cfg(feature = "cuda")]
    pub(crate) fn take_gpu(&self) -> Option<GpuPath> {
        match self.take()? {
            KeptPath::Gpu(path) => Some(*path),
            KeptPath::Cpu(_) => None,
        }
    }

    pub(crate) fn give(&self, path: KeptPath) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
    }
}

impl fmt::Debug for TrainerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrainerMemory")
    }
}

#[cfg(test)]
mod tests {
    use dipaco_config::TrainConfig;
    use dipaco_model::{Dtype, ModelConfig, ModuleWeights, TokenBatch, TokenRows, split};
    use dipaco_topology::{PathId, Topology, TopologyConfig};

    use super::*;
    use crate::{InnerConfig, MomentSpecs, PathState, TrainDevice, Trainer};

    fn model(dtype: Dtype, ffn_size: usize) -> ModelConfig {
        ModelConfig {
            hidden_size: 32,
            blocks: 2,
            heads: 2,
            head_dim: 16,
            ffn_size,
            vocab_size: 61,
            context: 24,
            dtype,
            ..ModelConfig::default()
        }
    }

    /// Trains a path of its own weights for three steps in this memory. Returns its weights and its state.
    fn trained(memory: &TrainerMemory, model: &ModelConfig, seed: u64) -> (Vec<ModuleWeights>, PathState) {
        let topology = Topology::new(&TopologyConfig::dense(model.blocks), model.blocks).unwrap();
        let train = TrainConfig { batch: 2, sequence_tokens: 24, ..TrainConfig::default() };
        let weights = split(model, &topology, &dipaco_model::init(model, seed).unwrap()).unwrap();
        let state = PathState::start(&MomentSpecs::whole(model, train.optimizer));
        let inner = InnerConfig::of_path(&train, 3);
        let views: Vec<_> = weights.iter().map(ModuleWeights::view).collect();
        let mut trainer =
            Trainer::reusing(memory, &TrainDevice::Cpu, model, &topology, &views, state, inner).unwrap();
        let token = |at: usize| ((at + seed as usize) * 7 % 61) as u32;
        let [tokens, targets] = [0..48, 1..49].map(|range| range.map(token).collect::<Vec<u32>>());
        let rows = TokenRows::new(tokens, 2, 61).unwrap();
        let batch = TokenBatch::new(rows, targets, 61).unwrap();
        for _ in 0..3 {
            trainer.step(&batch, PathId(0)).unwrap();
        }
        let weights = trainer.weights().unwrap();
        (weights, trainer.end(memory).unwrap())
    }

    /// Where the weights of the path in the memory lie.
    fn place(memory: &TrainerMemory) -> Option<*const f32> {
        match memory.0.lock().unwrap().as_ref()? {
            KeptPath::Cpu(path) => Some(path.place()),
            #[cfg(feature = "cuda")]
            KeptPath::Gpu(_) => None,
        }
    }

    #[test]
    fn the_memory_of_the_path_before_changes_no_bit() {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let memory = TrainerMemory::default();
            let (first, other) = (model(dtype, 48), model(dtype, 64));
            // The third path has another shape, so it takes new memory.
            for (model, seed) in [(&first, 1), (&first, 2), (&other, 3), (&first, 1)] {
                let expected = trained(&TrainerMemory::default(), model, seed);
                assert!(trained(&memory, model, seed) == expected, "{dtype} {seed}");
            }
        }
    }

    #[test]
    fn a_path_of_the_same_shape_takes_the_memory_over() {
        let (memory, model) = (TrainerMemory::default(), model(Dtype::F32, 48));
        assert_eq!(place(&memory), None);
        drop(trained(&memory, &model, 1));
        let kept = place(&memory);
        // Something else would get the memory if it had been given back.
        let other = trained(&TrainerMemory::default(), &model, 2);
        drop(trained(&memory, &model, 3));
        assert!(kept.is_some() && place(&memory) == kept);
        drop(other);
    }
}
