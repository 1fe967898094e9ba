//! The phases of routing.

use dipaco_sync::FragmentId;
use dipaco_topology::Topology;

use super::Ledger;
use crate::{LedgerError, ShardRecord};

/// The end of a phase of routing that another phase follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseBoundary {
    /// The phase that begins.
    pub phase: u32,
    /// Rounds that every path has completed.
    pub round: u32,
}

impl Ledger {
    /// The boundary between two phases if the run has arrived at one.
    #[must_use]
    pub fn boundary(&self) -> Option<PhaseBoundary> {
        let phase = u32::try_from(self.state.phase()).unwrap_or(u32::MAX).saturating_add(1);
        self.state.at_boundary().then(|| PhaseBoundary { phase, round: self.phase_end() })
    }

    /// End of the current phase in rounds: the next boundary, or the end of the run.
    fn phase_end(&self) -> u32 {
        self.objects.boundaries.get(self.state.phase()).copied().unwrap_or(self.objects.rounds)
    }

    /// Inner steps of a path at the start of the current phase.
    pub(super) fn phase_begin_step(&self) -> u64 {
        let before = self.state.phase().checked_sub(1).and_then(|index| self.objects.boundaries.get(index));
        u64::from(before.copied().unwrap_or(0)) * self.objects.inner_steps
    }

    /// Begins the next phase with these shards. Paths keep their states. Their early-stopping bests were measured on other
    /// documents, so they are dropped with the versions that only they needed.
    ///
    /// # Errors
    /// When the run is not at a boundary, or the shards do not fit its paths.
    pub fn begin_phase(&mut self, shards: Vec<ShardRecord>) -> Result<(), LedgerError> {
        if self.closed {
            return Err(LedgerError::Closed);
        }
        check_shards(self.state.topology(), &shards)?;
        if !self.state.at_boundary() {
            return Err(LedgerError::NotAtBoundary { round: self.phase_end() });
        }
        self.objects.shards = shards.into();
        for path in self.state.topology().path_ids() {
            let objects = self.objects.path_mut(path)?;
            (objects.best, objects.last) = (None, None);
            self.note_recorded(path)?;
        }
        self.begin_shares()?;
        if let Some(seed) = self.plan.sampling {
            self.state.sample_shards(seed, self.objects.shard_tokens());
        }
        let fragments: Vec<FragmentId> = self.state.progress().versions.keys().copied().collect();
        let mut obsolete = Vec::new();
        for fragment in fragments {
            obsolete.extend(self.prune(fragment)?);
        }
        self.state.go_on(self.state.phase() + 1);
        self.state.pass_over_idle();
        self.note_change(obsolete);
        Ok(())
    }
}

/// Checks that every path has a shard, and every path that trains one with at least one document.
///
/// # Errors
/// [`LedgerError::ShardCount`] or [`LedgerError::EmptyShard`].
pub fn check_shards(topology: &Topology, shards: &[ShardRecord]) -> Result<(), LedgerError> {
    if shards.len() != topology.paths() as usize {
        return Err(LedgerError::ShardCount { shards: shards.len(), paths: topology.paths() });
    }
    match topology.trained_paths().find(|path| shards[path.index()].documents == 0) {
        Some(path) => Err(LedgerError::EmptyShard { path }),
        None => Ok(()),
    }
}
