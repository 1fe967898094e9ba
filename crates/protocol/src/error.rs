//! Errors of a worker's plan.

use thiserror::Error;

/// A plan that cannot be carried out, written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The levels do not fit the model.
    #[error(transparent)]
    Topology(#[from] dipaco_topology::TopologyError),
    /// No schedule of sends and receives exists for the configuration.
    #[error("section [sync] does not fit train.inner_steps")]
    Schedule(#[from] dipaco_sync::ScheduleError),
    /// The plan cannot be written as JSON.
    #[error("the configuration cannot be sent to workers: a value cannot be written as JSON")]
    Unwritable(#[source] serde_json::Error),
    /// The plan cannot be read.
    #[error(
        "the coordinator's configuration cannot be read: install the same version of dipaco on both machines"
    )]
    Unreadable(#[source] serde_json::Error),
}
