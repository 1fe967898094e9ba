//! Contributions and completed leases, each counted at most once.

use std::collections::BTreeMap;
use std::time::Duration;

use dipaco_topology::PathId;

use super::{Commit, EarlyContribution, ExpectedSend, LeaseOutcome, RunState};
use crate::{Contribution, FragmentId, Lease, LeaseClaim, LeaseError, LeaseTask, ScheduledSend};

impl RunState {
    /// The send of the current lease to which an outer gradient belongs.
    ///
    /// # Errors
    /// When the lease is not current, expects no such outer gradient, or trains fewer tokens for it.
    pub fn expects(
        &self,
        claim: &LeaseClaim,
        fragment: FragmentId,
        number: u32,
        tokens: u64,
    ) -> Result<ExpectedSend, LeaseError> {
        let lease = self.check(claim)?;
        let (path, fence) = (lease.path, lease.fence);
        let send = lease.sends.iter().find(|send| (send.fragment, send.number) == (fragment, number));
        let send = *send.ok_or(LeaseError::NotAsked { path, fence, fragment, number })?;
        let steps = self.steps_of(lease, send);
        let most = steps.saturating_mul(self.plan.limits.step_tokens);
        if tokens > most {
            return Err(LeaseError::Tokens { path, fence, fragment, number, tokens, most });
        }
        Ok(ExpectedSend { path, fence, send, steps, tokens })
    }

    /// Inner steps in an outer gradient.
    fn steps_of(&self, lease: &Lease, send: ScheduledSend) -> u64 {
        if self.plan.scheme.dynamic_steps() {
            send.step - lease.from
        } else {
            self.plan.schedule.steps_in(lease.path, send.fragment.index, send.step)
        }
    }

    /// Accepts an outer gradient that a lease sends. Before the end of the lease it counts at once, so that other paths
    /// need not wait for the end; the caller makes it durable before it answers. It counts even if the lease is lost
    /// later: the successor uploads the same bits again, and they are a duplicate. Returns the accepted contribution,
    /// or `None` for an outer gradient of the lease's end, which counts with the lease.
    ///
    /// The lease may have ended since [`RunState::expects`]. Nothing else of it can have changed: no two leases have the
    /// same fencing number, and a lease keeps its worker, its secret and its sends.
    pub fn contribute(&mut self, expected: &ExpectedSend) -> Commit<Option<EarlyContribution>> {
        let ExpectedSend { path, fence, send, steps, tokens } = *expected;
        let lease = match self.current(path, fence) {
            Ok(lease) => lease.clone(),
            Err(error) => return Commit::Refused(error),
        };
        if send.step == lease.to {
            return Commit::Accepted(None);
        }
        match self.count(&lease, send, steps, tokens) {
            Commit::Accepted(contribution) => {
                Commit::Accepted(Some(EarlyContribution { contribution, to: lease.to }))
            }
            Commit::Duplicate => Commit::Duplicate,
            Commit::Refused(error) => Commit::Refused(error),
        }
    }

    /// Counts a send of `steps` inner steps with `tokens` tokens.
    fn count(&mut self, lease: &Lease, send: ScheduledSend, steps: u64, tokens: u64) -> Commit<Contribution> {
        let Lease { path, fence, .. } = *lease;
        let slot = self.slot(send.fragment);
        let sent = self.path(path).sent[slot];
        if send.number <= sent {
            return Commit::Duplicate;
        }
        let schedule = &self.plan.schedule;
        // No step waits for a dropped outer gradient, or for that of a path that rests.
        let absent = |&number: &u32| schedule.absent(path, send.fragment.index, u64::from(number));
        if let Some(number) = (sent + 1..send.number).find(|number| !absent(number)) {
            return Commit::Refused(LeaseError::Owes { path, fence, fragment: send.fragment, number });
        }
        let received = lease.receives.iter().find(|receive| receive.fragment == send.fragment);
        let base = received.map_or(self.path(path).adopted[slot], |receive| receive.version);
        let contribution = Contribution { path, number: send.number, base, steps, tokens };
        self.set_sent(path, send.fragment, send.number);
        let pending = self.progress.pending.entry(send.fragment).or_default();
        let place = pending.partition_point(|other| *other < contribution);
        pending.insert(place, contribution);
        self.quorums.changes(send.fragment);
        Commit::Accepted(contribution)
    }

    /// Accepts a finished lease with the outer gradients of its end. The caller makes them durable before it answers.
    /// Returns the accepted contributions by fragment, without those that a lost lease of the path contributed before.
    pub fn commit(
        &mut self,
        now: Duration,
        claim: &LeaseClaim,
        done: &LeaseOutcome,
    ) -> Commit<BTreeMap<FragmentId, Contribution>> {
        let path = claim.key.path;
        let committed = self.committed.get(&path).is_some_and(|committed| claim.matches(committed));
        let lease = match self.check(claim) {
            Ok(lease) => lease.clone(),
            Err(_) if committed => return Commit::Duplicate,
            Err(error) => return Commit::Refused(error),
        };
        let fence = lease.fence;
        // The outer gradients of the end count with this call. Without an earlier one the path's numbers would have a gap.
        let early = lease.sends.iter().filter(|send| send.step < lease.to);
        for send in early {
            if self.path(path).sent[self.slot(send.fragment)] < send.number {
                let (fragment, number) = (send.fragment, send.number);
                return Commit::Refused(LeaseError::Owes { path, fence, fragment, number });
            }
        }
        let mut accepted = BTreeMap::new();
        for &send in lease.sends.iter().filter(|send| send.step == lease.to) {
            let (steps, tokens) = (self.steps_of(&lease, send), done.tokens.get(&send.fragment).copied());
            match self.count(&lease, send, steps, tokens.unwrap_or(0)) {
                Commit::Accepted(contribution) => {
                    accepted.insert(send.fragment, contribution);
                }
                Commit::Duplicate => {}
                Commit::Refused(error) => return Commit::Refused(error),
            }
        }
        let slots: Vec<_> = lease.receives.iter().map(|r| (self.slot(r.fragment), r.version)).collect();
        // Dropped outer gradients at the end of the lease.
        self.raise_sent(path, self.scheduled(path, lease.to, lease.task));
        let progress = &mut self.progress.paths[&path];
        for (slot, version) in slots {
            progress.adopted[slot] = version;
        }
        if lease.to > lease.from && done.seconds.is_finite() && done.seconds > 0.0 {
            let steps = (lease.to - lease.from) as f64;
            // A worker may state any number. Its training may have begun before the lease was current.
            let most = now.saturating_sub(lease.since).saturating_add(self.plan.limits.silence);
            let seconds = done.seconds.min(most.as_secs_f64());
            self.grace.inner_step(path, seconds / steps);
            if self.holders.knows(&lease.worker) {
                self.speeds.note(&lease.worker, steps / seconds);
            }
        }
        if self.leases.complete(path, now, now.saturating_add(self.plan.limits.standstill)) {
            self.followed.insert(path, claim.clone());
        }
        self.committed.insert(path, claim.clone());
        self.holders.trained(&lease.worker, path);
        if lease.task == LeaseTask::Train {
            self.troubles.forget(path);
            self.troubles.contributes(&lease.worker.token);
        }
        self.move_on(path, lease.to, lease.task == LeaseTask::Measure);
        Commit::Accepted(accepted)
    }

    /// Number of sends and drops of each fragment of a path up to the end of a lease at step `to`.
    pub(super) fn scheduled(&self, path: PathId, to: u64, task: LeaseTask) -> Vec<u32> {
        if self.plan.scheme.dynamic_steps() || task == LeaseTask::Measure {
            return Vec::new();
        }
        let fragments = self.fragment_ids_of(path).into_iter();
        fragments.map(|fragment| self.sent_through(fragment, to)).collect()
    }
}
