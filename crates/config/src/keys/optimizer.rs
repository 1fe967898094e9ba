//! Texts that the optimizers of the seed, the transformer router and the paths have in common.

pub(super) const OPTIMIZER: &str = "\"adamw\", the default, or \"muon\": Muon for the matrices of blocks and AdamW for all \
     other parameters. Muon keeps one moment of a matrix instead of two, and takes learning rate, weight decay and \
     clipping from the section of AdamW. It has more products of matrices in each step, and no GPU takes it.";
pub(super) const LEARNING_RATE: &str = "Peak learning rate. Too high a value makes the loss jump or become \
     NaN, too low a value learns slowly. The best one depends on the lengths of seed and training \
     (docs/training.md).";
pub(super) const BETA1: &str = "Decay of the mean of gradients, at least 0 and below 1.";
pub(super) const BETA2: &str = "Decay of the mean of squared gradients, at least 0 and below 1.";
pub(super) const EPSILON: &str =
    "Added to the root of the mean squared gradient to avoid division by 0. Must be at least 1e-16.";
pub(super) const WEIGHT_DECAY: &str =
    "Decoupled weight decay per unit of learning rate. The weights of norms do not decay.";
pub(super) const CLIP_NORM: &str =
    "Gradients with a larger norm are scaled down to it; 0 turns clipping off.";
pub(super) const WARMUP: &str = "Steps over which the learning rate rises from 0 to its peak.";
pub(super) const MICRO_BATCH: &str = "Sequences per forward and backward pass; 0 takes the whole batch at once. Must divide the batch. Gradients are \
     summed over the batch, so the step changes only by the order of additions. A smaller value takes less memory and \
     is slower.";
pub(super) const ACTIVATION_CHECKPOINTING: &str = "Keeps only the input of each block for the backward pass and computes the rest again. Takes about a third more time \
     and saves most of the memory that grows with batch and sequence length. The weights have the same bits.";
pub(super) const FINAL_FRACTION: &str = "Learning rate at the last step as a share of its peak, from 0 to 1.";
pub(super) const DECAY_FRACTION: &str = "Last part of the steps, above 0 and at most 1, in which the learning rate falls linearly to its last value; before it \
     the rate stays at the peak (warm-up, stable, decay). Not set: a cosine over all steps. It suits a run of unknown \
     length.";
