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
        let tokens = self.objects.shard_tokens();
        let shares = ids.iter().map(|&fragment| self.share(&tokens, fragment, path));
        let shares = shares.collect::<Result<_, _>>()?;
        Ok(LeaseFragments { ledger: self, ids, shares })
    }

    /// A path's factor in the merged outer gradient of a fragment: its weight in the mean times the rescaling factor.
    fn share(&self, shard_tokens: &[u64], fragment: FragmentId, path: PathId) -> Result<f32, LedgerError> {
        let tokens = |path: PathId| (path, shard_tokens.get(path.index()).copied().unwrap_or(0));
        let sizes: Vec<_> = self.state.topology().paths_through(fragment.module).map(tokens).collect();
        let weights = merge_weights(self.plan.weighting, &sizes)?;
        let own = weights.iter().find(|(other, _)| *other == path).map_or(0.0, |&(_, weight)| weight);
        Ok(own * self.plan.rescale.factor(sizes.len()))
    }
}
