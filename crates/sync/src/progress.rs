//! How far a run is: what outlives the coordinator.

use std::collections::BTreeMap;

use dipaco_topology::{PathId, Topology};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{FragmentId, RunPlan, fragment_id};

/// How far a path is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathProgress {
    /// Inner steps taken, up to the end of its last complete lease.
    pub steps: u64,
    /// Whether its final weights have been measured.
    pub measured: bool,
    /// For each of its units how many outer gradients of the path count, in the order of
    /// [`fragment_ids_of`](crate::units_of).
    pub sent: Vec<u32>,
    /// For each of its units the version that the path took over last, in the same order.
    pub adopted: Vec<u32>,
}

/// An outer gradient that counts and waits for the outer step of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contribution {
    /// Whose it is.
    pub path: PathId,
    /// The how manieth it is of this path to this unit, from 1.
    pub number: u32,
    /// The version of the unit that the path had taken over.
    pub base: u32,
    /// Inner steps in it.
    pub steps: u64,
    /// Tokens in it.
    pub tokens: u64,
}

impl Contribution {
    /// What [`Weighting::Tokens`](crate::Weighting::Tokens) weights by: tokens² per inner step.
    #[must_use]
    pub fn amount(&self) -> u64 {
        let tokens = u128::from(self.tokens);
        u64::try_from(tokens * tokens / u128::from(self.steps.max(1))).unwrap_or(u64::MAX)
    }
}

/// How far a run is: the part of [`RunState`](crate::Rounds) that the manifest keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingProgress {
    /// Version of each unit: the outer steps that it has taken.
    pub versions: BTreeMap<FragmentId, u32>,
    /// Progress of each path.
    pub paths: Vec<PathProgress>,
    /// What waits for the outer step of its unit, by path and number.
    pub pending: BTreeMap<FragmentId, Vec<Contribution>>,
}

impl TrainingProgress {
    /// The start of a run whose modules have `fragments` parts each.
    #[must_use]
    pub fn start(topology: &Topology, fragments: u32) -> Self {
        let slots = topology.levels() * fragments as usize;
        let path = PathProgress { sent: vec![0; slots], adopted: vec![0; slots], ..PathProgress::default() };
        Self {
            versions: fragment_id::fragment_ids(topology, fragments).map(|fragment| (fragment, 0)).collect(),
            paths: vec![path; topology.paths() as usize],
            pending: BTreeMap::new(),
        }
    }

    /// Checks that a run of this plan can be as far as this.
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
        for (path, done) in topology.path_ids().zip(&self.paths) {
            for (slot, fragment) in
                fragment_id::fragment_ids_of(topology, fragments, path).into_iter().enumerate()
            {
                let version = self.versions[&fragment];
                let (Some(&sent), Some(&adopted)) = (done.sent.get(slot), done.adopted.get(slot)) else {
                    return Err(ProgressError::Inconsistent { fragment, version, path, sent: 0 });
                };
                let pending = self.pending.get(&fragment).into_iter().flatten().filter(|c| c.path == path);
                let pending: Vec<u32> = pending.map(|contribution| contribution.number).collect();
                let dropped = |&number: &u32| plan.schedule.dropped(path, fragment.index, u64::from(number));
                // What waits is the newest of what was sent, and all of the rest has been merged: when all are waited
                // for, in one outer step each.
                let oldest = if plan.scheme.waits() {
                    (version <= sent).then_some(version + 1)
                } else {
                    Some(pending.first().copied().unwrap_or(sent.saturating_add(1)))
                };
                let waits = oldest.map(|oldest| (oldest..=sent).filter(|number| !dropped(number)));
                if adopted > version || !waits.is_some_and(|waits| waits.eq(pending)) {
                    return Err(ProgressError::Inconsistent { fragment, version, path, sent });
                }
            }
        }
        Ok(())
    }
}

/// Why saved progress can't be continued.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressError {
    /// It belongs to another topology.
    #[error(
        "the saved run has {saved_paths} paths and {saved_fragments} units of synchronisation, the configuration {paths} and {fragments}: continue it with its own configuration"
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
    /// A unit's version and what a path has sent to it do not fit together.
    #[error(
        "unit {fragment} is at version {version}, but path {path} has contributed {sent} times: the manifest is inconsistent; go back to an earlier one"
    )]
    Inconsistent {
        /// The unit at fault.
        fragment: FragmentId,
        /// Its version.
        version: u32,
        /// The path at fault.
        path: PathId,
        /// How often the path has contributed.
        sent: u32,
    },
}
