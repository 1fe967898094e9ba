//! What the optimizers of the seed, the transformer router and the paths have in common.

pub(super) const LEARNING_RATE: &str =
    "Peak learning rate. Too high makes the loss jump or become NaN, too low learns slowly.";
pub(super) const BETA1: &str = "Decay of the mean of gradients, at least 0 and below 1.";
pub(super) const BETA2: &str = "Decay of the mean of squared gradients, at least 0 and below 1.";
pub(super) const EPSILON: &str =
    "Added to the root of the squared gradients, so that nothing is divided by 0.";
pub(super) const WEIGHT_DECAY: &str = "Decoupled weight decay, per unit of learning rate; norms are exempt.";
pub(super) const CLIP_NORM: &str = "Gradients of a larger norm are scaled down to it; 0 turns clipping off.";
pub(super) const WARMUP: &str = "Steps over which the learning rate rises from 0 to its peak.";
pub(super) const MICRO_BATCH: &str = "Sequences per forward and backward pass; must divide the batch, and 0 takes the whole batch at once. Gradients are \
     added up until the batch is done, so memory falls with it and the step stays the same up to the order in which \
     numbers are added. Small ones are slower.";
pub(super) const ACTIVATION_CHECKPOINTING: &str = "Whether a block keeps only its input for the backward pass and computes the rest again. Costs about a third more \
     time and saves most of the memory that grows with batch and sequence length; the weights are the same bits.";
pub(super) const FINAL_FRACTION: &str =
    "The learning rate at the last step as a share of its peak, from 0 to 1.";
