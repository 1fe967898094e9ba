//! Keys of `seed_model`.

use super::optimizer::{
    ACTIVATION_CHECKPOINTING, BETA1, BETA2, CLIP_NORM, DECAY_FRACTION, EPSILON, FINAL_FRACTION,
    LEARNING_RATE, MICRO_BATCH, OPTIMIZER, WARMUP, WEIGHT_DECAY,
};
use super::{KeyDoc, free, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "seed_model.steps",
        "steps",
        "Optimizer steps of the seed. After too few steps its features do not separate texts. A share of 27 % of 2,200 steps was \
         better than 75 % for 4 × 4 paths in two seeds, but seed and paths together took 2.5 times as many steps \
         (docs/results/training-settings.md, \"Schedules\").",
    ),
    key("seed_model.batch", "sequences", "B, sequences per step."),
    key("seed_model.sequence_tokens", "tokens", "T, tokens per sequence; at most `model.context`."),
    key("seed_model.micro_batch", "sequences", MICRO_BATCH),
    free("seed_model.activation_checkpointing", "true or false", ACTIVATION_CHECKPOINTING),
    free(
        "seed_model.validate_every",
        "steps",
        "Steps between two measurements of the validation loss; 0 measures only at the end.",
    ),
    free("seed_model.validation_sequences", "sequences", "Validation sequences of each measurement."),
    free(
        "seed_model.checkpoint_every",
        "steps",
        "Steps between two checkpoints. A crash costs at most this many steps.",
    ),
    key("seed_model.optimizer", "name", OPTIMIZER),
    key("seed_model.adamw.learning_rate", "number", LEARNING_RATE),
    key("seed_model.adamw.beta1", "number", BETA1),
    key("seed_model.adamw.beta2", "number", BETA2),
    key("seed_model.adamw.epsilon", "number", EPSILON),
    key("seed_model.adamw.weight_decay", "number", WEIGHT_DECAY),
    key("seed_model.adamw.clip_norm", "norm", CLIP_NORM),
    key("seed_model.schedule.warmup_steps", "steps", WARMUP),
    key("seed_model.schedule.final_fraction", "share", FINAL_FRACTION),
    key("seed_model.schedule.decay_fraction", "share", DECAY_FRACTION),
];
