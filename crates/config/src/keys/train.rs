//! What the keys of `train` mean.

use super::optimizer::{
    ACTIVATION_CHECKPOINTING, BETA1, BETA2, CLIP_NORM, EPSILON, FINAL_FRACTION, LEARNING_RATE, MICRO_BATCH,
    WARMUP, WEIGHT_DECAY,
};
use super::{KeyDoc, free, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "train.rounds",
        "rounds",
        "Rounds: in each, every path takes its inner steps and every module one outer step.",
    ),
    key(
        "train.inner_steps",
        "steps",
        "H, inner steps of a path per round. More means less communication, and paths that drift further apart.",
    ),
    key("train.batch", "sequences", "B, sequences per inner step."),
    key("train.sequence_tokens", "tokens", "T, tokens per sequence; at most `model.context`."),
    key("train.micro_batch", "sequences", MICRO_BATCH),
    free("train.activation_checkpointing", "true or false", ACTIVATION_CHECKPOINTING),
    key(
        "train.holdout_fraction",
        "share",
        "Share of each shard's documents that is held out for early stopping, at least 0 and below 1.",
    ),
    key(
        "train.holdout_sequences",
        "sequences",
        "Held-out sequences that are measured after each round; 0 turns early stopping off.",
    ),
    key(
        "train.packing",
        "true or false",
        "Whether sequences run across document borders, without padding; the seed is trained the same way. Otherwise \
         a sequence holds tokens of one document.",
    ),
    free(
        "train.lease_seconds",
        "seconds",
        "After so long without a word from its worker, a path is given to another worker. Too short repeats work over \
         a slow network, too long waits for workers that are gone.",
    ),
    free(
        "train.state_every",
        "leases",
        "Leases of a path between two states (moments, data position) that its worker brings to the coordinator; the state is \
         twice the size of the weights. Whoever takes a path over begins at the last state and trains again from there, with \
         the same result. 1 brings every one; raise it, with `train.held_paths`, on a slow network. One is also brought \
         when a path changes hands, because its worker has more to do than another. With more than 1 the states with \
         which the run ends stay with the workers.",
    ),
    free(
        "train.held_paths",
        "paths",
        "Paths whose states a worker keeps in memory, 8 bytes a parameter each; a worker is given the paths that it holds \
         before others that are as far. At least the number of paths divided by the number of workers, when \
         `train.state_every` is more than 1.",
    ),
    free(
        "train.checkpoints",
        "checkpoints",
        "Rounds before the current one whose weights and states are kept until the run is complete, so that it can go back to \
         them when an object of the store is damaged (`--resume` does); each takes as much disk as the current ones. Two are \
         needed to have one that shares nothing with the current round. 0 keeps none.",
    ),
    free(
        "train.threads_per_worker",
        "threads",
        "Threads of one worker process; 0 shares the cores evenly among the workers of the machine.",
    ),
    key(
        "train.schedule_at_phase",
        "name",
        "What the learning rate does where a phase of `routing.phases` begins: \"continue\" goes on as if nothing had \
         happened; \"restart\" warms up again and lets the cosine span the rest of the run, as in the paper's alternating \
         phases. Moments and weights are carried over in both.",
    ),
    key("train.adamw.learning_rate", "number", LEARNING_RATE),
    key("train.adamw.beta1", "number", BETA1),
    key("train.adamw.beta2", "number", BETA2),
    key("train.adamw.epsilon", "number", EPSILON),
    key("train.adamw.weight_decay", "number", WEIGHT_DECAY),
    key("train.adamw.clip_norm", "norm", CLIP_NORM),
    key("train.schedule.warmup_steps", "steps", WARMUP),
    key("train.schedule.final_fraction", "share", FINAL_FRACTION),
];
