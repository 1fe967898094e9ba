//! Messages between workers, coordinator and synchronizers.
//!
//! [`Request`] and [`Response`] are the two ends of one operation. [`WorkerPlan`] is the part of the configuration that
//! a worker needs. [`OuterStepOrder`] names everything that an outer step needs, so that any process can take it.
//!
//! This package moves no bytes and decides nothing.

#![forbid(unsafe_code)]

mod error;
mod messages;
mod orders;
mod plan;

pub use error::PlanError;
pub use messages::{
    CompletedLease, ContentDigest, FetchSource, FragmentWeights, GrantedLease, LeaseReport, LeaseResult,
    PIECE_BYTES, PIECES_AT_ONCE, RUN_COMPLETE, Request, Response, SYNCHRONIZER, WORKER, WeightChange,
};
pub use orders::{MergeInput, OuterStepDone, OuterStepOrder};
pub use plan::WorkerPlan;
