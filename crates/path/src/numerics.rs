//! A fingerprint of the arithmetic of a device.

use dipaco_config::TrainConfig;
use dipaco_model::{Dtype, ModelConfig, ModelError, TokenBatch, TokenRows};
use dipaco_ops::LONGEST_PASS;
use dipaco_topology::{PathId, Topology, TopologyConfig};

use crate::{InnerConfig, MomentSpecs, PathError, PathState, TrainDevice, Trainer};

/// T, the number of tokens of a sequence: not a multiple of the width of a vector unit.
const SEQUENCE: usize = 37;
/// V, the size of the vocabulary.
const VOCABULARY: usize = 61;

/// A path and its training.
struct Training {
    /// D.
    width: usize,
    blocks: usize,
    /// H. A head has D / H columns.
    heads: usize,
    /// F.
    ffn: usize,
    /// B, the number of sequences of a step.
    batch: usize,
    steps: u64,
}

/// Edges of tiles everywhere, and sums within one pass of every set of kernels. The second step begins with weights that the
/// first has changed.
const SHORT_SUMS: Training = Training { width: 64, blocks: 2, heads: 2, ffn: 96, batch: 3, steps: 2 };

/// Sums of several passes: kernels that differ in the depth of a pass only give these other bits. The products of the layers sum
/// over F or 2F in the first training, and the gradients of weights over all tokens of a step in the second.
const LONG_SUMS: [Training; 2] = [
    Training { width: 32, blocks: 1, heads: 1, ffn: 1100, batch: 1, steps: 1 },
    Training { width: 16, blocks: 1, heads: 1, ffn: 48, batch: 30, steps: 1 },
];

const _: () = {
    let [deep, many] = LONG_SUMS;
    assert!(deep.ffn > LONGEST_PASS && many.batch * SEQUENCE > LONGEST_PASS, "a sum within one pass");
};

/// The kind of device, the set of kernels on a CPU, and a hash of the results of small training steps in both types of weights:
/// of the weights after two steps, and on a CPU of the gradients of steps with long sums.
///
/// Devices with the same fingerprint compute these steps to the same bits, and so very likely every step. Devices with
/// different fingerprints give a run other weights, which are as good.
///
/// # Errors
/// The errors of the trainer, and a forced set of kernels that can't run.
pub fn numerics(device: &TrainDevice) -> Result<String, PathError> {
    let mut hasher = blake3::Hasher::new();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for module in SHORT_SUMS.train(device, dtype)?.weights()? {
            add(&mut hasher, &module.values);
        }
        // A GPU compiles its kernels for each shape, which takes longer than any step.
        if device.is_cpu() {
            for training in LONG_SUMS {
                add(&mut hasher, &training.gradients(device, dtype)?);
            }
        }
    }
    let kind = if device.is_cpu() { device.name()? } else { "cuda".to_owned() };
    Ok(format!("{kind}-{}", &hasher.finalize().to_hex()[..16]))
}

/// Adds the bits of values to a hash.
fn add(hasher: &mut blake3::Hasher, values: &[f32]) {
    for value in values {
        hasher.update(&value.to_bits().to_le_bytes());
    }
}

impl Training {
    /// The path after its steps.
    fn train(&self, device: &TrainDevice, dtype: Dtype) -> Result<Trainer, PathError> {
        let model = ModelConfig {
            hidden_size: self.width,
            blocks: self.blocks,
            heads: self.heads,
            head_dim: self.width / self.heads,
            ffn_size: self.ffn,
            vocab_size: VOCABULARY,
            context: SEQUENCE,
            dtype,
            ..ModelConfig::default()
        };
        let (batch, steps) = (self.batch, self.steps);
        let train = TrainConfig { batch, sequence_tokens: SEQUENCE, ..TrainConfig::default() };
        let topology = Topology::new(&TopologyConfig::dense(model.blocks), model.blocks)?;
        let weights = dipaco_model::init(&model, 0)?;
        let state = PathState::start(&MomentSpecs::whole(&model, train.optimizer));
        let inner = InnerConfig::of_path(&train, steps);
        let mut trainer = Trainer::new(device, &model, &topology, &[weights], state, inner)?;
        let token = |at: usize| (at * 7 % VOCABULARY) as u32;
        let tokens: Vec<u32> = (0..batch * SEQUENCE).map(token).collect();
        let targets: Vec<u32> = (1..=batch * SEQUENCE).map(token).collect();
        let tokens = TokenRows::new(tokens, batch, VOCABULARY).map_err(ModelError::from)?;
        let batch = TokenBatch::new(tokens, targets, VOCABULARY).map_err(ModelError::from)?;
        for _ in 0..steps {
            trainer.step(&batch, PathId(0))?;
        }
        Ok(trainer)
    }

    /// The first moments after the steps: of one step, a multiple of the gradients. A weight loses most of their bits, because
    /// one step moves it little.
    fn gradients(&self, device: &TrainDevice, dtype: Dtype) -> Result<Vec<f32>, PathError> {
        Ok(self.train(device, dtype)?.into_state()?.first)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use dipaco_model::{KernelSet, kernel_choice};

    use super::*;

    #[test]
    fn the_fingerprint_is_the_same_each_time_and_names_the_kernels() {
        let first = numerics(&TrainDevice::Cpu).unwrap();
        assert_eq!(numerics(&TrainDevice::Cpu).unwrap(), first);
        let kind = format!("cpu-{}-", kernel_choice().unwrap().set);
        assert!(first.starts_with(&kind) && first.len() == kind.len() + 16, "{first}");
    }

    /// Begins a line of [`a_training_has_the_same_gradients_again`], which the next test reads.
    const LINE: &str = "hash of a training: ";

    #[test]
    fn a_training_has_the_same_gradients_again() {
        // One sequence: of several, the head takes as many rows at a time as suit the set's tiles of bf16.
        let short = Training { batch: 1, ..SHORT_SUMS };
        for training in [short].into_iter().chain(LONG_SUMS) {
            let hash = || {
                let mut hasher = blake3::Hasher::new();
                add(&mut hasher, &training.gradients(&TrainDevice::Cpu, Dtype::F32).unwrap());
                hasher.finalize()
            };
            let first = hash();
            assert_eq!(first, hash());
            println!("\n{LINE}{first}");
        }
    }

    /// In these trainings in f32, the two sets differ in the depth of a pass only: 256 products, or all.
    #[test]
    fn kernels_that_differ_in_the_depth_of_a_pass_differ_in_long_sums() {
        let hashes = |set: KernelSet| {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "numerics::tests::a_training_has_the_same_gradients_again", "--nocapture"])
                .env("DIPACO_SIMD", set.name())
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let hashes = text.lines().filter_map(|line| line.strip_prefix(LINE)).map(str::to_owned);
            <[String; 3]>::try_from(hashes.collect::<Vec<_>>()).unwrap()
        };
        let (parts, whole) = (hashes(KernelSet::Portable), hashes(KernelSet::AmxModel));
        assert_eq!(parts[0], whole[0], "sums within one pass");
        for sums in [1, 2] {
            assert_ne!(parts[sums], whole[sums], "training {sums}");
        }
    }
}
