//! Outer synchronisation without I/O: who may train what, what counts, and how contributions are merged.
//!
//! The unit of synchronisation is the fragment of a module ([`FragmentId`]); its learners are the paths through the module.
//! [`Schedule`] says at which inner steps a path sends and takes over which fragment, [`Scheme`] whom an outer step
//! waits for. [`RunState`] decides: it hands out leases, takes contributions at most once, and says which unit may take
//! its outer step. [`Fold`] merges the contributions to a unit in an order that does not depend on their arrival, and
//! [`learner`] is what a path does with its weights when it sends and receives.
//! All are plain state machines: time is an argument, values are slices of `f32`, and production, tests and simulation
//! run the same code. There is no socket, no file, no clock, no thread and no device here.
//!
//! The schemes of the literature are configurations ([`SyncConfig`]): DiLoCo and DiPaCo (arXiv:2403.10616, algorithm 1),
//! Streaming DiLoCo (arXiv:2501.18512), delayed updates (arXiv:2502.12996), asynchronous Local SGD (arXiv:2401.09135) and
//! Decoupled DiLoCo (arXiv:2604.21428). There is no barrier across modules: a path goes on as soon as what it is to take
//! over is there.

mod config;
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
mod progress;
mod ready;
mod reason;
mod run_state;
mod sampling;
mod schedule;
mod scheme;

pub use config::SyncConfig;
pub use drops::Drops;
pub use eager::{Ahead, OuterRule};
pub use fold::{Fold, FoldError, Rescale, Weighting, check_contribution, merge_weights};
pub use fragment_id::{FragmentId, fragment_ids, fragment_ids_of};
pub use fragments::{FragmentsError, Pattern, TensorSize, cut};
pub use grace::Grace;
pub use guard::{Guard, OutOfProportion};
pub use lease::{Fence, Lease, LeaseError, LeaseTask, ScheduledReceive, ScheduledSend};
pub use progress::{Contribution, PathProgress, ProgressError, TrainingProgress};
pub use reason::Reason;
pub use run_state::{Commit, Grant, LeaseOutcome, OuterStep, RunPlan, RunState};
pub use schedule::{Schedule, ScheduleError, SchedulePoint};
pub use scheme::{Quorum, Scheme, dynamic_steps};
