//! The events of a run, stored in `metrics.jsonl`.

use dipaco_topology::{ModuleId, PathId};
use serde::{Deserialize, Deserializer, Serialize};

/// One line of the event file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Time of day in UTC, RFC 3339 with milliseconds.
    pub time: String,
    /// The event. Its fields stand beside `time`, its kind in the field `event`.
    #[serde(flatten)]
    pub event: Event,
}

/// Bytes on the wire of a coordinator since it began, in UDP datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireBytes {
    /// Bytes sent to peers.
    pub sent: u64,
    /// Bytes received from peers.
    pub received: u64,
}

impl WireBytes {
    /// Bytes in both directions.
    #[must_use]
    pub fn total(self) -> u64 {
        self.sent.saturating_add(self.received)
    }
}

/// An event of a run. `docs/metrics.md` lists the fields. A number that is not finite is written as `null`.
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
    /// The seed model was evaluated on validation text.
    SeedValidated {
        /// Number of steps taken so far.
        step: u64,
        /// Mean cross entropy, nats per token.
        #[serde(deserialize_with = "nan_if_null")]
        loss: f64,
        /// Number of tokens counted.
        tokens: u64,
    },
    /// A coordinator took the run over. Its seconds and its bytes on the wire count from here.
    CoordinatorStarted {
        /// Rounds that every path had completed.
        rounds: u64,
    },
    /// A coordinator ended in order.
    CoordinatorStopped {
        /// Its bytes on the wire.
        wire_bytes: WireBytes,
    },
    /// A worker joined.
    WorkerJoined {
        /// Name of the worker.
        worker: String,
        /// Fingerprint of the arithmetic of its device. Results of different fingerprints have different bits.
        #[serde(default)]
        numerics: String,
    },
    /// A worker left or lost its connection.
    WorkerLeft {
        /// Name of the worker.
        worker: String,
        /// Reason.
        reason: String,
    },
    /// The first path of a round was leased.
    RoundStarted {
        /// Round, counted from 0.
        round: u64,
    },
    /// Every path has taken the inner steps of a round, or passed over them: it rests, or is in quarantine.
    RoundCompleted {
        /// Round, counted from 0.
        round: u64,
        /// Mean training loss over the round's leases under this coordinator by inner steps, nats per token; NaN without any.
        #[serde(deserialize_with = "nan_if_null")]
        loss: f64,
        /// Seconds since the first of these leases.
        seconds: f64,
        /// Bytes on the wire since the coordinator began. [`Events`](crate::Events) fills them in; older files have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wire_bytes: Option<WireBytes>,
    },
    /// A phase of routing began: the text was divided again, and training goes on with new shards.
    PhaseStarted {
        /// Phase. The first router's phase is 0 and has no event.
        phase: u32,
        /// First round of the phase, counted from 0.
        round: u64,
        /// Seconds spent on dividing the text.
        seconds: f64,
    },
    /// A path completed a lease. A round has several leases where modules are cut into fragments, and where the number of
    /// inner steps follows the worker's speed. The last lease of a run may only measure.
    PathCompleted {
        /// The path.
        path: PathId,
        /// Round in which the lease begins, counted from 0.
        round: u64,
        /// Name of the worker that trained the path.
        worker: String,
        /// Inner steps of the lease; 0 if it only measured, absent in files of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steps: Option<u64>,
        /// Mean training loss of the lease, nats per token; NaN if it only measured.
        #[serde(deserialize_with = "nan_if_null")]
        loss: f64,
        /// Loss on the path's held-out documents before the inner steps, nats per token; absent without held-out documents.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        heldout_loss: Option<f64>,
        /// True if the held-out loss is the path's lowest so far.
        best: bool,
        /// Seconds spent in the inner steps.
        seconds: f64,
        /// Seconds without inner steps before these: transfers, and waiting for other paths or for a lease.
        #[serde(default)]
        waited_seconds: f64,
    },
    /// A module took its outer step.
    ModuleStepped {
        /// The module.
        module: ModuleId,
        /// Index of the fragment; 0 and not written for a module that is one fragment.
        #[serde(default, skip_serializing_if = "is_zero")]
        fragment: u32,
        /// Version after the step. Version 0 is the seed.
        version: u64,
        /// Number of paths that contributed.
        paths: u32,
        /// Norm of the averaged and rescaled outer gradient.
        #[serde(deserialize_with = "nan_if_null")]
        outer_gradient_norm: f64,
        /// Mean cosine between the outer gradients of pairs of paths, weighted by their norms; absent for one path.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cosine: Option<f64>,
    },
    /// The training went back to an earlier round: an operator took it back, or the store was damaged.
    RolledBack {
        /// Rounds that every path had completed before.
        from: u32,
        /// Rounds that every path had completed at the checkpoint.
        to: u32,
        /// Rounds of the later checkpoints, which are undone.
        undone: Vec<u32>,
    },
    /// The training of a path failed for several workers, and nobody trains it any more.
    PathQuarantined {
        /// The path.
        path: PathId,
        /// Inner steps of the path at the end of its last completed lease.
        step: u64,
        /// Names of the workers.
        workers: Vec<String>,
        /// The last failure.
        reason: String,
    },
    /// A lease expired, and its path waits for another worker.
    LeaseExpired {
        /// The path.
        path: PathId,
        /// Round, counted from 0.
        round: u64,
        /// Name of the worker that held the lease.
        worker: String,
        /// Fencing number of the lease.
        fence: u64,
    },
    /// A result under an expired lease arrived and was dropped.
    ResultRefused {
        /// The path.
        path: PathId,
        /// Round, counted from 0.
        round: u64,
        /// Name of the worker that sent the result.
        worker: String,
        /// Reason.
        reason: String,
    },
    /// The routed model was measured on validation text during training, each path on its own documents.
    Validated {
        /// Rounds that all paths had completed.
        rounds: u64,
        /// Inner steps of each path in these rounds.
        steps: u64,
        /// Tokens of the outer gradients so far, of all paths together, padding not counted.
        trained_tokens: u64,
        /// Seconds since the coordinator began.
        seconds: f64,
        /// Mean cross entropy, nats per token.
        #[serde(deserialize_with = "nan_if_null")]
        loss: f64,
        /// The same in bits per byte of text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bits_per_byte: Option<f64>,
        /// Number of tokens counted.
        tokens: u64,
    },
    /// A model was evaluated on validation text.
    Evaluated {
        /// The evaluated model: `routed`, `dense`, or a path such as `path 3`.
        model: String,
        /// Perplexity: e to the mean cross entropy.
        #[serde(deserialize_with = "nan_if_null")]
        perplexity: f64,
        /// Mean cross entropy, nats per token.
        #[serde(deserialize_with = "nan_if_null")]
        loss: f64,
        /// Number of tokens counted.
        tokens: u64,
        /// Number of documents counted.
        documents: u64,
    },
}

/// True for the first or only fragment of a module.
fn is_zero(fragment: &u32) -> bool {
    *fragment == 0
}

/// Reads `null` as NaN, which the writer stores as `null` because JSON has no NaN.
fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
