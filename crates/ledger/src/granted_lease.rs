//! A granted lease with the names of its inputs.

use dipaco_sync::{Fence, FragmentId, LeaseKey, LeaseSecret, ScheduledSend};
use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};

use crate::{ObjectRef, ShardRecord};

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
