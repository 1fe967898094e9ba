//! Orders to synchronizers.

use dipaco_sync::FragmentId;
use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};

use crate::ObjectRef;

/// An outer step with the names of all its inputs. Contributions may still be missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OuterStepOrder {
    /// The fragment.
    pub fragment: FragmentId,
    /// Version of the fragment after the step.
    pub version: u32,
    /// Fencing number of the synchronizer that takes the step.
    pub fence: u64,
    /// Global weights before the step.
    pub weights: ObjectRef,
    /// State of the outer optimizer; absent before the first step.
    pub momentum: Option<ObjectRef>,
    /// Contributions in the order of merging.
    pub shares: Vec<MergeInput>,
    /// Number of contributions applied before these.
    pub applied: u64,
    /// True if the step can be taken. Before that, the synchronizer may merge the contributions that exist.
    pub due: bool,
}

/// A contribution to an outer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergeInput {
    /// The path that contributes.
    pub path: PathId,
    /// Factor in the mean.
    pub weight: f32,
    /// Factor of the outer gradient besides its weight: below 1 if the guard reduces it.
    pub reduction: f32,
    /// The outer gradient; absent until it arrives.
    pub gradient: Option<ObjectRef>,
}

/// A finished outer step. Its objects are in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OuterStepDone {
    /// The fragment.
    pub fragment: FragmentId,
    /// Version of the fragment after the step.
    pub version: u32,
    /// Fencing number of the synchronizer that took the step.
    pub fence: u64,
    /// The new global weights.
    pub weights: ObjectRef,
    /// New state of the outer optimizer.
    pub momentum: ObjectRef,
    /// The change of the weights, if workers fetch changes.
    pub change: Option<ObjectRef>,
    /// Euclidean norm of the merged outer gradient.
    pub norm: f64,
    /// Mean cosine similarity of the contributions to their mean, if measured.
    pub cosine: Option<f64>,
    /// Duration in seconds.
    pub seconds: f64,
}

impl OuterStepDone {
    /// Objects that the step has put into the store.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        [&self.weights, &self.momentum].into_iter().chain(&self.change)
    }
}
