//! The answers to requests for leases and to results.

use crate::{Lease, LeaseError, Reason};

/// The answer to a worker that asks for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// A lease.
    Lease(Box<Lease>),
    /// No path can be trained now.
    Wait(Reason),
    /// The run is complete.
    Finished,
}

/// The answer to a finished lease or to an outer gradient. `T` describes the accepted contributions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit<T> {
    /// It counts from now on.
    Accepted(T),
    /// It was accepted before: a retry after a lost answer, or a repetition of a lost lease's result.
    Duplicate,
    /// It does not count.
    Refused(LeaseError),
}
