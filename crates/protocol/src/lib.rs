//! Messages between workers, coordinator and synchronizers.
//!
//! [`Request`] and [`Response`] are the two ends of one operation. [`WorkerPlan`] is the part of the configuration that
//! a worker needs. [`OuterStepOrder`] names everything that an outer step needs, so that any process can take it; it
//! and the other types of leases and results are the ledger's (`dipaco-ledger`).
//!
//! This package moves no bytes and decides nothing.

#![forbid(unsafe_code)]

mod error;
mod messages;
mod object_link;
mod plan;

pub use dipaco_ledger::{
    CompletedLease, FragmentWeights, GrantedLease, LeaseReport, LeaseResult, MergeInput, OuterStepDone,
    OuterStepOrder, WeightChange,
};
pub use error::PlanError;
pub use messages::{
    ContentDigest, FetchSource, MOST_LEASES, PIECE_BYTES, PIECES_AT_ONCE, RUN_COMPLETE, Request, Response,
    SYNCHRONIZER, WORKER,
};
pub use object_link::ObjectLink;
pub use plan::WorkerPlan;
