//! Errors of the ledger.

use dipaco_sync::{FoldError, LeaseError, OutOfProportion, ProgressError};
use dipaco_topology::PathId;
use thiserror::Error;

use crate::OtherNumerics;

/// An error of the ledger. It ends the coordinator, except for [`LedgerError::NotAtBoundary`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Training has not begun.
    #[error("the training of this run has not begun: run `dipaco train`")]
    NotStarted,
    /// The coordinator stops, so a change does not count any more.
    #[error("the coordinator stops; every acknowledged result is kept")]
    Closed,
    /// The manifest lacks a record.
    #[error(
        "the manifest lacks {what}: it is damaged or of another run; go back to a copy of the run's store"
    )]
    Lacks {
        /// The missing record.
        what: String,
    },
    /// The number of shards differs from the number of paths.
    #[error(
        "there are {shards} shards for {paths} paths: run `dipaco route fit` and `dipaco route assign` for this configuration"
    )]
    ShardCount {
        /// Number of shards.
        shards: usize,
        /// Number of paths of the topology.
        paths: u32,
    },
    /// The shard of a path is empty.
    #[error(
        "path {path} has no documents to train on: use fewer paths, more text, or another router seed (`--set router.seed=…`), and route again"
    )]
    EmptyShard {
        /// The path.
        path: PathId,
    },
    /// The next phase of routing can't begin yet.
    #[error(
        "the next phase begins after {round} rounds of every path, and the run is not there yet: train on first"
    )]
    NotAtBoundary {
        /// The round with which the current phase ends.
        round: u32,
    },
    /// The manifest's progress does not fit the configuration.
    #[error(transparent)]
    Progress(#[from] ProgressError),
    /// The weights of contributions can't be computed.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// A fault of this program: the ledger contradicts itself.
    #[error("{what}")]
    Internal {
        /// The contradiction.
        what: String,
    },
}

impl LedgerError {
    /// A fault of this program: the ledger contradicts itself.
    pub(crate) fn internal(what: impl Into<String>) -> Self {
        Self::Internal { what: what.into() }
    }
}

/// Reasons why a result does not count.
#[derive(Debug, Error)]
pub enum ResultError {
    /// The lease does not expect it.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The lease only measures.
    #[error("this lease measures a loss; its only result is the report")]
    Measures,
    /// The lease has another result under the same name.
    #[error(
        "this lease has another content or another number of tokens of {item}: a result is uploaded once; \
         check the memory of the worker's machine"
    )]
    OtherContent {
        /// The result.
        item: String,
    },
    /// The result was checked as one of other inner steps.
    #[error("{item} was checked as a result of inner step {found}, but its lease makes it at step {to}")]
    OtherSteps {
        /// The result.
        item: String,
        /// Inner steps of the path for which it was checked.
        found: u64,
        /// Inner steps of the path after which the lease makes it.
        to: u64,
    },
    /// The device of its worker may not train with those whose results count.
    #[error(transparent)]
    OtherNumerics(#[from] OtherNumerics),
    /// The norm is far larger than those of the contributions that count.
    #[error(transparent)]
    OutOfProportion(#[from] OutOfProportion),
}
