//! Requests and responses.
//!
//! One QUIC stream carries one request and one response. Weights, gradients, states and shards travel in pieces. Each
//! piece is the payload of an operation of its own. Every operation can be repeated: a worker that loses an answer asks
//! again. `docs/wire-protocol.md` describes the bytes.

use dipaco_store::{ObjectRef, ShardRecord, names};
use dipaco_sync::{Fence, FragmentId, LeaseClaim, LeaseKey, LeaseSecret, ScheduledSend};
use dipaco_topology::{ModuleId, PathId};
use serde::{Deserialize, Serialize};

use crate::orders::{OuterStepDone, OuterStepOrder};

/// Length of a piece in bytes; only the last piece of an object or result is shorter. A broken connection costs one piece
/// per stream, and the coordinator holds one piece per stream in memory. Shorter pieces cost more requests; at this
/// length their cost cannot be measured.
pub const PIECE_BYTES: u64 = 2 << 20;

/// Number of pieces that a worker transfers at a time, in both directions together. The coordinator serves no more to one
/// worker. With [`PIECE_BYTES`] this is 16 MiB, twice the content of a link of 1 Gb/s and 50 ms.
pub const PIECES_AT_ONCE: usize = 8;

/// Role in the token of a worker.
pub const WORKER: &str = "worker";
/// Role in the token of a synchronizer.
pub const SYNCHRONIZER: &str = "synchronizer";

/// Close reason of the coordinator of a complete run.
pub const RUN_COMPLETE: &str = "the run is complete";

/// A request of a worker or a synchronizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// The first request of a connection.
    Hello {
        /// The worker's name, unique in the run.
        worker: String,
        /// Random number of the process. A new process under an old name holds no leases.
        instance: u64,
        /// Version of the program, and hash of its sources.
        version: String,
        /// Fingerprint of the arithmetic of the device that trains.
        numerics: String,
    },
    /// Asks for a lease.
    Lease {
        /// Paths whose newest state the worker holds in memory.
        held: Vec<PathId>,
        /// Time in milliseconds that the coordinator may wait before it answers.
        wait_ms: u64,
    },
    /// Asks for the lease that follows a current lease, to prefetch its inputs during training.
    Follow {
        /// The current lease.
        lease: LeaseKey,
        /// Time in milliseconds that the coordinator may wait before it answers.
        wait_ms: u64,
    },
    /// Renews a lease.
    Heartbeat {
        /// The lease.
        lease: LeaseKey,
        /// Number of inner steps taken in this lease.
        step: u64,
        /// Inner steps of earlier leases that the worker has repeated for this lease.
        repeated: u64,
        /// Mean training loss of the steps since the last heartbeat, in nats per token; absent before the first step.
        loss: Option<f32>,
    },
    /// Asks for a piece of an object or shard that a [`GrantedLease`] names.
    Fetch {
        /// The object or shard.
        source: FetchSource,
        /// Offset of the piece in bytes, a multiple of [`PIECE_BYTES`].
        offset: u64,
    },
    /// Reports an object whose pieces have all arrived, but whose hash is wrong. The coordinator verifies its stored copy.
    Check {
        /// The object.
        object: ObjectRef,
    },
    /// Uploads a piece of one result of a lease as payload. The last piece completes the result. A result that the lease
    /// sends before its end counts at once.
    Submit {
        /// The lease.
        lease: LeaseKey,
        /// The result.
        item: LeaseResult,
        /// Hash and length of the whole result.
        digest: ContentDigest,
        /// Offset of the piece in bytes, a multiple of [`PIECE_BYTES`].
        offset: u64,
    },
    /// Completes a lease: all its results are uploaded.
    Complete {
        /// The lease.
        lease: LeaseKey,
        /// Losses, tokens and times of the lease.
        report: LeaseReport,
    },
    /// Gives back all leases of the worker, unfinished.
    Release,
    /// Takes over modules, or keeps them, and asks for their outer steps.
    Orders {
        /// The modules.
        modules: Vec<ModuleId>,
        /// `host:port` at which workers reach the synchronizer.
        address: String,
        /// Time in milliseconds that the coordinator may wait before it answers.
        wait_ms: u64,
    },
    /// Asks on behalf of a worker whether its lease is current and expects a result.
    Expected {
        /// The lease and the worker that names it.
        claim: LeaseClaim,
        /// The result that the worker begins to upload.
        item: LeaseResult,
        /// Announced digest of the result.
        digest: ContentDigest,
    },
    /// Reports that a worker's result is in the store.
    Stored {
        /// The lease and the worker that names it.
        claim: LeaseClaim,
        /// The result.
        item: LeaseResult,
        /// Its object.
        object: ObjectRef,
        /// Euclidean norm of the outer gradient.
        norm: f64,
    },
    /// Reports a finished outer step.
    Stepped(Box<OuterStepDone>),
    /// Asks for a token of the same name and role that is valid for longer.
    Renew,
}

impl Request {
    /// True if only a synchronizer may send this request.
    pub fn is_of_a_synchronizer(&self) -> bool {
        matches!(self, Self::Orders { .. } | Self::Expected { .. } | Self::Stored { .. } | Self::Stepped(_))
    }

    /// True if the request or its response carries a piece, or reads an object as long as many pieces.
    pub fn moves_a_piece(&self) -> bool {
        matches!(self, Self::Fetch { .. } | Self::Submit { .. } | Self::Check { .. })
    }
}

/// An object or shard that a worker may fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FetchSource {
    /// An object of the store.
    Object(ObjectRef),
    /// The shard of a path.
    Shard {
        /// The path.
        path: PathId,
        /// Content hash of the shard. A path has another shard in every phase.
        hash: String,
    },
}

/// Hash and length of content that travels in pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentDigest {
    /// BLAKE3 hash, 64 lower-case hexadecimal digits.
    pub hash: String,
    /// Length in bytes.
    pub bytes: u64,
}

impl ContentDigest {
    /// True if the hash has the form of a BLAKE3 hash. A hash is part of an object's name.
    #[must_use]
    pub fn is_well_formed(&self) -> bool {
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        self.hash.len() == 2 * blake3::OUT_LEN && self.hash.bytes().all(digit)
    }

    /// Hash and length of `content`.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        Self { hash: blake3::hash(content).to_hex().to_string(), bytes: content.len() as u64 }
    }

    /// Length in bytes of the piece at `offset`; `None` if no piece begins there. Empty content has one empty piece.
    #[must_use]
    pub fn piece(&self, offset: u64) -> Option<u64> {
        let begins = offset.is_multiple_of(PIECE_BYTES) && (offset < self.bytes || offset == 0);
        begins.then(|| (self.bytes - offset).min(PIECE_BYTES))
    }
}

/// A result of a lease, uploaded with [`Request::Submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LeaseResult {
    /// The outer gradient of a fragment.
    OuterGradient {
        /// The fragment.
        fragment: FragmentId,
        /// Sequence number of the path's contributions to the fragment, from 1.
        number: u32,
        /// Tokens trained on since the path's previous contribution, padding not counted.
        tokens: u64,
    },
    /// The path's state at the end of the lease.
    State,
}

impl LeaseResult {
    /// Name of the result in messages.
    pub fn name(self) -> String {
        match self {
            Self::OuterGradient { fragment, number, .. } => {
                format!(
                    "outer gradient {number} of fragment {} of module {}",
                    fragment.index, fragment.module
                )
            }
            Self::State => "the path's state".to_owned(),
        }
    }

    /// Name of the result's object in the store. The name contains the content's hash, so another content never takes
    /// its place. `step` is the last inner step of the lease.
    pub fn object_name(self, lease: LeaseKey, step: u64, digest: &ContentDigest) -> String {
        let LeaseKey { path, fence, .. } = lease;
        let name = match self {
            Self::OuterGradient { fragment: FragmentId { module, index: fragment }, number, .. } => {
                names::outer_gradient(module, fragment, number, path, fence.0)
            }
            Self::State => names::path_state(path, step, fence.0),
        };
        format!("{name}-{}", digest.hash)
    }

    /// Tokens in an outer gradient; 0 for a state.
    pub fn tokens(self) -> u64 {
        match self {
            Self::OuterGradient { tokens, .. } => tokens,
            Self::State => 0,
        }
    }

    /// The result as the coordinator expects it: the number of tokens is known only after the upload.
    pub fn without_tokens(self) -> Self {
        match self {
            Self::OuterGradient { fragment, number, .. } => {
                Self::OuterGradient { fragment, number, tokens: 0 }
            }
            Self::State => Self::State,
        }
    }
}

/// A worker's report on a finished lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// Mean training loss of the lease, in nats per token; absent if the lease takes no inner steps.
    pub loss: Option<f64>,
    /// Mean loss on the path's held-out documents of the global weights at the start of the lease, in nats per token;
    /// absent if the shard has no held-out documents, or if the path starts from weights of its own.
    pub held_out_loss: Option<f64>,
    /// Tokens trained on, padding not counted.
    pub tokens: u64,
    /// Seconds of inner steps.
    pub seconds: f64,
    /// Seconds between the worker's previous inner step and the first inner step of this lease: transfers, and waiting for
    /// a lease.
    pub waited_seconds: f64,
}

/// A response of the coordinator or a synchronizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// Answers [`Request::Hello`].
    Welcome {
        /// The run's identity.
        run: String,
        /// The part of the configuration that a worker needs: a [`WorkerPlan`](crate::WorkerPlan) as JSON. Configuration is
        /// always written in self-describing formats.
        plan: String,
    },
    /// Answers [`Request::Lease`] and [`Request::Follow`]: a lease.
    Lease(Box<GrantedLease>),
    /// Answers [`Request::Lease`] and [`Request::Follow`]: no path can be trained now; ask again.
    Wait {
        /// The reason.
        reason: String,
    },
    /// Answers [`Request::Lease`]: the run is complete. Answers [`Request::Follow`]: no lease follows.
    Finished,
    /// Confirms a request that is carried out.
    Done,
    /// Answers [`Request::Fetch`]; the piece is the payload.
    Piece {
        /// Length of the whole object or shard in bytes.
        total: u64,
    },
    /// Answers [`Request::Submit`]: the piece is stored, others are missing.
    PieceStored,
    /// Answers [`Request::Orders`].
    Orders {
        /// The current leases.
        leases: Vec<Fence>,
        /// Lower bound of the fencing numbers of future leases.
        next: Fence,
        /// The outer steps to take.
        orders: Vec<OuterStepOrder>,
    },
    /// The synchronizer cannot answer this request: ask the coordinator.
    Elsewhere {
        /// The reason.
        reason: String,
    },
    /// The lease is no longer valid: drop its results.
    Lost {
        /// The reason.
        reason: String,
    },
    /// The request cannot be carried out, and repeating it would not help.
    Refused {
        /// The reason, and the remedy.
        reason: String,
    },
    /// Answers [`Request::Renew`].
    Renewed {
        /// The token's line of text, without addresses.
        token: String,
    },
}

/// A lease with the names of all its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrantedLease {
    /// The path.
    pub path: PathId,
    /// The lease's fencing number.
    pub fence: Fence,
    /// Secret that the worker shows with each message about the lease.
    pub secret: LeaseSecret,
    /// Milliseconds until the lease ends without a heartbeat.
    pub lease_ms: u64,
    /// Number of inner steps of the path before the lease.
    pub from: u64,
    /// Number of inner steps of the path after the lease; equal to `from` if the lease only measures.
    pub to: u64,
    /// Number of inner steps of the path before its current phase of routing.
    pub phase_step: u64,
    /// Weights of the path's fragments, level by level.
    pub weights: Vec<FragmentWeights>,
    /// Outer gradients that the lease sends, in order.
    pub sends: Vec<ScheduledSend>,
    /// The path's state at the end of an earlier lease; absent until a lease uploads one.
    pub state: Option<ObjectRef>,
    /// The completed leases since that state. A worker without their results trains them again.
    pub replay: Vec<CompletedLease>,
    /// The lease that trained the path up to `from`. The worker of that lease may still hold the path's state.
    pub made_by: Option<Fence>,
    /// True if the lease must upload the path's state.
    pub uploads_state: bool,
    /// The path's shard in this phase.
    pub shard: ShardRecord,
}

impl GrantedLease {
    /// The lease as its worker names it.
    #[must_use]
    pub fn key(&self) -> LeaseKey {
        LeaseKey { path: self.path, fence: self.fence, secret: self.secret }
    }

    /// True if the lease trains; false if it only measures.
    #[must_use]
    pub fn trains(&self) -> bool {
        self.to > self.from
    }
}

/// A completed lease that a worker trains again when it takes over the path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletedLease {
    /// Number of inner steps of the path before the lease.
    pub from: u64,
    /// Number of inner steps of the path after the lease.
    pub to: u64,
    /// Weights of the path's fragments, level by level.
    pub weights: Vec<FragmentWeights>,
    /// Outer gradients that the lease sent, in order.
    pub sends: Vec<ScheduledSend>,
}

/// Global weights of a fragment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FragmentWeights {
    /// The fragment.
    pub fragment: FragmentId,
    /// The weights.
    pub object: ObjectRef,
    /// Changes that lead to these weights, newest last, for a worker that holds earlier weights.
    pub changes: Vec<WeightChange>,
    /// True if the path takes over these weights now; false if it took them over earlier and continues from them.
    pub received: bool,
    /// Factor of the path in the merged outer gradient: its weight times the rescaling of the mean.
    pub share: f32,
    /// `host:port` of the synchronizer that owns the module; absent if the coordinator owns it.
    pub at: Option<String>,
}

/// A change of global weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightChange {
    /// Content hash of the weights to which the change is added.
    pub from: String,
    /// The change, encoded like an outer gradient.
    pub object: ObjectRef,
}
