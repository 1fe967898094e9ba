//! The time of a training: inner steps and transfers.

use serde::Serialize;

/// Seconds of training per second of transfer of a worker that trains for 90 % of the time.
const TRAINING_PER_TRANSFER: f64 = 9.0;

/// The workers of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerFleet {
    /// Number of workers.
    pub workers: u64,
    /// Training tokens per second of one worker.
    pub tokens_per_second: f64,
    /// Bytes that the busiest worker downloads per round.
    pub bytes_down: u64,
    /// Bytes that the busiest worker uploads per round.
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
    /// Paths that the busiest worker trains in a round.
    pub paths_per_worker: u64,
    /// Seconds of the inner steps of all rounds.
    pub training_seconds: f64,
    /// Hours that all workers together take for these steps.
    pub worker_hours: f64,
    /// Seconds of the transfers of all rounds, if training hides none of them; absent without a link.
    pub transfer_seconds: Option<f64>,
    /// Smallest H with which the busiest worker trains for 90 % of the time although no transfer overlaps with training.
    pub inner_steps_for_90_percent: Option<f64>,
}

impl TimePlan {
    /// The time of `rounds` rounds of `inner_steps` steps of `step_tokens` tokens, for each of `paths` paths.
    pub(crate) fn new(
        paths: u64,
        rounds: u64,
        inner_steps: u64,
        step_tokens: u64,
        workers: &WorkerFleet,
    ) -> Self {
        let paths_per_worker = paths.div_ceil(workers.workers.max(1));
        let step = step_tokens as f64 / workers.tokens_per_second;
        let all_paths = paths_per_worker as f64 * step;
        let transfer = workers
            .link
            .map(|link| 8.0 * (workers.bytes_down as f64 / link.down + workers.bytes_up as f64 / link.up));
        Self {
            paths_per_worker,
            training_seconds: rounds as f64 * inner_steps as f64 * all_paths,
            worker_hours: paths as f64 * rounds as f64 * inner_steps as f64 * step / 3600.0,
            transfer_seconds: transfer.map(|seconds| seconds * rounds as f64),
            inner_steps_for_90_percent: transfer
                .map(|seconds| (TRAINING_PER_TRANSFER * seconds / all_paths).ceil()),
        }
    }
}
