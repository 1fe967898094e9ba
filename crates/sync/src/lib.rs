//! Outer synchronisation without I/O: leases, contributions, and merging.
//!
//! Paths synchronise fragments of modules ([`FragmentId`]). The learners of a fragment are the paths through its
//! module. [`Schedule`] gives the inner steps at which a path sends and receives each fragment. [`Scheme`] gives the
//! contributions for which an outer step waits. [`RunState`] decides: it grants leases, counts each contribution at
//! most once, and lists the fragments whose outer step is due. [`Fold`] merges the contributions to a fragment in an
//! order that does not depend on their arrival. [`Clipping`] and [`TrimmedMean`] withstand a minority of liars.
//! [`learner`] changes a path's weights at a send and at a receive.
//!
//! All are plain state machines. Time is an argument, values are slices of `f32`, and production, tests and simulation
//! run the same code. This package has no socket, no file, no clock, no thread and no device.
//!
//! The schemes of the literature are configurations ([`SyncConfig`]): DiLoCo and DiPaCo (arXiv:2403.10616, algorithm
//! 1), Streaming DiLoCo (arXiv:2501.18512), delayed updates (arXiv:2502.12996), asynchronous Local SGD
//! (arXiv:2401.09135) and Decoupled DiLoCo (arXiv:2604.21428). There is no barrier across modules: a path continues as
//! soon as the fragments that it receives have stepped.

#![forbid(unsafe_code)]

mod clipping;
mod config;
mod deficits;
mod drops;
mod eager;
mod fold;
mod fragment_id;
mod fragments;
mod grace;
mod guard;
mod holders;
pub mod learner;
mod lease;
mod lease_claim;
mod lease_limits;
mod lease_table;
mod median;
mod merge;
mod needed_versions;
mod numerics;
mod places;
mod process_id;
mod progress;
mod quorums;
mod ready;
mod reason;
mod rescale;
mod rests;
mod run_state;
mod sampling;
mod schedule;
mod scheme;
mod sent_counts;
mod shared_map;
mod speeds;
mod tally;
mod trimming;
mod troubles;

pub use clipping::Clipping;
pub use config::SyncConfig;
pub use drops::Drops;
pub use eager::{Ahead, OuterRule};
pub use fold::{EmbeddingMean, Fold, FoldError, FoldRule, FoldTensor, Weighting, merge_weights};
pub use fragment_id::{FragmentId, fragment_ids, fragment_ids_of};
pub use fragments::{FragmentsError, Pattern, TensorSize, cut};
pub use grace::Grace;
pub use guard::{CountedNorms, Guard, OutOfProportion};
pub use lease::{Fence, Lease, LeaseError, LeaseTask, ScheduledReceive, ScheduledSend};
pub use lease_claim::{LeaseClaim, LeaseKey, LeaseSecret};
pub use lease_limits::{LeaseLimits, LeaseRequest};
pub use merge::Merge;
pub use needed_versions::NeededVersions;
pub use numerics::{NoNumerics, Numerics};
pub use process_id::ProcessId;
pub use progress::{Contribution, PathProgress, ProgressError, TrainingProgress};
pub use reason::Reason;
pub use rescale::Rescale;
pub use rests::Rests;
pub use run_state::{
    Commit, EarlyContribution, ExpectedSend, FailedTraining, Grant, LeaseOutcome, OuterStep, RunPlan,
    RunState,
};
pub use schedule::{Schedule, ScheduleError, SchedulePoint};
pub use scheme::{Quorum, Scheme, dynamic_steps};
pub use shared_map::SharedMap;
pub use trimming::{TrimmedMean, TrimmedSlice};
