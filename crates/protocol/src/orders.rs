//! Orders to synchronizers.

use dipaco_store::ObjectRef;
use dipaco_sync::FragmentId;
use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};

/// An outer step, as far as what it merges is there: it names everything that it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OuterStepOrder {
    /// The fragment.
    pub fragment: FragmentId,
    /// The version that the step makes.
    pub version: u32,
    /// The fencing number of the synchronizer that takes it.
    pub fence: u64,
    /// The global weights before it.
    pub weights: ObjectRef,
    /// What the outer optimizer remembers; absent before the first step.
    pub momentum: Option<ObjectRef>,
    /// What is merged, in this order.
    pub shares: Vec<MergeInput>,
    /// How many contributions have been applied before these.
    pub applied: u64,
    /// Whether the step can be taken. Before that, what is there may be merged beforehand.
    pub due: bool,
}

/// A contribution to an outer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergeInput {
    /// Whose it is.
    pub path: PathId,
    /// Its factor in the mean.
    pub weight: f32,
    /// The outer gradient, when it is there.
    pub gradient: Option<ObjectRef>,
}

/// An outer step that has been taken; what it made is in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OuterStepDone {
    /// The fragment.
    pub fragment: FragmentId,
    /// Its version now.
    pub version: u32,
    /// The fencing number of the synchronizer that took the step.
    pub fence: u64,
    /// The new global weights.
    pub weights: ObjectRef,
    /// What the outer optimizer remembers now.
    pub momentum: ObjectRef,
    /// The change of the weights, where that is what workers fetch.
    pub change: Option<ObjectRef>,
    /// The norm of what was merged.
    pub norm: f64,
    /// Mean cosine similarity of what was merged to its mean, when that was measured.
    pub cosine: Option<f64>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl OuterStepDone {
    /// What the step has put into the store.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        [&self.weights, &self.momentum].into_iter().chain(&self.change)
    }
}
