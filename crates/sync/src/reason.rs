//! Reasons why no lease can be granted now.

use std::fmt;

use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};

use crate::FragmentId;

/// Reasons why no lease can be granted now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// Every path that can continue has a lease.
    AllLeased {
        /// Number of current leases.
        leases: usize,
    },
    /// A fragment waits for contributions before its paths can continue.
    UnitWaits {
        /// The fragment.
        fragment: FragmentId,
        /// True if its module has other fragments.
        cut: bool,
        /// The first paths for which it waits, with the worker of their lease. None if it waits for others of very many.
        paths: Vec<(PathId, Option<String>)>,
    },
    /// The worker has as many leases as a process may have.
    Enough {
        /// Number of leases of the worker.
        leases: usize,
    },
    /// The processes with the worker's token have as many leases as they may have now.
    TokenEnough {
        /// Number of paths on which they have leases.
        leases: usize,
        /// Number of paths on which they may have leases now.
        most: usize,
    },
    /// A path waits for the worker that holds its newest state.
    Held {
        /// The path.
        path: PathId,
        /// The worker.
        worker: String,
    },
    /// The training of a path failed, stood still or was left unfinished again and again for this worker, or for another one
    /// with its token, so the path waits for another worker.
    Failed {
        /// The path.
        path: PathId,
    },
    /// All contributions to a fragment are there; its outer step is in progress.
    OuterStep {
        /// The fragment.
        fragment: FragmentId,
        /// True if its module has other fragments.
        cut: bool,
    },
    /// The lease before this one on the same path is not complete yet.
    Follows {
        /// The path.
        path: PathId,
    },
    /// Every path has taken the last step of its phase, and the next phase has not begun.
    PhaseEnds {
        /// Number of inner steps of each path.
        steps: u64,
    },
}

fn named(f: &mut fmt::Formatter<'_>, fragment: FragmentId, cut: bool) -> fmt::Result {
    if cut {
        write!(f, "fragment {} of module {}", fragment.index, fragment.module)
    } else {
        write!(f, "module {}", fragment.module)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllLeased { leases } => {
                write!(f, "all paths that can run are being trained ({leases} leases)")
            }
            Self::UnitWaits { fragment, cut, paths } => {
                named(f, *fragment, *cut)?;
                if paths.is_empty() {
                    return f.write_str(" waits for some of its paths");
                }
                f.write_str(" waits for ")?;
                for (i, (path, worker)) in paths.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    match worker {
                        Some(worker) => write!(f, "{comma}path {path} (leased to {worker})")?,
                        None => write!(f, "{comma}path {path}")?,
                    }
                }
                Ok(())
            }
            Self::Enough { leases } => {
                write!(f, "the worker has {leases} leases, and a process has at most as many at a time")
            }
            Self::TokenEnough { leases, most } => {
                write!(
                    f,
                    "the workers with this token train {leases} paths, and the run leaves them at most {most} now: \
                     train.token_leases limits them, and each other token whose workers wait gets a path"
                )
            }
            Self::Held { path, worker } => {
                write!(f, "path {path} waits for {worker}, which holds what it was trained to")
            }
            Self::Failed { path } => {
                write!(
                    f,
                    "the training of path {path} failed, stood still or was left unfinished again and again for this \
                     worker or its token, and the path waits for another worker"
                )
            }
            Self::OuterStep { fragment, cut } => {
                named(f, *fragment, *cut)?;
                f.write_str(" is taking its outer step")
            }
            Self::Follows { path } => {
                write!(f, "the lease of path {path} before this one is not complete")
            }
            Self::PhaseEnds { steps } => {
                write!(
                    f,
                    "{steps} inner steps of each path are done, and the documents are being assigned to paths again"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_leaves_a_path_to_others_is_told_everything_that_may_have_happened() {
        let reason = Reason::Failed { path: PathId(3) }.to_string();
        for cause in ["failed", "stood still", "left unfinished again and again"] {
            assert!(reason.contains(cause), "{reason}");
        }
    }
}
