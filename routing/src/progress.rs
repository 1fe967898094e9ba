//! How far a long operation is.

use std::ops::ControlFlow;

use crate::RoutingError;

/// A step of a long operation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Progress {
    /// Features of documents are being computed.
    Documents {
        /// Documents that are done.
        done: u64,
        /// All documents.
        total: u64,
    },
    /// Documents are being copied into shards.
    Shards {
        /// Documents that are done.
        done: u64,
        /// All documents.
        total: u64,
    },
    /// k-means took an iteration.
    KMeans {
        /// The start, from 0.
        restart: usize,
        /// The iteration of this start; 0 is its seeding.
        iteration: usize,
        /// Sum of the squared distances between points and their centroids.
        inertia: f64,
    },
    /// The classifier of a discriminative router was measured.
    Classifier {
        /// The penalty that is being tried.
        penalty: f64,
        /// How often it was measured with this penalty before.
        evaluation: usize,
        /// Its loss, penalty included.
        loss: f64,
    },
}

/// Told each step; `Break` stops the operation with [`RoutingError::Cancelled`] before anything is published.
pub type ProgressFn<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Reports a step.
pub(crate) fn report(progress: &mut ProgressFn<'_>, step: Progress) -> Result<(), RoutingError> {
    match progress(step) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(RoutingError::Cancelled),
    }
}
