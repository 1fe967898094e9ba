//! How much memory it takes to train a path.

use dipaco_topology::Part;
use serde::Serialize;

use crate::{ModelConfig, path_specs};

/// Rows of the logits that the head holds at a time; B·T × V is never held whole.
const HEAD_ROWS: u64 = 512;
/// Bytes of what is f32 whatever `model.dtype` says: weights, gradients, moments, the residual stream, logits.
const F32: u64 = 4;

/// How a path's step is computed, as far as memory depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// B, sequences per step.
    pub batch: usize,
    /// Sequences per forward and backward pass; 0 for all at once.
    pub micro_batch: usize,
    /// T, tokens per sequence.
    pub sequence_tokens: usize,
    /// Whether blocks keep only their input for the backward pass.
    pub activation_checkpointing: bool,
}

impl StepShape {
    /// Sequences per forward and backward pass.
    #[must_use]
    pub fn at_once(&self) -> usize {
        if self.micro_batch == 0 { self.batch } else { self.micro_batch.min(self.batch) }
    }
}

/// What a training step holds in memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StepMemory {
    /// The weights.
    pub weights: u64,
    /// The gradients.
    pub gradients: u64,
    /// AdamW's two moments.
    pub moments: u64,
    /// What the blocks keep of the forward pass for the backward pass.
    pub activations: u64,
    /// The part of the logits that the head works on.
    pub head: u64,
    /// Operands of the largest product, arranged for the processor.
    pub workspace: u64,
    /// What of `gradients` lies in memory that `activations` have left, so that it is counted once.
    pub shared: u64,
}

impl StepMemory {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        [self.weights, self.gradients, self.moments, self.activations, self.head, self.workspace]
            .into_iter()
            .fold(0, u64::saturating_add)
            .saturating_sub(self.shared)
    }
}

/// The memory of a training step, by formula. With R = B·T rows of a pass, A = H·Dh, and e bytes per element of
/// `model.dtype`:
///
/// - weights and gradients take 4 bytes per parameter, moments 8.
/// - a block keeps queries, keys and values 3·R·A·e, the attention's output R·A·e, gate and up 2·R·F·e, its input and the
///   residual stream after the attention 2·R·D·4, and the softmax's normaliser of each row and head B·H·T·4. With
///   checkpointing each block keeps only its input R·D·4, and one block at a time has the whole set.
/// - the head works on min(R, 512) rows of logits: 4·V bytes each.
/// - the workspace holds both operands and the result of the largest product, e bytes per element.
/// - the backward pass goes from the last block to the first. In a step of one pass, a block's gradients take the place
///   of what the blocks after it had kept. In a step of several passes the gradients are there all the time.
///
/// What the program itself needs, tens of megabytes, is not counted.
#[must_use]
pub fn step_memory(config: &ModelConfig, shape: &StepShape) -> StepMemory {
    let number = |value: usize| value as u64;
    let (b, t) = (number(shape.at_once()), number(shape.sequence_tokens));
    let (d, a, f, v) = (
        number(config.hidden_size),
        number(config.attention_size()),
        number(config.ffn_size),
        number(config.vocab_size),
    );
    let (rows, e, blocks) = (b.saturating_mul(t), number(config.dtype.bytes()), number(config.blocks));
    let mul = |factors: &[u64]| factors.iter().fold(1u64, |product, &factor| product.saturating_mul(factor));

    let input = mul(&[rows, d, F32]);
    let kept = [
        mul(&[4, rows, a, e]),
        mul(&[2, rows, f, e]),
        input.saturating_mul(2),
        mul(&[b, number(config.heads), t, F32]),
    ];
    let kept = kept.into_iter().fold(0, u64::saturating_add);
    let (each, once) = if shape.activation_checkpointing { (input, kept) } else { (kept, 0) };
    let activations = blocks.saturating_mul(each).saturating_add(once);

    let head_rows = rows.min(HEAD_ROWS);
    let products = [(rows, d, 3 * a), (rows, a, d), (rows, d, 2 * f), (rows, f, d), (head_rows, d, v)];
    let operands = |(m, k, n): (u64, u64, u64)| {
        mul(&[k, n]).saturating_add(mul(&[m, k])).saturating_add(mul(&[m, n])).saturating_mul(e)
    };
    let workspace = products.into_iter().map(operands).max().unwrap_or(0);

    let of_part = |wanted: &dyn Fn(Part) -> bool| -> u64 {
        let own = path_specs(config).into_iter().filter(|spec| wanted(spec.part));
        own.map(|spec| number(spec.parameters())).fold(0, u64::saturating_add)
    };
    let parameters = of_part(&|_| true);
    let gradients = parameters.saturating_mul(F32);
    let shared = if shape.at_once() < shape.batch {
        0
    } else {
        // Gradients grow and activations shrink by the same amount with each block, so the peak is at one of the ends.
        let head = of_part(&|part| part == Part::Head).saturating_mul(F32);
        let block = of_part(&|part| part == Part::Block(0)).saturating_mul(F32);
        let begin = head.saturating_add(block).saturating_add(activations);
        let end = gradients.saturating_add(once);
        gradients.saturating_add(activations).saturating_sub(begin.max(end))
    };
    StepMemory {
        weights: parameters.saturating_mul(F32),
        gradients,
        moments: parameters.saturating_mul(2 * F32),
        activations,
        head: mul(&[head_rows, v, F32]),
        workspace,
        shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    /// Size l of `dipaco bench step`.
    fn large() -> ModelConfig {
        ModelConfig {
            hidden_size: 896,
            blocks: 12,
            heads: 16,
            head_dim: 64,
            ffn_size: 2432,
            vocab_size: 32_000,
            context: 1024,
            ..ModelConfig::default()
        }
    }

    const SHAPE: StepShape =
        StepShape { batch: 4, micro_batch: 0, sequence_tokens: 1024, activation_checkpointing: false };

    #[test]
    fn the_parts_are_those_of_the_formula() {
        let memory = step_memory(&large(), &SHAPE);
        // Counted by hand: V·D twice, and of each block 4·A·D + 3·F·D + 2·D, and the last norm.
        let parameters = 2 * 32_000 * 896 + 12 * (4 * 1024 * 896 + 3 * 2432 * 896 + 2 * 896) + 896;
        assert_eq!((memory.weights, memory.moments), (4 * parameters, 8 * parameters));
        let rows = 4096;
        let block = 4 * rows * 1024 * 4 + 2 * rows * 2432 * 4 + 2 * rows * 896 * 4 + 4 * 16 * 1024 * 4;
        assert_eq!(memory.activations, 12 * block);
        assert_eq!(memory.head, 512 * 32_000 * 4);
        assert_eq!(
            memory.workspace,
            4 * (896 * 4864 + rows * 896 + rows * 4864).max(896 * 32_512 + 512 * 32_000)
        );
    }

    #[test]
    fn each_remedy_lowers_the_total() {
        let total = |config: &ModelConfig, shape: &StepShape| step_memory(config, shape).total();
        let whole = total(&large(), &SHAPE);
        let halved = total(&large(), &StepShape { micro_batch: 1, ..SHAPE });
        let checkpointed = StepShape { activation_checkpointing: true, ..SHAPE };
        let narrow = ModelConfig { dtype: Dtype::Bf16, ..large() };
        assert!(halved < whole && total(&large(), &checkpointed) < whole && total(&narrow, &SHAPE) < whole);
        assert_eq!(step_memory(&large(), &StepShape { micro_batch: 1, ..SHAPE }).shared, 0);
        assert_eq!(
            step_memory(&large(), &StepShape { micro_batch: 4, ..SHAPE }),
            step_memory(&large(), &SHAPE),
            "the whole batch at once, said in two ways"
        );
    }

    #[test]
    fn a_step_never_needs_less_than_its_weights_gradients_and_moments() {
        for tokens in [1, 16, 1024] {
            let shape = StepShape { batch: 1, sequence_tokens: tokens, ..SHAPE };
            let memory = step_memory(&large(), &shape);
            assert!(memory.total() >= memory.weights + memory.gradients + memory.moments, "{memory:?}");
        }
    }
}
