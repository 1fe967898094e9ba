//! Outer synchronisation without I/O: who may train what, what counts, and how contributions are merged.
//!
//! The unit of synchronisation is the module; its learners are the paths that go through it.
//! [`Rounds`] decides: it hands out leases, takes contributions at most once, and says when a module may take its
//! outer step. [`Fold`] merges the contributions of one module in an order that does not depend on their arrival.
//! Both are plain state machines: time is an argument, values are slices of `f32`, and production, tests and
//! simulation run the same code. There is no socket, no file, no clock, no thread and no device here.
//!
//! Rounds follow arXiv:2403.10616, algorithm 1: every path trains H inner steps, then every module steps. There is no
//! barrier across modules: a path starts its next round as soon as its own modules have stepped.

mod fold;
mod lease;
mod rounds;

pub use fold::{Fold, FoldError, Rescale, Weighting, check_contribution, merge_weights};
pub use lease::{Fence, Lease, LeaseError, Task};
pub use rounds::{Commit, Grant, PathProgress, Plan, Progress, ProgressError, Reason, Rounds};
