//! Keys of `transformer_router`.

use super::optimizer::{
    BETA1, BETA2, CLIP_NORM, DECAY_FRACTION, EPSILON, FINAL_FRACTION, LEARNING_RATE, MICRO_BATCH, WARMUP,
    WEIGHT_DECAY,
};
use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key("transformer_router.steps", "steps", "Optimizer steps. The paper takes about 2,000."),
    key("transformer_router.batch", "sequences", "B, sequences per step. Each has `model.context` tokens."),
    key("transformer_router.micro_batch", "sequences", MICRO_BATCH),
    key(
        "transformer_router.score_tokens",
        "tokens",
        "Tokens over which the scores of the paths are summed to find the best path. 0 sums to the end of the sequence, so \
         that one router serves every distance between choices.",
    ),
    key(
        "transformer_router.holdout_fraction",
        "share",
        "Share of the reserved documents on which the router's loss is measured, at least 0 and below 1. The weights with \
         the lowest loss are kept. With 0 the last weights are kept, and overfitting goes unnoticed.",
    ),
    key("transformer_router.validate_every", "steps", "Steps between two measurements of the held-out loss."),
    key("transformer_router.adamw.learning_rate", "number", LEARNING_RATE),
    key("transformer_router.adamw.beta1", "number", BETA1),
    key("transformer_router.adamw.beta2", "number", BETA2),
    key("transformer_router.adamw.epsilon", "number", EPSILON),
    key("transformer_router.adamw.weight_decay", "number", WEIGHT_DECAY),
    key("transformer_router.adamw.clip_norm", "norm", CLIP_NORM),
    key("transformer_router.schedule.warmup_steps", "steps", WARMUP),
    key("transformer_router.schedule.final_fraction", "share", FINAL_FRACTION),
    key("transformer_router.schedule.decay_fraction", "share", DECAY_FRACTION),
];
