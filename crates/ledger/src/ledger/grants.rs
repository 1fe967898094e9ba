//! Granted leases with the names of their inputs.

use std::time::Duration;

use dipaco_sync::{Fence, FragmentId, Lease, merge_weights};
use dipaco_topology::PathId;

use super::Ledger;
use crate::{
    ChangeRecord, CompletedLease, CompletedLeaseRecord, FragmentWeights, GrantedLease, LedgerError,
    WeightChange,
};

/// The fragments of a path, level by level.
struct LeaseFragments<'a> {
    ledger: &'a Ledger,
    ids: Vec<FragmentId>,
    /// The path's factor in the merged outer gradient of each fragment.
    shares: Vec<f32>,
}

impl LeaseFragments<'_> {
    /// The global weights of a lease. `with_changes` adds the changes that lead to them.
    fn weights(
        &self,
        lease: &CompletedLeaseRecord,
        with_changes: bool,
    ) -> Result<Vec<FragmentWeights>, LedgerError> {
        let Self { ledger, ids, shares } = self;
        let mut all = Vec::with_capacity(ids.len());
        let versions = lease.versions.iter().zip(&lease.received);
        for ((&fragment, &share), (&version, &received)) in ids.iter().zip(shares).zip(versions) {
            let objects = ledger.objects.fragment(fragment)?;
            let newest = ledger.state.progress().versions.get(&fragment).copied().unwrap_or(0);
            let object = objects.weights_at(version, newest).cloned();
            let lacks = || LedgerError::Lacks { what: format!("version {version} of {fragment}") };
            let changes = objects.changes.iter();
            let changes = changes.filter(|change| with_changes && change.version <= version);
            let change = |change: &ChangeRecord| WeightChange {
                from: change.from.clone(),
                object: change.object.clone(),
            };
            all.push(FragmentWeights {
                fragment,
                object: object.ok_or_else(lacks)?,
                changes: changes.map(change).collect(),
                received,
                share,
                at: ledger.owners.address(fragment.module).map(str::to_owned),
            });
        }
        Ok(all)
    }
}

impl Ledger {
    /// A lease with everything that its worker needs.
    ///
    /// # Errors
    /// When the ledger lacks an input of the lease.
    pub fn granted_lease(&self, lease: &Lease) -> Result<GrantedLease, LedgerError> {
        let path = self.objects.path(lease.path)?;
        let fragments = self.lease_fragments(lease.path)?;
        let mut replay = Vec::with_capacity(path.replay.len());
        for completed in &path.replay {
            replay.push(CompletedLease {
                from: completed.from,
                to: completed.to,
                // Without changes: a worker that replays a lease fetches its weights whole.
                weights: fragments.weights(completed, false)?,
                sends: self.state.sends(lease.path, completed.from, completed.to),
            });
        }
        let record = self.completed_lease_record(lease)?;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Ok(GrantedLease {
            path: lease.path,
            fence: lease.fence,
            secret: lease.secret,
            lease_ms: millis(self.plan.limits.silence),
            from: lease.from,
            to: lease.to,
            phase_step: self.phase_begin_step(),
            weights: fragments.weights(&record, true)?,
            sends: lease.sends.clone(),
            state: path.state.clone(),
            replay,
            made_by: path.fence.map(Fence),
            uploads_state: self.needs_state(lease)?,
            shard: self.shard(lease.path)?.clone(),
        })
    }

    /// The fragments of a path for the message of a lease.
    fn lease_fragments(&self, path: PathId) -> Result<LeaseFragments<'_>, LedgerError> {
        let ids = self.fragment_ids_of(path);
        let lacks = || LedgerError::Lacks { what: format!("the shares of path {path}") };
        let of_levels = self.shares.get(path.index()).ok_or_else(lacks)?;
        let share = |fragment: &FragmentId| of_levels.get(usize::from(fragment.module.level)).copied();
        let shares = ids.iter().map(share).collect::<Option<_>>().ok_or_else(lacks)?;
        Ok(LeaseFragments { ledger: self, ids, shares })
    }

    /// Computes each path's factor in the merged outer gradients of its modules, from the shards of the current phase: its
    /// weight in the mean times the rescaling factor. No lease then has to look at the other paths of its modules.
    pub(super) fn begin_shares(&mut self) -> Result<(), LedgerError> {
        let (tokens, topology) = (self.objects.shard_tokens(), self.state.topology());
        let size = |path: PathId| (path, tokens.get(path.index()).copied().unwrap_or(0));
        let mut shares = vec![vec![0.0; topology.levels()]; topology.paths() as usize];
        for module in topology.module_ids() {
            let sizes: Vec<_> = topology.paths_through(module).map(size).collect();
            if sizes.is_empty() {
                // A listed topology may have modules without a path.
                continue;
            }
            let factor = self.plan.rescale.factor(sizes.len());
            for (path, weight) in merge_weights(self.plan.weighting, &sizes)? {
                let of_levels = shares.get_mut(path.index());
                if let Some(share) = of_levels.and_then(|levels| levels.get_mut(usize::from(module.level))) {
                    *share = weight * factor;
                }
            }
        }
        self.shares = shares;
        Ok(())
    }
}
