//! Settings of a run that the ledger needs.

use dipaco_sync::{LeaseLimits, Numerics, Rescale, Schedule, Scheme, Weighting};

/// Settings of a run that the ledger needs.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerPlan {
    /// Sends and receives of a path, and ends of the phases of routing.
    pub schedule: Schedule,
    /// Rule for the contributions for which an outer step waits.
    pub scheme: Scheme,
    /// Limits of leases.
    pub limits: LeaseLimits,
    /// Number of leases of a path after which it uploads its state.
    pub state_every: u32,
    /// Number of checkpoints to keep.
    pub checkpoints: usize,
    /// Seed of shard sampling; `None` if every path is trained in turn.
    pub sampling: Option<u64>,
    /// Weights of the paths in the mean of their outer gradients.
    pub weighting: Weighting,
    /// Factor of the mean.
    pub rescale: Rescale,
    /// Largest norm of an outer gradient as a multiple of the median; 0 allows all.
    pub guard: f64,
    /// Number of workers for which the training of a path fails before nobody trains it any more; 0 for no number.
    pub quarantine_after: usize,
    /// True if the outer optimizer takes each contribution by itself (delayed Nesterov).
    pub one_by_one: bool,
    /// True if the merge compares contributions, so that it needs all of them at once.
    pub compares: bool,
    /// Devices that may train together.
    pub numerics: Numerics,
}
