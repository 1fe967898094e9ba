//! What workers and the coordinator say to each other.
//!
//! One request and one response per QUIC stream; weights, gradients, states and pieces of shards are payloads beside
//! them. Every operation can be repeated: a worker whose answer was lost asks again.
//! `docs/wire-protocol.md` describes the bytes.

use dipaco_store::{ObjectRef, ShardRecord};
use dipaco_sync::Fence;
use dipaco_topology::{ModuleId, PathId};
use serde::{Deserialize, Serialize};

/// The largest piece of a shard in one response, in bytes.
pub(crate) const SHARD_PIECE_BYTES: u64 = 8 << 20;

/// The reason with which the coordinator of a complete run closes its connections.
pub(crate) const RUN_COMPLETE: &str = "the run is complete";

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
    /// Renews a lease.
    Heartbeat {
        /// The path.
        path: PathId,
        /// The lease's fencing number.
        fence: Fence,
        /// Inner steps done in this round.
        step: u64,
        /// Mean training loss of the steps since the last heartbeat, in nats per token; absent before the first step.
        loss: Option<f32>,
    },
    /// Asks for an object that [`Work`] names.
    Fetch {
        /// The object.
        object: ObjectRef,
    },
    /// Asks for a piece of the shard of a path.
    FetchShard {
        /// The path.
        path: PathId,
        /// The shard's content hash: a path has another shard in every phase.
        hash: String,
        /// Where the piece begins, in bytes.
        offset: u64,
    },
    /// Brings one result of a lease as payload.
    Submit {
        /// The path.
        path: PathId,
        /// The round.
        round: u32,
        /// The lease's fencing number.
        fence: Fence,
        /// What the payload is.
        item: Item,
    },
    /// Says that every result of a lease has been brought.
    Complete {
        /// The path.
        path: PathId,
        /// The round.
        round: u32,
        /// The lease's fencing number.
        fence: Fence,
        /// What happened.
        report: Report,
    },
    /// Gives a lease back unfinished.
    Release {
        /// The path.
        path: PathId,
        /// The lease's fencing number.
        fence: Fence,
    },
}

/// What a payload of [`Request::Submit`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Item {
    /// The outer gradient of a module, as a module file.
    OuterGradient(ModuleId),
    /// The path's state at the end of the round.
    State,
}

impl Item {
    /// What to call the item in a message.
    pub(crate) fn name(self) -> String {
        match self {
            Self::OuterGradient(module) => format!("the outer gradient of module {module}"),
            Self::State => "the path's state".to_owned(),
        }
    }
}

/// What a worker reports of a finished lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Mean training loss of the round, in nats per token; absent when nothing was trained.
    pub loss: Option<f64>,
    /// Mean loss of the round's first weights on the path's held-out documents, in nats per token; absent when the
    /// shard holds none out.
    pub held_out_loss: Option<f64>,
    /// Tokens trained on, padding not counted.
    pub tokens: u64,
    /// Seconds spent in inner steps.
    pub seconds: f64,
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
    /// Answers [`Request::Lease`]: do this.
    Work(Box<Work>),
    /// Answers [`Request::Lease`]: nothing can run now; ask again.
    Wait {
        /// Why.
        reason: String,
    },
    /// Answers [`Request::Lease`]: the run is complete.
    Finished,
    /// Answers a request that has been carried out; the payload, if one was asked for, goes with it.
    Done,
    /// Answers [`Request::FetchShard`]; the piece is the payload.
    ShardPiece {
        /// The shard file's whole length in bytes.
        total: u64,
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
pub struct Work {
    /// The path.
    pub path: PathId,
    /// The round, counted from 0.
    pub round: u32,
    /// The lease's fencing number.
    pub fence: Fence,
    /// Milliseconds until the lease ends without a heartbeat.
    pub lease_ms: u64,
    /// Inner steps to train; 0 to measure only.
    pub inner_steps: u64,
    /// Inner steps of the path before the phase of routing that it is in.
    pub phase_step: u64,
    /// The global weights of the path's modules, one per level.
    pub modules: Vec<(ModuleId, ObjectRef)>,
    /// The path's state; absent before its first round.
    pub state: Option<ObjectRef>,
    /// The path's shard in this phase.
    pub shard: ShardRecord,
}
