//! Progress of long operations.

use std::ops::ControlFlow;

use crate::RoutingError;

/// A step of a long operation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RoutingProgress {
    /// The text is being checked for damage.
    Verify {
        /// Bytes read.
        done: u64,
        /// All bytes.
        total: u64,
    },
    /// Shards that are there already are being checked for damage.
    VerifyShards {
        /// Bytes read.
        done: u64,
        /// All bytes.
        total: u64,
    },
    /// Features of documents are being computed.
    Documents {
        /// Finished documents.
        done: u64,
        /// All documents.
        total: u64,
    },
    /// Documents are being copied into shards.
    Shards {
        /// Finished documents.
        done: u64,
        /// All documents.
        total: u64,
    },
    /// Token vectors took an iteration of latent semantic analysis.
    Vectors {
        /// Iterations done; 0 while documents are read.
        iteration: usize,
        /// All iterations.
        iterations: usize,
    },
    /// k-means took an iteration.
    KMeans {
        /// Number of the start, from 0.
        restart: usize,
        /// Iteration of this start; 0 is its seeding.
        iteration: usize,
        /// Sum of the squared distances between points and their centroids.
        inertia: f64,
    },
    /// The loss of a discriminative router's classifier was evaluated.
    Classifier {
        /// The penalty of this fit.
        penalty: f64,
        /// Number of earlier evaluations with this penalty.
        evaluation: usize,
        /// Its loss, penalty included.
        loss: f64,
    },
}

/// Receives each step. `Break` stops the operation with [`RoutingError::Cancelled`] before it publishes a result.
pub type ProgressFn<'a> = dyn FnMut(RoutingProgress) -> ControlFlow<()> + 'a;

/// Reports a step.
pub(crate) fn report(progress: &mut ProgressFn<'_>, step: RoutingProgress) -> Result<(), RoutingError> {
    match progress(step) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(RoutingError::Cancelled),
    }
}
