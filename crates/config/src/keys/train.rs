//! Keys of `train`.

use super::optimizer::{
    ACTIVATION_CHECKPOINTING, BETA1, BETA2, CLIP_NORM, DECAY_FRACTION, EPSILON, FINAL_FRACTION,
    LEARNING_RATE, MICRO_BATCH, OPTIMIZER, WARMUP, WEIGHT_DECAY,
};
use super::{KeyDoc, free, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "train.rounds",
        "rounds",
        "Rounds of training. In each round every path (or `train.paths_per_round` of them) takes its inner steps, and every \
         module takes one outer step.",
    ),
    key(
        "train.inner_steps",
        "steps",
        "H, inner steps of a path per round. More steps need less communication and let paths drift further apart \
         (docs/results/short-runs.md, \"Inner steps of a round\").",
    ),
    key(
        "train.paths_per_round",
        "paths",
        "Paths that train in each round, drawn anew for each round by `run.seed`; 0 trains all. A list changes the number: \
         [[0, 4], [100, 8]] trains 4 paths in each of the first 100 rounds and then 8. The others rest: they keep \
         their moments and their place in the shard, and their learning rate goes on with the round. A module takes the mean \
         of the paths that trained. \
         Needs `sync.quorum = 0`, one fragment, and no overlap, blend, drops or `outer.delay`.",
    ),
    key("train.batch", "sequences", "B, sequences per inner step."),
    key("train.sequence_tokens", "tokens", "T, tokens per sequence; at most `model.context`."),
    key("train.micro_batch", "sequences", MICRO_BATCH),
    free("train.activation_checkpointing", "true or false", ACTIVATION_CHECKPOINTING),
    key(
        "train.holdout_fraction",
        "share",
        "Share of the documents that is held out for early stopping, at least 0 and below 1. A hash of a document's length, \
         its first 64 and its last 64 tokens decides, so no path trains on a held-out document of another path.",
    ),
    key(
        "train.holdout_sequences",
        "sequences",
        "Held-out sequences of a path that are measured after each round; 0 turns early stopping off. The first \
         `evaluation.prefix_tokens` tokens of each are read and not counted. With more than one of `sync.fragments`, with \
         `sync.blend` or `sync.eager`, they are measured only at the start of each phase of routing and at the end of the run.",
    ),
    free(
        "train.validate_every",
        "rounds",
        "Rounds between two measurements of the routed model on validation text during training; 0 measures nothing. One \
         thread of the coordinator's process measures, and training goes on meanwhile. Rounds wait for their measurement, and \
         what still waits is measured when training is complete. `metrics.jsonl`, `status` and `plot` have the results.",
    ),
    free(
        "train.validation_documents",
        "documents",
        "Validation documents of each path in such a measurement; 0 takes all.",
    ),
    key(
        "train.packing",
        "true or false",
        "Lets sequences run across document borders, without padding. Otherwise a sequence holds tokens of one document. \
         The seed is trained the same way.",
    ),
    free(
        "train.lease_seconds",
        "seconds",
        "Time without a heartbeat after which a worker loses its path to another worker. A short time repeats work over a \
         slow network, a long time waits for workers that are gone.",
    ),
    free(
        "train.max_workers",
        "workers",
        "Workers with one token that coordinator and synchronizers serve at a time, 1 to 100000. Further workers wait. An \
         eighth more may connect with other tokens. Once all places are taken, the token with the most gives places to \
         tokens with less than half as many.",
    ),
    free(
        "train.token_leases",
        "paths",
        "Paths that the workers with one token train at a time; 0 for no number. Whatever the number, a token leaves a path \
         to each other token whose workers ask and have none.",
    ),
    free(
        "train.numerics",
        "\"same\", \"any\" or a fingerprint",
        "Devices that may train together, by the fingerprint of their arithmetic (`dipaco doctor` prints it). \"same\" takes \
         those with the fingerprint of the first device whose outer gradient counts, so that a repeated lease has the same \
         result. A fingerprint takes no others from the start. \"any\" takes every device, such as processors of several \
         makers. The run is then as good, but no run repeats its bits. `dipaco token contributions` lists the devices.",
    ),
    free(
        "train.standstill_seconds",
        "seconds",
        "Time without an inner step after which a worker loses its path although it is connected, and a synchronizer its \
         modules without an outer step. It covers the downloads before the first step and the uploads after the last one. \
         At least `train.lease_seconds`.",
    ),
    free(
        "train.quarantine_after",
        "workers",
        "Number of workers for which the training of a path fails before nobody trains the path any more. While another token \
         is connected or has contributed, all workers with one token are one. A training fails when it diverges, or when \
         `outer.guard` refuses its outer gradient. The path then goes back to the newest kept checkpoint before its last \
         completed lease, and the other paths go on without it. `dipaco rollback` ends a quarantine. 0 for no number.",
    ),
    free(
        "train.state_every",
        "leases",
        "Leases of a path between two uploads of its state (moments, data position), which is twice the size of the \
         weights, or as large with `train.state_dtype = \"bf16\"`. 1 uploads the state of every lease. A worker that takes over a path of a lost worker starts from the last \
         uploaded state and repeats the later leases, with the same result. A state is also uploaded when a path moves to \
         another worker to balance the load, and with every lease of a worker that has more paths than \
         `train.held_paths`. With more than 1 the last states of the run stay with the workers.",
    ),
    key(
        "train.state_dtype",
        "name",
        "Number format of the moments in a path's state: \"f32\", the default, or \"bf16\" for half of the bytes on the wire and \
         on the disk. Each lease then ends with a rounding of the moments to the nearest bf16, also where the state stays with \
         its worker, so the result does not depend on the workers. During a lease moments are f32. Moments must fade by \
         1/128 at least in each lease; otherwise rounding would keep them as they are.",
    ),
    free(
        "train.held_paths",
        "paths",
        "Paths whose states a worker keeps: that of its current path in memory, 8 bytes per parameter, the others in unnamed \
         files on the disk of its cache, 8 bytes per parameter each or 4 with `train.state_dtype = \"bf16\"`, where the global weights of their modules also lie, 4 bytes per parameter, if they \
         exceed 128 MiB. Of paths with equal progress a worker receives those that \
         it holds first. With at least the number of paths divided by the number of workers, states travel only with each \
         `train.state_every`th lease.",
    ),
    free(
        "train.checkpoints",
        "checkpoints",
        "Earlier rounds whose weights and states are kept until the run is complete; each takes as much disk as the \
         current round. `--resume` goes back to them when an object of the store is damaged. The newest \
         checkpoint can share objects with the current round, the one before it shares none. 0 keeps none.",
    ),
    free(
        "train.threads_per_worker",
        "threads",
        "Threads of one worker process; 0 shares the cores evenly among the workers of the machine.",
    ),
    key(
        "train.schedule_at_phase",
        "name",
        "Learning rate at the beginning of a phase of `routing.phases`. \"continue\" goes on with one schedule over all \
         rounds. \"restart\" warms up again and spreads the cosine over the rest of the run, as in the paper's \
         alternating phases. Both keep moments and weights.",
    ),
    key("train.optimizer", "name", OPTIMIZER),
    key("train.adamw.learning_rate", "number", LEARNING_RATE),
    key("train.adamw.beta1", "number", BETA1),
    key("train.adamw.beta2", "number", BETA2),
    key("train.adamw.epsilon", "number", EPSILON),
    key("train.adamw.weight_decay", "number", WEIGHT_DECAY),
    key("train.adamw.clip_norm", "norm", CLIP_NORM),
    key("train.schedule.warmup_steps", "steps", WARMUP),
    key("train.schedule.final_fraction", "share", FINAL_FRACTION),
    key("train.schedule.decay_fraction", "share", DECAY_FRACTION),
];
