//! The stages of a lease, for measurements of its cost.

use std::fmt;
use std::sync::Arc;

use crate::client::{LeaseKey, Moved};

/// What a worker's lease has reached. A lease reaches the stages in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseStage {
    /// The coordinator has granted it.
    Granted,
    /// Its inputs are in memory.
    Fetched,
    /// The path is on the device, before the first inner step.
    Loaded,
    /// The last inner step is done.
    Trained,
    /// Its last results are encoded.
    Encoded,
    /// The coordinator has its results and has recorded its end.
    Completed,
}

/// The moment at which a lease reaches a stage.
#[derive(Clone, Copy, Debug)]
pub struct LeaseMoment {
    /// The lease.
    pub lease: LeaseKey,
    /// The stage.
    pub stage: LeaseStage,
    /// Bytes that the worker has moved since its start.
    pub moved: Moved,
}

/// A function that a worker calls at each [`LeaseMoment`]. It must return soon: training and transfers wait for it.
#[derive(Clone)]
pub struct LeaseObserver(Arc<dyn Fn(LeaseMoment) + Send + Sync>);

impl LeaseObserver {
    /// An observer.
    pub fn new(observe: impl Fn(LeaseMoment) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(super) fn observe(&self, moment: LeaseMoment) {
        (self.0)(moment);
    }
}

impl fmt::Debug for LeaseObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseObserver")
    }
}
