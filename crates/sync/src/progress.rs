//! Progress of a run, as the manifest records it.

use std::collections::{BTreeMap, BTreeSet};

use dipaco_topology::{PathId, Topology};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{FragmentId, RunPlan, SharedMap, fragment_id};

/// Progress of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathProgress {
    /// Number of inner steps, up to the end of the path's last completed lease.
    pub steps: u64,
    /// True if the path's final weights are measured.
    pub measured: bool,
    /// Number of accepted outer gradients of the path per fragment, in the order of
    /// [`fragment_ids_of`](crate::fragment_ids_of).
    pub sent: Vec<u32>,
    /// Version that the path took over last, per fragment in the same order.
    pub adopted: Vec<u32>,
}

/// An accepted outer gradient that waits for the outer step of its fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contribution {
    /// The path that contributes.
    pub path: PathId,
    /// Sequence number of the path's contributions to the fragment, from 1.
    pub number: u32,
    /// Version of the fragment from which the path trained.
    pub base: u32,
    /// Number of inner steps.
    pub steps: u64,
    /// Number of tokens.
    pub tokens: u64,
}

impl Contribution {
    /// The amount for [`Weighting::Tokens`](crate::Weighting::Tokens): tokens² per inner step.
    #[must_use]
    pub fn amount(&self) -> u64 {
        let tokens = u128::from(self.tokens);
        u64::try_from(tokens * tokens / u128::from(self.steps.max(1))).unwrap_or(u64::MAX)
    }
}

/// Progress of a run: the part of [`RunState`](crate::RunState) that the manifest records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingProgress {
    /// Version of each fragment: the number of its outer steps.
    pub versions: SharedMap<FragmentId, u32>,
    /// Progress of each path.
    pub paths: SharedMap<PathId, PathProgress>,
    /// Contributions that wait for the outer step of their fragment, by path and sequence number.
    pub pending: BTreeMap<FragmentId, Vec<Contribution>>,
    /// Paths in quarantine: nobody trains them any more. Their steps go on without contributions.
    pub quarantined: BTreeSet<PathId>,
}

impl TrainingProgress {
    /// The start of a run with `fragments` fragments per module.
    #[must_use]
    pub fn start(topology: &Topology, fragments: u32) -> Self {
        let slots = topology.levels() * fragments as usize;
        let path = PathProgress { sent: vec![0; slots], adopted: vec![0; slots], ..PathProgress::default() };
        Self {
            versions: fragment_id::fragment_ids(topology, fragments).map(|fragment| (fragment, 0)).collect(),
            paths: topology.path_ids().map(|id| (id, path.clone())).collect(),
            pending: BTreeMap::new(),
            quarantined: BTreeSet::new(),
        }
    }

    /// Checks that a run of this plan can reach this progress.
    ///
    /// # Errors
    /// When the progress belongs to another topology or contradicts itself.
    pub fn check(&self, topology: &Topology, plan: &RunPlan) -> Result<(), ProgressError> {
        let fragments = plan.schedule.fragments();
        let expected = Self::start(topology, fragments);
        if self.paths.len() != expected.paths.len() || !self.versions.keys().eq(expected.versions.keys()) {
            return Err(ProgressError::Topology {
                saved_paths: self.paths.len(),
                saved_fragments: self.versions.len(),
                paths: expected.paths.len(),
                fragments: expected.versions.len(),
            });
        }
        for (&path, done) in self.paths.iter() {
            for (slot, fragment) in
                fragment_id::fragment_ids_of(topology, fragments, path).into_iter().enumerate()
            {
                let version = self.versions[&fragment];
                let (Some(&sent), Some(&adopted)) = (done.sent.get(slot), done.adopted.get(slot)) else {
                    return Err(ProgressError::Inconsistent { fragment, version, path, sent: 0 });
                };
                let pending = self.pending.get(&fragment).into_iter().flatten().filter(|c| c.path == path);
                let pending: Vec<u32> = pending.map(|contribution| contribution.number).collect();
                let absent = |&number: &u32| plan.schedule.absent(path, fragment.index, u64::from(number));
                // Pending contributions are the newest ones; all others are merged. In a synchronous run each outer
                // step merges one contribution per path, so the version tells how many are merged.
                let oldest = if plan.scheme.waits() {
                    (version <= sent).then_some(version + 1)
                } else {
                    Some(pending.first().copied().unwrap_or(sent.saturating_add(1)))
                };
                let quarantined = self.quarantined.contains(&path);
                let consistent = oldest.is_some_and(|oldest| {
                    // A path in quarantine contributes only what it sent before.
                    let waits = |number: &u32| !absent(number) && (!quarantined || pending.contains(number));
                    (oldest..=sent).filter(waits).eq(pending.iter().copied())
                });
                if adopted > version || !consistent {
                    return Err(ProgressError::Inconsistent { fragment, version, path, sent });
                }
            }
        }
        Ok(())
    }
}

/// Saved progress that cannot be continued.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressError {
    /// The progress belongs to another topology.
    #[error(
        "the saved run has {saved_paths} paths and {saved_fragments} fragments, the configuration {paths} and {fragments}: continue it with its own configuration"
    )]
    Topology {
        /// Paths of the saved run.
        saved_paths: usize,
        /// Fragments of modules of the saved run.
        saved_fragments: usize,
        /// Paths of the configuration.
        paths: usize,
        /// Fragments of modules of the configuration.
        fragments: usize,
    },
    /// A fragment's version contradicts the contributions of a path.
    #[error(
        "fragment {fragment} is at version {version}, but path {path} has contributed {sent} times: the manifest is inconsistent; go back to an earlier one"
    )]
    Inconsistent {
        /// The fragment at fault.
        fragment: FragmentId,
        /// Its version.
        version: u32,
        /// The path at fault.
        path: PathId,
        /// Number of contributions of the path.
        sent: u32,
    },
}
