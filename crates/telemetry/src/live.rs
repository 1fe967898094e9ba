//! A training as its coordinator knows it at this moment, and a synchronizer as it knows itself.

use std::sync::Arc;

use dipaco_topology::{ModuleId, PathId};
use serde::Serialize;

/// Asks the coordinator for the present state; `None` when it has ended.
pub type LiveSource = Arc<dyn Fn() -> Option<LiveRun> + Send + Sync>;

/// A training at this moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveRun {
    /// Identity of the run.
    pub run: String,
    /// Rounds of the whole run.
    pub rounds: u32,
    /// Rounds that every path has completed.
    pub rounds_done: u32,
    /// H, inner steps of a path per round.
    pub inner_steps: u64,
    /// Phase of routing, from 0.
    pub phase: u32,
    /// The modules with their fragments, in order.
    pub modules: Vec<LiveModule>,
    /// The paths, in order.
    pub paths: Vec<LivePath>,
    /// Bytes sent to peers in UDP datagrams since the coordinator began.
    pub bytes_sent: u64,
    /// Bytes received from peers in UDP datagrams since the coordinator began.
    pub bytes_received: u64,
    /// Bytes that workers have read straight from the store since the coordinator began, as they report it.
    pub bytes_linked: u64,
    /// Requests and connections that have ended in a panic since the coordinator began.
    pub bugs: u64,
    /// Seconds since the coordinator began.
    pub seconds: f64,
}

/// A module of the grid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LiveModule {
    /// The module.
    pub module: ModuleId,
    /// Outer steps of each of its fragments.
    pub versions: Vec<u32>,
    /// Number of paths through it.
    pub paths: usize,
}

/// A path of the grid.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LivePath {
    /// The path.
    pub path: PathId,
    /// Its modules, level by level.
    pub modules: Vec<ModuleId>,
    /// Inner steps of its complete leases.
    pub steps: u64,
    /// Documents of its shard.
    pub documents: u64,
    /// Tokens of its shard.
    pub tokens: u64,
    /// True if nobody trains it any more, because its training failed for several workers.
    pub quarantined: bool,
    /// Its current lease.
    pub lease: Option<LiveLease>,
}

/// A lease that is out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveLease {
    /// Name of the worker.
    pub worker: String,
    /// Inner steps that the worker has taken for it.
    pub taken: u64,
    /// Inner steps that the lease asks for.
    pub asked: u64,
    /// Seconds since the worker's last word about it.
    pub silent_seconds: f64,
}

/// Asks a synchronizer for its present state; `None` when it has ended.
pub type LiveSynchronizerSource = Arc<dyn Fn() -> Option<LiveSynchronizer> + Send + Sync>;

/// A synchronizer at this moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveSynchronizer {
    /// Identity of the run.
    pub run: String,
    /// Address by which workers reach it.
    pub address: String,
    /// Modules whose outer steps it takes.
    pub modules: Vec<ModuleId>,
    /// Outer steps that the coordinator accepted.
    pub outer_steps: u64,
    /// Outer steps that did not count, because another process took them.
    pub outer_steps_lost: u64,
    /// Seconds since the coordinator's last answer.
    pub coordinator_silent_seconds: f64,
    /// Bytes sent to workers in UDP datagrams.
    pub bytes_sent: u64,
    /// Bytes received from workers in UDP datagrams.
    pub bytes_received: u64,
    /// Seconds since it joined.
    pub seconds: f64,
}
