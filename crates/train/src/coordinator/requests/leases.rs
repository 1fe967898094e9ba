//! Answers to questions for work.

use std::time::Duration;

use dipaco_store::ShardRecord;
use dipaco_sync::{
    Fence, FragmentId, Grant, Lease, LeaseError, LeaseTask, RunState, fragment_ids_of, merge_weights,
};
use dipaco_topology::PathId;
use tokio::time::Instant;

use super::{CoordinatorRequests, LONGEST_WAIT};
use crate::TrainError;
use crate::coordinator::ledger::{Ledger, shard_tokens};
use crate::host::{Answer, Peer};
use dipaco_protocol::{CompletedLease, FragmentWeights, GrantedLease, Response, WeightChange};

impl CoordinatorRequests {
    pub(super) async fn lease(
        &self,
        peer: &Peer,
        held: &[PathId],
        wait: Duration,
    ) -> Result<Answer, TrainError> {
        // Of all that are woken only those look closer for which there may be something.
        let worth = |rounds: &RunState| rounds.has_work(&peer.worker) || rounds.finished();
        let ask = |ledger: &mut Ledger, now| Ok(ledger.grant(now, &peer.worker, held));
        self.offer(peer, wait, worth, ask).await
    }

    /// The lease that comes after one that is out, as soon as what it begins with is there.
    pub(super) async fn follow(
        &self,
        peer: &Peer,
        path: PathId,
        fence: Fence,
        wait: Duration,
    ) -> Result<Answer, TrainError> {
        self.offer(peer, wait, |_| true, |ledger, now| ledger.follow(now, path, fence)).await
    }

    /// Keeps a question for work open until `ask` has a lease for it; after a change it is asked again when that is worth
    /// it.
    async fn offer(
        &self,
        peer: &Peer,
        wait: Duration,
        worth: impl Fn(&RunState) -> bool,
        ask: impl Fn(&mut Ledger, Duration) -> Result<Grant, LeaseError>,
    ) -> Result<Answer, TrainError> {
        let deadline = Instant::now() + wait.min(LONGEST_WAIT);
        let mut first = true;
        loop {
            // Registered before the books are read, so that a change in between is not missed.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let last = Instant::now() >= deadline;
            {
                let mut ledger = self.ledger();
                if std::mem::take(&mut first) || last || worth(ledger.rounds()) {
                    match ask(&mut ledger, self.now()) {
                        Ok(Grant::Lease(lease)) => {
                            self.deadlines.notify_one();
                            return self.leased(peer, &ledger, &lease);
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
            // At the deadline it is asked once more, for a reason that holds then.
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    fn leased(&self, peer: &Peer, ledger: &Ledger, lease: &Lease) -> Result<Answer, TrainError> {
        let work = self.work(ledger, lease)?;
        if lease.task == LeaseTask::Train {
            self.progress.leased(lease.from)?;
        }
        let Lease { path, from, to, fence, .. } = lease;
        tracing::debug!(%path, from, to, %fence, worker = peer.worker, "lease");
        if let Some(other) = &lease.hands_over {
            tracing::info!(%path, from = peer.worker, to = other, "the path changes hands");
        }
        Ok((Response::Lease(Box::new(work)), None))
    }

    fn work(&self, ledger: &Ledger, lease: &Lease) -> Result<GrantedLease, TrainError> {
        let training = ledger.training()?;
        let lacks = |what: String| TrainError::ManifestLacks { what };
        let path = training.path(lease.path).ok_or_else(|| lacks(format!("path {}", lease.path)))?;
        let fragments = fragment_ids_of(&self.intake.topology, self.intake.plan.sync.fragments, lease.path);
        let shards = shard_tokens(training);
        let shares = fragments.iter().map(|&fragment| self.share(&shards, fragment, lease.path));
        let shares = shares.collect::<Result<Vec<_>, _>>()?;
        let owners = self.owners();
        let weights = |versions: &[u32], received: &[bool], with_changes: bool| {
            let of = |(((&fragment, &share), &version), &received): (((&FragmentId, &f32), &u32), &bool)| {
                let record = training.fragment(fragment.module, fragment.index);
                let object = record.and_then(|record| record.weights_at(version));
                let object = object.ok_or_else(|| lacks(format!("version {version} of {fragment}")))?.clone();
                let changes = record.into_iter().flat_map(|record| &record.changes);
                let changes = changes
                    .filter(|change| with_changes && change.version <= version)
                    .map(|change| WeightChange { from: change.from.clone(), object: change.object.clone() })
                    .collect();
                let at = owners.address(fragment.module).map(str::to_owned);
                Ok::<_, TrainError>(FragmentWeights { fragment, object, changes, received, share, at })
            };
            fragments.iter().zip(&shares).zip(versions).zip(received).map(of).collect::<Result<Vec<_>, _>>()
        };
        let mut tail = Vec::with_capacity(path.replay.len());
        for stretch in &path.replay {
            tail.push(CompletedLease {
                from: stretch.from,
                to: stretch.to,
                weights: weights(&stretch.versions, &stretch.received, false)?,
                sends: ledger.rounds().sends(lease.path, stretch.from, stretch.to),
            });
        }
        let now = ledger.stretch(lease)?;
        Ok(GrantedLease {
            path: lease.path,
            fence: lease.fence,
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            from: lease.from,
            to: lease.to,
            phase_step: training.phase_begin_step(),
            weights: weights(&now.versions, &now.received, true)?,
            sends: lease.sends.clone(),
            state: path.state.clone(),
            tail,
            made_by: path.fence.map(Fence),
            uploads_state: ledger.needs_state(lease)?,
            shard: self.shard(ledger, lease.path)?.clone(),
        })
    }

    /// A path's factor in the merged outer gradient of a unit: its weight times what the mean is rescaled by.
    fn share(&self, shards: &[u64], fragment: FragmentId, path: PathId) -> Result<f32, TrainError> {
        let tokens = |path: PathId| (path, shards.get(path.index()).copied().unwrap_or(0));
        let sizes: Vec<_> = self.intake.topology.paths_through(fragment.module).map(tokens).collect();
        let weights = merge_weights(self.intake.plan.outer.weighting, &sizes)?;
        let own = weights.iter().find(|(other, _)| *other == path).map_or(0.0, |&(_, weight)| weight);
        Ok(own * self.intake.plan.outer.rescale.factor(sizes.len()))
    }

    pub(super) fn shard<'a>(&self, ledger: &'a Ledger, path: PathId) -> Result<&'a ShardRecord, TrainError> {
        let shards = &ledger.training()?.shards;
        shards
            .get(path.index())
            .ok_or_else(|| TrainError::ManifestLacks { what: format!("the shard of path {path}") })
    }
}
