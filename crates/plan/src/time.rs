//! The time of a training: inner steps and transfers.

use serde::Serialize;

/// Seconds of training per second of transfer of a worker that trains for 90 % of the time.
const TRAINING_PER_TRANSFER: f64 = 9.0;

/// Rounds in which equally many paths train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRounds {
    /// Number of rounds.
    pub rounds: u64,
    /// Number of paths that train in each of them.
    pub paths: u64,
}

/// The sum over all rounds of a number that depends on the paths of a round.
pub(crate) fn over_rounds(rounds: &[PlannedRounds], of_paths: impl Fn(u64) -> u64) -> u64 {
    rounds.iter().map(|part| part.rounds.saturating_mul(of_paths(part.paths))).fold(0, u64::saturating_add)
}

/// The inner steps of the seed, which one machine takes before the first round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedSeed {
    /// Number of steps.
    pub steps: u64,
    /// Tokens of a step.
    pub step_tokens: u64,
}

/// The workers of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerFleet {
    /// Number of workers.
    pub workers: u64,
    /// Training tokens per second of one worker.
    pub tokens_per_second: f64,
    /// Bytes that the busiest worker downloads in a round with the most paths.
    pub bytes_down: u64,
    /// Bytes that it uploads in such a round.
    pub bytes_up: u64,
    /// The link of each worker; absent if it is not known.
    pub link: Option<WorkerLink>,
}

/// The link of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerLink {
    /// Bits per second to the worker.
    pub down: f64,
    /// Bits per second from the worker.
    pub up: f64,
}

/// The time of a training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimePlan {
    /// Paths that the busiest worker trains in a round with the most paths.
    pub paths_per_worker: u64,
    /// Seconds of the seed's steps, if the machine of one worker takes them.
    pub seed_seconds: f64,
    /// Seconds of the inner steps of all rounds.
    pub training_seconds: f64,
    /// Hours that all workers together take for these steps.
    pub worker_hours: f64,
    /// Seconds of the transfers of all rounds, if training hides none of them; absent without a link.
    pub transfer_seconds: Option<f64>,
    /// Seconds of seed, inner steps and, with a link, transfers.
    pub total_seconds: f64,
    /// Smallest H with which the busiest worker trains for 90 % of the time although no transfer overlaps with training.
    pub inner_steps_for_90_percent: Option<f64>,
}

impl TimePlan {
    /// The time of the seed, and of `rounds` of `inner_steps` steps of `step_tokens` tokens for each path.
    pub(crate) fn new(
        seed: PlannedSeed,
        rounds: &[PlannedRounds],
        inner_steps: u64,
        step_tokens: u64,
        workers: &WorkerFleet,
    ) -> Self {
        let busiest = |paths: u64| paths.div_ceil(workers.workers.max(1));
        let paths_per_worker = rounds.iter().map(|part| busiest(part.paths)).max().unwrap_or(0);
        let rounds_of_busiest = over_rounds(rounds, busiest) as f64;
        let step = step_tokens as f64 / workers.tokens_per_second;
        let round = inner_steps as f64 * step;
        // Of one path, as are `step` and `round`. Each path of a worker has the same bytes.
        let transfer = workers.link.map(|link| {
            let all = 8.0 * (workers.bytes_down as f64 / link.down + workers.bytes_up as f64 / link.up);
            all / paths_per_worker.max(1) as f64
        });
        let seed_seconds = seed.steps as f64 * seed.step_tokens as f64 / workers.tokens_per_second;
        let training_seconds = rounds_of_busiest * round;
        let transfer_seconds = transfer.map(|seconds| seconds * rounds_of_busiest);
        Self {
            paths_per_worker,
            seed_seconds,
            training_seconds,
            worker_hours: over_rounds(rounds, |paths| paths) as f64 * round / 3600.0,
            transfer_seconds,
            total_seconds: seed_seconds + training_seconds + transfer_seconds.unwrap_or(0.0),
            inner_steps_for_90_percent: transfer
                .map(|seconds| (TRAINING_PER_TRANSFER * seconds / step).ceil()),
        }
    }
}
