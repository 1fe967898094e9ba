//! What workers and the coordinator say to each other.
//!
//! One request and one response per QUIC stream. Weights, gradients, states and shards travel in pieces, each the payload
//! of an operation of its own. Every operation can be repeated: a worker whose answer was lost asks again.
//! `docs/wire-protocol.md` describes the bytes.

use dipaco_store::{ObjectRef, ShardRecord, names};
use dipaco_sync::{Fence, FragmentId, ScheduledSend};
use dipaco_topology::{ModuleId, PathId};
use serde::{Deserialize, Serialize};

use crate::orders::{OuterStepDone, OuterStepOrder};

/// The length of every piece of a whole but the last, in bytes: what a broken connection costs for each stream, and what
/// the coordinator keeps in memory for one. Shorter pieces cost more requests; this long, they are not seen.
pub const PIECE_BYTES: u64 = 2 << 20;

/// How many pieces a worker has under way at a time, in both directions together; the coordinator takes up no more of
/// one worker. With [`PIECE_BYTES`] 16 MiB, twice what a link of 1 Gb/s and 50 ms holds.
pub const PIECES_AT_ONCE: usize = 8;

/// The role in a worker's token.
pub const WORKER: &str = "worker";
/// The role in a synchronizer's token.
pub const SYNCHRONIZER: &str = "synchronizer";

/// The reason with which the coordinator of a complete run closes its connections.
pub const RUN_COMPLETE: &str = "the run is complete";

/// What a worker asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// The first request of a connection.
    Hello {
        /// The worker's name, unique in the run.
        worker: String,
        /// A number drawn at the start of the process: a new process under an old name holds no leases.
        instance: u64,
        /// The version of the program.
        version: String,
    },
    /// Asks for work.
    Lease {
        /// The paths whose state the worker still has in memory, with the round that it belongs to.
        held: Vec<PathId>,
        /// How long the coordinator may keep the question open, in milliseconds.
        wait_ms: u64,
    },
    /// Asks for the lease that comes after one that is out, to fetch what it begins with while that one is trained.
    Follow {
        /// The path.
        path: PathId,
        /// The fencing number of the lease that is out.
        fence: Fence,
        /// How long the coordinator may keep the question open, in milliseconds.
        wait_ms: u64,
    },
    /// Renews a lease.
    Heartbeat {
        /// The path.
        path: PathId,
        /// The lease's fencing number.
        fence: Fence,
        /// Inner steps done in this lease.
        step: u64,
        /// Mean training loss of the steps since the last heartbeat, in nats per token; absent before the first step.
        loss: Option<f32>,
    },
    /// Asks for a piece of something that [`GrantedLease`] names.
    Fetch {
        /// Of what.
        source: FetchSource,
        /// Where the piece begins: a multiple of [`PIECE_BYTES`].
        offset: u64,
    },
    /// Says that an object did not arrive as its reference says, although every piece of it did: the coordinator reads
    /// what it has stored.
    Check {
        /// The object.
        object: ObjectRef,
    },
    /// Brings a piece of one result of a lease as payload. With its last piece the result is whole, and what is sent
    /// before the lease ends counts at once.
    Submit {
        /// The path.
        path: PathId,
        /// The lease's fencing number.
        fence: Fence,
        /// What the whole is.
        item: LeaseResult,
        /// The whole.
        whole: ContentDigest,
        /// Where the piece begins: a multiple of [`PIECE_BYTES`].
        offset: u64,
    },
    /// Says that every result of a lease has been brought.
    Complete {
        /// The path.
        path: PathId,
        /// The lease's fencing number.
        fence: Fence,
        /// What happened.
        report: LeaseReport,
    },
    /// Gives every lease of the worker back unfinished.
    Release,
    /// Takes modules over, or keeps them, and asks for outer steps of theirs.
    Orders {
        /// The modules.
        modules: Vec<ModuleId>,
        /// `host:port` where workers reach the synchronizer.
        address: String,
        /// How long the coordinator may keep the question open, in milliseconds.
        wait_ms: u64,
    },
    /// Asks for a worker whether its lease is out and asks for an item.
    Expected {
        /// The path.
        path: PathId,
        /// The lease's fencing number.
        fence: Fence,
        /// What the worker begins to bring.
        item: LeaseResult,
    },
    /// Says that an item that a worker has brought is in the store.
    Stored {
        /// The path.
        path: PathId,
        /// The lease's fencing number.
        fence: Fence,
        /// What it is.
        item: LeaseResult,
        /// Where it is.
        object: ObjectRef,
    },
    /// Says that an outer step has been taken.
    Stepped(Box<OuterStepDone>),
}

impl Request {
    /// Whether only a synchronizer asks this.
    pub fn is_of_a_synchronizer(&self) -> bool {
        matches!(self, Self::Orders { .. } | Self::Expected { .. } | Self::Stored { .. } | Self::Stepped(_))
    }

    /// Whether a piece goes with the request or its answer.
    pub fn moves_a_piece(&self) -> bool {
        matches!(self, Self::Fetch { .. } | Self::Submit { .. })
    }
}

/// What a worker may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FetchSource {
    /// An object of the store.
    Object(ObjectRef),
    /// The shard of a path.
    Shard {
        /// The path.
        path: PathId,
        /// The shard's content hash: a path has another shard in every phase.
        hash: String,
    },
}

/// Something that travels in pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentDigest {
    /// Its BLAKE3 hash, 64 lower-case hexadecimal digits.
    pub hash: String,
    /// Its length in bytes.
    pub bytes: u64,
}

impl ContentDigest {
    /// What `content` is as a whole.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        Self { hash: blake3::hash(content).to_hex().to_string(), bytes: content.len() as u64 }
    }

    /// The length in bytes of the piece at `offset`; `None` where no piece begins. What is empty has one empty piece.
    #[must_use]
    pub fn piece(&self, offset: u64) -> Option<u64> {
        let begins = offset.is_multiple_of(PIECE_BYTES) && (offset < self.bytes || offset == 0);
        begins.then(|| (self.bytes - offset).min(PIECE_BYTES))
    }
}

/// What is brought with [`Request::Submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LeaseResult {
    /// The outer gradient of a fragment.
    OuterGradient {
        /// The fragment.
        fragment: FragmentId,
        /// The how manieth it is of the path to this fragment, from 1.
        number: u32,
        /// Tokens trained on since the path sent the one before, padding not counted.
        tokens: u64,
    },
    /// The path's state at the end of the lease.
    State,
}

impl LeaseResult {
    /// What to call the item in a message.
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

    /// What the item is called in the store; `step` is the one that its lease leads to.
    pub fn object_name(self, path: PathId, fence: Fence, step: u64) -> String {
        match self {
            Self::OuterGradient { fragment: FragmentId { module, index: fragment }, number, .. } => {
                names::outer_gradient(module, fragment, number, path, fence.0)
            }
            Self::State => names::path_state(path, step, fence.0),
        }
    }

    /// The item as the coordinator knows it before it is brought.
    pub fn without_tokens(self) -> Self {
        match self {
            Self::OuterGradient { fragment, number, .. } => {
                Self::OuterGradient { fragment, number, tokens: 0 }
            }
            Self::State => Self::State,
        }
    }
}

/// What a worker reports of a finished lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// Mean training loss of the lease, in nats per token; absent when nothing was trained.
    pub loss: Option<f64>,
    /// Mean loss of the global weights that the lease began with on the path's held-out documents, in nats per token;
    /// absent when the shard holds none out, or the path began with weights of its own.
    pub held_out_loss: Option<f64>,
    /// Tokens trained on, padding not counted.
    pub tokens: u64,
    /// Seconds spent in inner steps.
    pub seconds: f64,
    /// Seconds between the worker's inner steps before this lease and those of this lease: transfers, and waiting for
    /// others and for work.
    pub waited_seconds: f64,
}

/// What the coordinator answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// Answers [`Request::Hello`].
    Welcome {
        /// The run's identity.
        run: String,
        /// Everything of the configuration that a worker needs: a [`WorkerPlan`](crate::WorkerPlan) as JSON, because
        /// configuration is written in self-describing forms only.
        plan: String,
    },
    /// Answers [`Request::Lease`] and [`Request::Follow`]: do this.
    Lease(Box<GrantedLease>),
    /// Answers [`Request::Lease`] and [`Request::Follow`]: nothing can run now; ask again.
    Wait {
        /// Why.
        reason: String,
    },
    /// Answers [`Request::Lease`]: the run is complete; and [`Request::Follow`]: nothing follows.
    Finished,
    /// Answers a request that has been carried out.
    Done,
    /// Answers [`Request::Fetch`]; the piece is the payload.
    Piece {
        /// The length of the whole in bytes.
        total: u64,
    },
    /// Answers [`Request::Submit`]: the piece is kept, and others are missing.
    PieceStored,
    /// Answers [`Request::Orders`].
    Orders {
        /// The leases that are out.
        leases: Vec<Fence>,
        /// A number that those given out from now on are not below.
        next: Fence,
        /// What to do.
        orders: Vec<OuterStepOrder>,
    },
    /// Answers what a synchronizer can't answer: the coordinator is to be asked.
    Elsewhere {
        /// Why.
        reason: String,
    },
    /// The lease is no longer valid: drop the work.
    Lost {
        /// Why.
        reason: String,
    },
    /// The request can't be carried out, and repeating it would not help.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
}

/// A lease and what is needed to carry it out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrantedLease {
    /// The path.
    pub path: PathId,
    /// The lease's fencing number.
    pub fence: Fence,
    /// Milliseconds until the lease ends without a heartbeat.
    pub lease_ms: u64,
    /// Inner steps that the path has taken.
    pub from: u64,
    /// Inner steps that it will have taken; `from` to measure only.
    pub to: u64,
    /// Inner steps of the path before the phase of routing that it is in.
    pub phase_step: u64,
    /// The weights of the path's fragments, level by level.
    pub weights: Vec<FragmentWeights>,
    /// What the path sends, in order.
    pub sends: Vec<ScheduledSend>,
    /// The path's state, at the end of some earlier lease; absent before one was brought.
    pub state: Option<ObjectRef>,
    /// The complete leases since that state, for a worker that does not hold what they left.
    pub tail: Vec<CompletedLease>,
    /// The lease under which the path was trained up to `from`: a worker that carried it out holds what it left.
    pub made_by: Option<Fence>,
    /// Whether the lease has to bring the path's state.
    pub uploads_state: bool,
    /// The path's shard in this phase.
    pub shard: ShardRecord,
}

impl GrantedLease {
    /// Whether the lease is to train, and not only to measure.
    #[must_use]
    pub fn trains(&self) -> bool {
        self.to > self.from
    }
}

/// A lease that is complete, to be trained again by a worker that takes the path over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletedLease {
    /// Inner steps that the path had taken before it.
    pub from: u64,
    /// Inner steps that it had taken after it.
    pub to: u64,
    /// The weights of the path's fragments, level by level.
    pub weights: Vec<FragmentWeights>,
    /// What the path sent, in order.
    pub sends: Vec<ScheduledSend>,
}

/// Global weights of a fragment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FragmentWeights {
    /// The fragment.
    pub fragment: FragmentId,
    /// The weights.
    pub object: ObjectRef,
    /// Changes that lead to them, the newest at the end, for a worker that holds earlier weights.
    pub changes: Vec<WeightChange>,
    /// Whether the path takes them over now; otherwise they are what it took over before, and goes on from.
    pub received: bool,
    /// The path's factor in the merged outer gradient: its weight times what the mean is rescaled by.
    pub share: f32,
    /// `host:port` of the synchronizer that has the fragment's module; absent when that is the coordinator.
    pub at: Option<String>,
}

/// A change of global weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightChange {
    /// Content hash of the weights that it is added to.
    pub from: String,
    /// The change, written as an outer gradient is.
    pub object: ObjectRef,
}
