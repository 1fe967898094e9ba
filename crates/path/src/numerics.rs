//! A fingerprint of the arithmetic of a device.

use dipaco_config::TrainConfig;
use dipaco_model::{Dtype, ModelConfig, ModelError, TokenBatch, TokenRows};
use dipaco_topology::{PathId, Topology, TopologyConfig};

use crate::{InnerConfig, MomentSpecs, PathError, PathState, TrainDevice, Trainer};

/// Steps whose result is the fingerprint. The second begins with weights that the first has changed.
const STEPS: u64 = 2;
/// B, the number of sequences of a step.
const BATCH: usize = 3;
/// T, the number of tokens of a sequence: not a multiple of the width of a vector unit.
const SEQUENCE: usize = 37;

/// The kind of device, the set of kernels on a CPU, and a hash of the weights after two small training steps, in both types
/// of weights.
///
/// Devices with the same fingerprint compute these steps to the same bits, and so very likely every step. Devices with
/// different fingerprints give a run other weights, which are as good.
///
/// # Errors
/// The errors of the trainer, and a forced set of kernels that can't run.
pub fn numerics(device: &TrainDevice) -> Result<String, PathError> {
    let mut hasher = blake3::Hasher::new();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for module in trained(device, dtype)? {
            for value in module {
                hasher.update(&value.to_bits().to_le_bytes());
            }
        }
    }
    let kind = if device.is_cpu() { device.name()? } else { "cuda".to_owned() };
    Ok(format!("{kind}-{}", &hasher.finalize().to_hex()[..16]))
}

/// The weights of a small path after its steps.
fn trained(device: &TrainDevice, dtype: Dtype) -> Result<Vec<Vec<f32>>, PathError> {
    let model = ModelConfig {
        hidden_size: 64,
        blocks: 2,
        heads: 2,
        head_dim: 32,
        ffn_size: 96,
        vocab_size: 61,
        context: SEQUENCE,
        dtype,
        ..ModelConfig::default()
    };
    let train = TrainConfig { batch: BATCH, sequence_tokens: SEQUENCE, ..TrainConfig::default() };
    let topology = Topology::new(&TopologyConfig::dense(model.blocks), model.blocks)?;
    let weights = dipaco_model::init(&model, 0)?;
    let state = PathState::start(&MomentSpecs::whole(&model, train.optimizer));
    let inner = InnerConfig::of_path(&train, STEPS);
    let mut trainer = Trainer::new(device, &model, &topology, &[weights], state, inner)?;
    let token = |at: usize| (at * 7 % 61) as u32;
    let tokens: Vec<u32> = (0..BATCH * SEQUENCE).map(token).collect();
    let targets: Vec<u32> = (1..=BATCH * SEQUENCE).map(token).collect();
    let tokens = TokenRows::new(tokens, BATCH, model.vocab_size).map_err(ModelError::from)?;
    let batch = TokenBatch::new(tokens, targets, model.vocab_size).map_err(ModelError::from)?;
    for _ in 0..STEPS {
        trainer.step(&batch, PathId(0))?;
    }
    Ok(trainer.weights()?.into_iter().map(|module| module.values.to_vec()).collect())
}

#[cfg(test)]
mod tests {
    use dipaco_model::kernel_choice;

    use super::*;

    #[test]
    fn the_fingerprint_is_the_same_each_time_and_names_the_kernels() {
        let first = numerics(&TrainDevice::Cpu).unwrap();
        assert_eq!(numerics(&TrainDevice::Cpu).unwrap(), first);
        let kind = format!("cpu-{}-", kernel_choice().unwrap().set);
        assert!(first.starts_with(&kind) && first.len() == kind.len() + 16, "{first}");
    }
}
