//! Memory of training a path, by formula.

use dipaco_topology::{Part, Topology};
use serde::Serialize;

use crate::{ModelConfig, TensorSpec, backward_blocks, path_specs, trained_specs};

/// Entries of the vocabulary whose weights the head packs at the same time.
const HEAD_ENTRIES: u64 = 2048;
/// Bytes of an f32. Weights, gradients, moments, the residual stream and logits are f32 with every `model.dtype`.
const F32: u64 = 4;

/// The properties of a step that determine its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// B, sequences per step.
    pub batch: usize,
    /// Sequences per forward and backward pass; 0 for the whole batch.
    pub micro_batch: usize,
    /// T, tokens per sequence.
    pub sequence_tokens: usize,
    /// True if blocks keep only their input for the backward pass.
    pub activation_checkpointing: bool,
}

impl StepShape {
    /// Returns the sequences per forward and backward pass.
    #[must_use]
    pub fn at_once(&self) -> usize {
        if self.micro_batch == 0 { self.batch } else { self.micro_batch.min(self.batch) }
    }
}

/// Memory of the optimizer besides weights and gradients, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptimizerMemory {
    /// Moments.
    pub moments: u64,
    /// Intermediate results of the step of one tensor.
    pub scratch: u64,
}

/// Memory of a training step, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StepMemory {
    /// Weights.
    pub weights: u64,
    /// Gradients.
    pub gradients: u64,
    /// The moments of the optimizer.
    pub moments: u64,
    /// Results of the forward pass that the blocks keep for the backward pass.
    pub activations: u64,
    /// Logits of the rows that the head computes at the same time.
    pub head: u64,
    /// Intermediate results and packed operands of products.
    pub workspace: u64,
    /// Memory that two of the items above use one after the other, and that is subtracted once: gradients reuse memory
    /// of `activations`, and `activations` reuse memory of the logits.
    pub shared: u64,
}

impl StepMemory {
    /// Returns the sum of all items, without the shared memory.
    #[must_use]
    pub fn total(&self) -> u64 {
        [self.weights, self.gradients, self.moments, self.activations, self.head, self.workspace]
            .into_iter()
            .fold(0, u64::saturating_add)
            .saturating_sub(self.shared)
    }
}

/// Returns the memory of a training step, by formula. With R = B·T rows of a pass, A = H·Dh, A' = Hkv·Dh, and e bytes per element of
/// `model.dtype`:
///
/// - Weights take 4 bytes per parameter, gradients 4 bytes per parameter that trains. The optimizer states its own
///   memory.
/// - A block keeps its input R·D·4. For the backward pass it also keeps queries, keys and values R·(A + 2·A')·e, the
///   output of the attention R·A·e, gate and up 2·R·F·e, the residual stream after the attention R·D·4, and the
///   normaliser of the softmax of each row and head B·H·T·4. Blocks below the lowest part that trains keep nothing.
///   With checkpointing each block keeps only its input, and one block at a time keeps the rest.
/// - The head computes the logits of some rows at the same time ([`dipaco_ops::head_rows`]), 4·V bytes each.
/// - The workspace holds the intermediate results and packed operands of one block's backward pass, the packed operands
///   of the head for 2,048 entries of the vocabulary, and the residual stream and its gradient between the operations.
/// - The backward pass goes from the last block to the first. In a step of one pass, the gradients of a block reuse the
///   memory that the block after it kept, if neither is more than twice as large as the other. In a step of several
///   passes the gradients exist all the time.
///
/// The memory of the program itself, some tens of megabytes, is not included.
#[must_use]
pub fn step_memory(
    config: &ModelConfig,
    topology: &Topology,
    optimizer: OptimizerMemory,
    shape: &StepShape,
) -> StepMemory {
    let number = |value: usize| value as u64;
    let (b, t) = (number(shape.at_once()), number(shape.sequence_tokens));
    let (d, a, f, v) = (
        number(config.hidden_size),
        number(config.attention_size()),
        number(config.ffn_size),
        number(config.head_size()),
    );
    let kv = number(config.key_value_size());
    let (rows, e, blocks) =
        (b.saturating_mul(t), number(config.dtype.bytes()), number(backward_blocks(config, topology).len()));
    let head_rows = number(dipaco_ops::head_rows(usize::try_from(rows).unwrap_or(usize::MAX)));
    let specs = path_specs(config);
    let (parameters, trained) = (values(&specs), values(&trained_specs(config, topology)));
    let block = specs.iter().filter(|spec| spec.part == Part::Block(0));
    let gradient = values(block).saturating_mul(F32);
    let trained_blocks = (0..config.blocks).filter(|&block| topology.part_trains(Part::Block(block)));
    let block_gradients = number(trained_blocks.count()).saturating_mul(gradient);

    let input = product(&[rows, d, F32]);
    let kept = sum(&[
        product(&[2, rows, a + kv, e]),
        product(&[2, rows, f, e]),
        input,
        product(&[b, number(config.heads), t, F32]),
    ]);
    // A block's gradient reuses the memory of kept results only if the sizes are alike.
    let alike = gradient <= kept.saturating_mul(2) && kept <= gradient.saturating_mul(2);
    let kept = if gradient <= kept.saturating_mul(2) { kept.max(gradient) } else { kept };
    // A run of blocks without a backward pass has the results of one block at a time.
    let blocks = blocks.max(1);
    let inputs = blocks.saturating_mul(input);
    let (activations, shared) = if shape.activation_checkpointing {
        // Blocks that are computed again reuse the memory of the logits.
        let logits = product(&[head_rows, v, F32]);
        let reused = kept <= logits.saturating_mul(2) && logits <= kept.saturating_mul(2);
        (sum(&[inputs, input, kept]), if reused { kept.min(logits) } else { 0 })
    } else {
        // The first gradient finds no free memory, so the kept results of one block remain unused at the end.
        let one_pass = shape.at_once() >= shape.batch;
        let shared = if one_pass && alike { block_gradients.saturating_sub(kept) } else { 0 };
        (inputs.saturating_add(blocks.saturating_mul(kept)), shared)
    };
    let head_entries = v.min(HEAD_ENTRIES);
    let workspace = sum(&[
        product(&[rows, 4 * d + 2 * a + 2 * f, e]),
        product(&[2 * (a + kv) + 3 * f, d, e]),
        product(&[3, input]),
        product(&[head_rows, d, F32 + e]),
        product(&[head_entries, head_rows + d, e]),
        optimizer.scratch,
    ]);
    StepMemory {
        weights: parameters.saturating_mul(F32),
        gradients: trained.saturating_mul(F32),
        moments: optimizer.moments,
        activations,
        head: product(&[head_rows, v, F32]),
        workspace,
        shared,
    }
}

/// Number of elements of these tensors together.
fn values<'a>(specs: impl IntoIterator<Item = &'a TensorSpec>) -> u64 {
    specs.into_iter().map(|spec| spec.parameters() as u64).fold(0, u64::saturating_add)
}

fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product, &factor| product.saturating_mul(factor))
}

fn sum(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |sum, &part| sum.saturating_add(part))
}

#[cfg(test)]
mod tests {
    use dipaco_topology::{LevelConfig, Modules, TopologyConfig};

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

    /// A level of `frozen` blocks with the embedding, which does not train, and one of the other parts.
    fn half(config: &ModelConfig, frozen: usize) -> Topology {
        let level = |blocks: std::ops::Range<usize>, below: bool| LevelConfig {
            modules: Modules::Count(1),
            blocks: if blocks.is_empty() { String::new() } else { format!("{blocks:?}") },
            embedding: below,
            head: !below,
            frozen: below,
        };
        let levels = vec![level(0..frozen, true), level(frozen..config.blocks, false)];
        Topology::new(&TopologyConfig::grid(1, levels), config.blocks).unwrap()
    }

    fn adamw(config: &ModelConfig, topology: &Topology) -> OptimizerMemory {
        OptimizerMemory { moments: 8 * values(&trained_specs(config, topology)), scratch: 0 }
    }

    /// The memory of a step in which everything trains.
    fn memory(config: &ModelConfig, shape: &StepShape) -> StepMemory {
        let topology = Topology::new(&TopologyConfig::dense(config.blocks), config.blocks).unwrap();
        step_memory(config, &topology, adamw(config, &topology), shape)
    }

    const SHAPE: StepShape =
        StepShape { batch: 4, micro_batch: 0, sequence_tokens: 1024, activation_checkpointing: false };

    #[test]
    fn the_parts_are_those_of_the_formula() {
        let memory = memory(&large(), &SHAPE);
        // Counted by hand: V·D twice, and of each block 4·A·D + 3·F·D + 2·D, and the last norm.
        let parameters = 2 * 32_000 * 896 + 12 * (4 * 1024 * 896 + 3 * 2432 * 896 + 2 * 896) + 896;
        assert_eq!((memory.weights, memory.moments), (4 * parameters, 8 * parameters));
        let rows = 4096;
        let block = 4 * rows * 1024 * 4 + 2 * rows * 2432 * 4 + 2 * rows * 896 * 4 + 4 * 16 * 1024 * 4;
        assert_eq!(memory.activations, 12 * block);
        assert_eq!(memory.head, 1024 * 32_000 * 4);
        // The kept results of a block are four times as large as its gradient, so neither reuses the other's memory.
        assert_eq!(memory.shared, 0);
    }

    /// Measured peaks of `dipaco bench step` in MiB; about 22 MiB of them belong to the program itself.
    #[test]
    fn the_total_is_what_was_measured() {
        let path = |blocks, width: usize, vocab_size| ModelConfig {
            hidden_size: width,
            blocks,
            heads: width / 64,
            ffn_size: (8 * width).div_ceil(192) * 64,
            vocab_size,
            ..large()
        };
        let (s, m) = (path(4, 256, 4096), path(8, 512, 8192));
        let shape = |batch, sequence_tokens| StepShape { batch, sequence_tokens, ..SHAPE };
        let narrow = ModelConfig { dtype: Dtype::Bf16, ..large() };
        let small = shape(8, 256);
        for (model, shape, measured) in [
            (&s, small, 247),
            (&s, StepShape { micro_batch: 1, ..small }, 123),
            (&s, StepShape { activation_checkpointing: true, ..small }, 168),
            (&m, shape(4, 512), 1016),
            (&large(), shape(1, 1024), 3002),
            (&narrow, shape(1, 1024), 2949),
        ] {
            let total = (memory(model, &shape).total() >> 20) + 22;
            assert!(total.abs_diff(measured) * 16 <= measured, "{total} MiB instead of {measured}");
        }
    }

    #[test]
    fn each_remedy_lowers_the_total() {
        let total = |config: &ModelConfig, shape: &StepShape| memory(config, shape).total();
        let whole = total(&large(), &SHAPE);
        let halved = total(&large(), &StepShape { micro_batch: 1, ..SHAPE });
        let checkpointed = StepShape { activation_checkpointing: true, ..SHAPE };
        let narrow = ModelConfig { dtype: Dtype::Bf16, ..large() };
        assert!(halved < whole && total(&large(), &checkpointed) < whole && total(&narrow, &SHAPE) < whole);
        assert_eq!(memory(&large(), &StepShape { micro_batch: 1, ..SHAPE }).shared, 0);
        assert_eq!(
            memory(&large(), &StepShape { micro_batch: 4, ..SHAPE }),
            memory(&large(), &SHAPE),
            "two ways to ask for the whole batch at once"
        );
    }

    #[test]
    fn a_step_never_needs_less_than_its_weights_gradients_and_moments() {
        for tokens in [1, 16, 1024] {
            let shape = StepShape { batch: 1, sequence_tokens: tokens, ..SHAPE };
            let memory = memory(&large(), &shape);
            assert!(memory.total() >= memory.weights + memory.gradients + memory.moments, "{memory:?}");
        }
    }

    #[test]
    fn what_is_frozen_has_no_gradients_no_moments_and_below_the_rest_no_kept_activations() {
        let whole = memory(&large(), &SHAPE);
        let frozen = |blocks| {
            let topology = half(&large(), blocks);
            step_memory(&large(), &topology, adamw(&large(), &topology), &SHAPE)
        };
        let upper = frozen(8);
        assert_eq!(
            (upper.weights, upper.head, upper.workspace),
            (whole.weights, whole.head, whole.workspace)
        );
        assert_eq!(upper.activations * 3, whole.activations, "4 of 12 blocks");
        let parameters = 32_000 * 896 + 4 * (4 * 1024 * 896 + 3 * 2432 * 896 + 2 * 896) + 896;
        assert_eq!((upper.gradients, upper.moments), (4 * parameters, 8 * parameters));
        let head = frozen(12);
        assert_eq!(head.activations * 12, whole.activations, "one block at a time");
    }
}
