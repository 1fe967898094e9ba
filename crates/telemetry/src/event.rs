//! The events of a run, as `metrics.jsonl` stores them.

use dipaco_topology::{ModuleId, PathId};
use serde::{Deserialize, Deserializer, Serialize};

/// One line of the event file: when, and what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Time of day in UTC, RFC 3339 with milliseconds.
    pub time: String,
    /// What happened; its fields stand beside `time`, its kind in `event`.
    #[serde(flatten)]
    pub event: Event,
}

/// Something that happened in a run. `docs/metrics.md` lists the fields; a number that is not finite is `null`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// One optimizer step of the seed model.
    SeedStep {
        /// Step, counted from 1.
        step: u64,
        /// Mean cross entropy of the batch, nats per token.
        #[serde(deserialize_with = "nan_if_null")]
        loss: f64,
        /// Learning rate of this step.
        learning_rate: f64,
        /// Norm of the gradient before clipping.
        #[serde(deserialize_with = "nan_if_null")]
        gradient_norm: f64,
        /// Tokens trained on per second.
        tokens_per_second: f64,
    },
    /// The seed model was measured on validation text.
    SeedValidated {
        /// Steps taken so far.
        step: u64,
        /// Mean cross entropy, nats per token.
        #[serde(deserialize_with = "nan_if_null")]
        loss: f64,
        /// Tokens counted.
        tokens: u64,
    },
    /// A worker joined.
    WorkerJoined {
        /// The worker's name.
        worker: String,
    },
    /// A worker left or was given up.
    WorkerLeft {
        /// The worker's name.
        worker: String,
        /// Why.
        reason: String,
    },
    /// The first path of a round was leased.
    RoundStarted {
        /// Round, counted from 0.
        round: u64,
    },
    /// Every path has been trained for the inner steps of a round.
    RoundCompleted {
        /// Round, counted from 0.
        round: u64,
        /// Mean training loss over the paths, nats per token.
        #[serde(deserialize_with = "nan_if_null")]
        loss: f64,
        /// Seconds since the round's first lease.
        seconds: f64,
    },
    /// The text was divided among the paths anew, and training goes on with other shards.
    PhaseStarted {
        /// The phase, counted from 0, which no event announces.
        phase: u32,
        /// The round that it begins with, counted from 0.
        round: u64,
        /// Seconds that the division took.
        seconds: f64,
    },
    /// A path finished its inner steps of a round.
    PathCompleted {
        /// The path.
        path: PathId,
        /// Round, counted from 0.
        round: u64,
        /// The worker that trained it.
        worker: String,
        /// Mean training loss of the round, nats per token.
        #[serde(deserialize_with = "nan_if_null")]
        loss: f64,
        /// Loss on the path's held-out documents, nats per token; absent when it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        heldout_loss: Option<f64>,
        /// Whether the held-out loss is the path's best so far.
        best: bool,
        /// Seconds of the inner steps.
        seconds: f64,
        /// Seconds that the worker took no inner steps before these: transfers, and waiting for others and for work.
        #[serde(default)]
        waited_seconds: f64,
    },
    /// A module took its outer step.
    ModuleStepped {
        /// The module.
        module: ModuleId,
        /// Which fragment of it; 0 and not written for a module that is not cut.
        #[serde(default, skip_serializing_if = "is_zero")]
        fragment: u32,
        /// Its version after the step; 0 is the seed.
        version: u64,
        /// How many paths contributed.
        paths: u32,
        /// Norm of the averaged and rescaled outer gradient.
        #[serde(deserialize_with = "nan_if_null")]
        outer_gradient_norm: f64,
        /// Mean cosine between the outer gradients of two paths, weighted by their norms; absent for one path.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cosine: Option<f64>,
    },
    /// A lease ran out and its path waits for another worker.
    LeaseExpired {
        /// The path.
        path: PathId,
        /// Round, counted from 0.
        round: u64,
        /// The worker that held it.
        worker: String,
        /// Fencing number of the lease.
        fence: u64,
    },
    /// A result came under a lease that no longer holds and was dropped.
    ResultRefused {
        /// The path.
        path: PathId,
        /// Round, counted from 0.
        round: u64,
        /// The worker that sent it.
        worker: String,
        /// Why.
        reason: String,
    },
    /// A model was measured on validation text.
    Evaluated {
        /// What was measured: `routed`, `dense`, `path-3`.
        model: String,
        /// Perplexity: e to the mean cross entropy.
        #[serde(deserialize_with = "nan_if_null")]
        perplexity: f64,
        /// Mean cross entropy, nats per token.
        #[serde(deserialize_with = "nan_if_null")]
        loss: f64,
        /// Tokens counted.
        tokens: u64,
        /// Documents counted.
        documents: u64,
    },
}

/// Whether a module is not cut, or this is its first fragment.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(fragment: &u32) -> bool {
    *fragment == 0
}

/// JSON has no NaN: the writer puts `null`, and here it becomes NaN again.
fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
