//! Answers to requests for leases.

use std::time::Duration;

use dipaco_store::{ChangeRecord, CompletedLeaseRecord, ShardRecord, TrainingRecord};
use dipaco_sync::{
    Fence, FragmentId, Grant, Lease, LeaseError, LeaseKey, LeaseRequest, LeaseSecret, LeaseTask, RunState,
    fragment_ids_of, merge_weights,
};
use dipaco_topology::PathId;
use tokio::time::Instant;

use super::{CoordinatorRequests, LONGEST_WAIT};
use crate::coordinator::error::CoordinatorError;
use crate::coordinator::ledger::{Ledger, shard_tokens};
use crate::coordinator::owners::ModuleOwners;
use crate::host::{Answer, Peer, refused};
use dipaco_protocol::{CompletedLease, FragmentWeights, GrantedLease, Response, WeightChange};

/// The fragments of a path, level by level.
struct LeaseFragments<'a> {
    ids: Vec<FragmentId>,
    /// The path's factor in the merged outer gradient of each fragment.
    shares: Vec<f32>,
    training: &'a TrainingRecord,
    owners: &'a ModuleOwners,
}

impl LeaseFragments<'_> {
    /// The global weights of a lease. `with_changes` adds the changes that lead to them.
    fn weights(
        &self,
        lease: &CompletedLeaseRecord,
        with_changes: bool,
    ) -> Result<Vec<FragmentWeights>, CoordinatorError> {
        let mut all = Vec::with_capacity(self.ids.len());
        let versions = lease.versions.iter().zip(&lease.received);
        for ((&fragment, &share), (&version, &received)) in self.ids.iter().zip(&self.shares).zip(versions) {
            let record = self.training.fragment(fragment.module, fragment.index);
            let object = record.and_then(|record| record.weights_at(version)).cloned();
            let lacks =
                || CoordinatorError::ManifestLacks { what: format!("version {version} of {fragment}") };
            let changes = record.into_iter().flat_map(|record| &record.changes);
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
                at: self.owners.address(fragment.module).map(str::to_owned),
            });
        }
        Ok(all)
    }
}

/// A secret that nobody can guess, from the system's random numbers.
fn lease_secret() -> LeaseSecret {
    LeaseSecret::new(rand::random())
}

impl CoordinatorRequests {
    /// Offers a lease to a worker that holds the states of the paths `held`.
    pub(super) async fn lease(
        &self,
        peer: &Peer,
        held: &[PathId],
        wait: Duration,
    ) -> Result<Answer, CoordinatorError> {
        let paths = self.intake.topology.paths();
        if held.len() > paths as usize || held.iter().any(|path| path.0 >= paths) {
            return Ok(refused(format!("this run has {paths} paths: the request names others, or more")));
        }
        let worker = peer.process();
        // A change wakes every waiting worker. Only workers with a possible lease go through the full decision.
        let worth = |state: &RunState| state.has_work(&worker) || state.finished();
        let secret = lease_secret();
        let ask =
            |ledger: &mut Ledger, now| Ok(ledger.grant(now, &LeaseRequest { worker: &worker, held, secret }));
        self.offer(peer, wait, worth, ask).await
    }

    /// Offers the lease that follows a lease that is out, as soon as its weights are there.
    pub(super) async fn follow(
        &self,
        peer: &Peer,
        lease: LeaseKey,
        wait: Duration,
    ) -> Result<Answer, CoordinatorError> {
        let (claim, secret) = (peer.claim(lease), lease_secret());
        self.offer(peer, wait, |_| true, |ledger, now| ledger.follow(now, &claim, secret)).await
    }

    /// Keeps a request open until `ask` grants a lease. After a change `ask` is called again if `worth` is true.
    async fn offer(
        &self,
        peer: &Peer,
        wait: Duration,
        worth: impl Fn(&RunState) -> bool,
        ask: impl Fn(&mut Ledger, Duration) -> Result<Grant, LeaseError>,
    ) -> Result<Answer, CoordinatorError> {
        let deadline = Instant::now() + wait.min(LONGEST_WAIT);
        let mut first = true;
        loop {
            // Registered before the ledger is read, so that no change in between is missed.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let last = Instant::now() >= deadline;
            {
                let mut ledger = self.ledger();
                if std::mem::take(&mut first) || last || worth(ledger.state()) {
                    match ask(&mut ledger, self.now()) {
                        Ok(Grant::Lease(lease)) => {
                            self.deadlines.notify_one();
                            return self.grant_answer(peer, &ledger, &lease);
                        }
                        Ok(Grant::Finished) => return Ok((Response::Finished, None)),
                        Ok(Grant::Wait(reason)) if last => {
                            return Ok((Response::Wait { reason: reason.to_string() }, None));
                        }
                        Ok(Grant::Wait(_)) => {}
                        Err(error) => return Ok((Response::Lost { reason: error.to_string() }, None)),
                    }
                }
            }
            // At the deadline `ask` is called once more, for the reason that holds then.
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// The answer with a granted lease.
    fn grant_answer(&self, peer: &Peer, ledger: &Ledger, lease: &Lease) -> Result<Answer, CoordinatorError> {
        let granted = self.granted_lease(ledger, lease)?;
        if lease.task == LeaseTask::Train {
            self.progress.leased(lease.from)?;
        }
        let Lease { path, from, to, fence, .. } = lease;
        tracing::debug!(%path, from, to, %fence, worker = peer.worker, "lease");
        if let Some(other) = &lease.hands_over {
            tracing::info!(%path, from = peer.worker, to = other.name, "the path changes hands");
        }
        Ok((Response::Lease(Box::new(granted)), None))
    }

    /// A lease with everything that its worker needs.
    fn granted_lease(&self, ledger: &Ledger, lease: &Lease) -> Result<GrantedLease, CoordinatorError> {
        let training = ledger.training()?;
        let lacks = || CoordinatorError::ManifestLacks { what: format!("path {}", lease.path) };
        let path = training.path(lease.path).ok_or_else(lacks)?;
        let owners = self.owners();
        let fragments = self.lease_fragments(training, &owners, lease.path)?;
        let mut replay = Vec::with_capacity(path.replay.len());
        for completed in &path.replay {
            replay.push(CompletedLease {
                from: completed.from,
                to: completed.to,
                // Without changes: a worker that replays a lease fetches its weights whole.
                weights: fragments.weights(completed, false)?,
                sends: ledger.state().sends(lease.path, completed.from, completed.to),
            });
        }
        let record = ledger.completed_lease_record(lease)?;
        Ok(GrantedLease {
            path: lease.path,
            fence: lease.fence,
            secret: lease.secret,
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            from: lease.from,
            to: lease.to,
            phase_step: training.phase_begin_step(),
            weights: fragments.weights(&record, true)?,
            sends: lease.sends.clone(),
            state: path.state.clone(),
            replay,
            made_by: path.fence.map(Fence),
            uploads_state: ledger.needs_state(lease)?,
            shard: self.shard(ledger, lease.path)?.clone(),
        })
    }

    /// The fragments of a path for the message of a lease.
    fn lease_fragments<'a>(
        &self,
        training: &'a TrainingRecord,
        owners: &'a ModuleOwners,
        path: PathId,
    ) -> Result<LeaseFragments<'a>, CoordinatorError> {
        let ids = fragment_ids_of(&self.intake.topology, self.intake.plan.sync.fragments, path);
        let tokens = shard_tokens(training);
        let shares = ids.iter().map(|&fragment| self.share(&tokens, fragment, path));
        let shares = shares.collect::<Result<_, _>>()?;
        Ok(LeaseFragments { ids, shares, training, owners })
    }

    /// A path's factor in the merged outer gradient of a fragment: its weight in the mean times the rescaling factor.
    fn share(
        &self,
        shard_tokens: &[u64],
        fragment: FragmentId,
        path: PathId,
    ) -> Result<f32, CoordinatorError> {
        let tokens = |path: PathId| (path, shard_tokens.get(path.index()).copied().unwrap_or(0));
        let sizes: Vec<_> = self.intake.topology.paths_through(fragment.module).map(tokens).collect();
        let weights = merge_weights(self.intake.plan.outer.weighting, &sizes)?;
        let own = weights.iter().find(|(other, _)| *other == path).map_or(0.0, |&(_, weight)| weight);
        Ok(own * self.intake.plan.outer.rescale.factor(sizes.len()))
    }

    /// The shard of a path in this phase.
    pub(super) fn shard<'a>(
        &self,
        ledger: &'a Ledger,
        path: PathId,
    ) -> Result<&'a ShardRecord, CoordinatorError> {
        let shards = &ledger.training()?.shards;
        shards
            .get(path.index())
            .ok_or_else(|| CoordinatorError::ManifestLacks { what: format!("the shard of path {path}") })
    }
}
