//! Finished leases in the ledger.

use std::collections::BTreeMap;
use std::time::Duration;

use dipaco_sync::{
    Commit, Contribution, FragmentId, Lease, LeaseClaim, LeaseError, LeaseKey, LeaseOutcome, LeaseTask,
};

use super::Ledger;
use super::results::{Contributor, ReceivedResult};
use crate::{
    CompletedLeaseRecord, EarlyStoppingBest, LeaseReport, LeaseResult, LedgerError, OtherNumerics,
    possible_loss,
};

/// Number of weights that the leases since a path's last state may refer to. Every lease of the path lists them all for
/// a worker that must replay them, so this bounds its message.
const MAX_REPLAY_WEIGHTS: usize = 2_000;

/// The answer to a finished lease.
#[derive(Debug)]
pub enum LeaseCompletion {
    /// The lease counts.
    Accepted {
        /// The completed lease.
        lease: Box<Lease>,
        /// True if it began with the best weights of the path so far.
        best: bool,
    },
    /// The lease has been accepted before.
    Duplicate,
    /// The lease does not count.
    Lost(LeaseError),
    /// The lease does not count, because the coordinator stops.
    Closed,
    /// A result of the lease is missing.
    Incomplete(String),
    /// The lease does not count, because its worker's device may not train with those whose results count.
    OtherNumerics(OtherNumerics),
}

impl Ledger {
    /// Records a finished lease. Everything that can refuse it comes before the commit, because a commit can't be undone.
    ///
    /// # Errors
    /// When the ledger contradicts itself.
    pub fn complete_lease(
        &mut self,
        now: Duration,
        claim: &LeaseClaim,
        report: &LeaseReport,
    ) -> Result<LeaseCompletion, LedgerError> {
        if self.closed {
            return Ok(LeaseCompletion::Closed);
        }
        let LeaseKey { path, fence, .. } = claim.key;
        // Cloned, because the core forgets the lease when it commits.
        let lease = self.state.check(claim).ok().cloned();
        if let Some(lease) = &lease
            && let Err(other) = self.check_numerics(&lease.numerics)
        {
            return Ok(LeaseCompletion::OtherNumerics(other));
        }
        // Checked before the commit, which can't be taken back. The worker still has the lease and uploads the rest.
        if let Some(lease) = lease.as_ref().filter(|lease| lease.task == LeaseTask::Train)
            && let Some(missing) = self.missing_result(lease)?
        {
            return Ok(LeaseCompletion::Incomplete(missing.name()));
        }
        let tokens = self.received.get(&(path, fence)).into_iter().flatten().filter_map(|(item, result)| {
            let LeaseResult::OuterGradient { fragment, .. } = item else { return None };
            Some((*fragment, result.tokens))
        });
        let outcome = LeaseOutcome { seconds: report.seconds, tokens: tokens.collect() };
        let contributions = match self.state.commit(now, claim, &outcome) {
            Commit::Duplicate => return Ok(LeaseCompletion::Duplicate),
            Commit::Refused(error @ LeaseError::Owes { .. }) => {
                return Ok(LeaseCompletion::Incomplete(error.to_string()));
            }
            Commit::Refused(error) => return Ok(LeaseCompletion::Lost(error)),
            Commit::Accepted(contributions) => contributions,
        };
        let unknown = || LedgerError::internal(format!("a lease of path {path} was accepted and is not out"));
        let lease = lease.ok_or_else(unknown)?;
        let mut results = self.received.remove(&(path, fence)).unwrap_or_default();
        // The others have counted before, or are duplicates.
        results.retain(|_, result| result.waits);
        let mut obsolete = Vec::new();
        if lease.task == LeaseTask::Train {
            obsolete.extend(self.note_completed(&lease, results.contains_key(&LeaseResult::State))?);
        }
        obsolete.extend(self.note_results(&lease, &contributions, results)?);
        self.state.pass_over_idle();
        // A path whose last leases are in no state goes on with the worker that trained them, if it can.
        let bound = !self.objects.path(path)?.replay.is_empty();
        self.state.bind(path, bound);
        let best = self.note_loss(&lease, report)?;
        self.note_recorded(lease.path)?;
        // Last: leases, states and bests decide which versions are still needed.
        for fragment in self.fragment_ids_of(path) {
            obsolete.extend(self.prune(fragment)?);
        }
        self.note_change(obsolete);
        Ok(LeaseCompletion::Accepted { lease: Box::new(lease), best })
    }

    /// The first result that is due at the end of a lease and has not been uploaded.
    fn missing_result(&self, lease: &Lease) -> Result<Option<LeaseResult>, LedgerError> {
        let last = lease.sends.iter().filter(|send| send.step == lease.to);
        let last = last.map(|send| {
            let (fragment, number) = (send.fragment, send.number);
            LeaseResult::OuterGradient { fragment, number, tokens: 0 }
        });
        let state = self.needs_state(lease)?.then_some(LeaseResult::State);
        let received = self.received.get(&(lease.path, lease.fence));
        let is_here = |item: &LeaseResult| received.is_some_and(|received| received.contains_key(item));
        Ok(last.chain(state).find(|item| !is_here(item)))
    }

    /// Adds a completed lease to the leases that a worker without the path's state replays. Returns obsolete objects.
    fn note_completed(&mut self, lease: &Lease, with_state: bool) -> Result<Option<String>, LedgerError> {
        let completed = self.completed_lease_record(lease)?;
        let schedule = self.state.schedule();
        let trains_again = schedule.rests_until(lease.path, lease.to) < schedule.total();
        let path = self.objects.path_mut(lease.path)?;
        path.fence = Some(lease.fence.0);
        path.completed_by = Some(lease.worker.token.clone());
        path.replay.push(completed);
        if trains_again || with_state {
            return Ok(None);
        }
        // The run is over for this path: nobody replays its leases, and its earlier state is useless.
        path.replay.clear();
        Ok(path.state.take().map(|object| object.name))
    }

    /// Keeps the objects of uploaded results that count. Returns obsolete objects.
    fn note_results(
        &mut self,
        lease: &Lease,
        contributions: &BTreeMap<FragmentId, Contribution>,
        results: BTreeMap<LeaseResult, ReceivedResult>,
    ) -> Result<Vec<String>, LedgerError> {
        let contributor = Contributor { token: &lease.worker.token, numerics: &lease.numerics, to: lease.to };
        let mut obsolete = Vec::new();
        for (item, result) in results {
            match item {
                LeaseResult::OuterGradient { fragment, .. } => match contributions.get(&fragment) {
                    Some(&contribution) => self.count(fragment, contribution, &result, contributor)?,
                    // A lost lease of the path contributed this gradient before, under another object.
                    None => obsolete.push(result.object.name),
                },
                LeaseResult::State => {
                    let path = self.objects.path_mut(lease.path)?;
                    path.replay.clear();
                    obsolete.extend(path.state.replace(result.object).map(|object| object.name));
                }
            }
        }
        Ok(obsolete)
    }

    /// The lease that is out when `lease` follows it; `None` if `lease` itself is the current lease.
    fn preceding_lease(&self, lease: &Lease) -> Option<&Lease> {
        self.state.lease(lease.path).filter(|current| current.from < lease.from)
    }

    /// The record of a lease in its path's record once the lease is complete.
    pub(super) fn completed_lease_record(&self, lease: &Lease) -> Result<CompletedLeaseRecord, LedgerError> {
        let lacks = || LedgerError::Lacks { what: format!("path {}", lease.path) };
        let progress = self.state.progress().paths.get(&lease.path).ok_or_else(lacks)?;
        let of = |lease: &Lease, fragment: &FragmentId| {
            lease.receives.iter().find(|r| r.fragment == *fragment).copied()
        };
        let received = |fragment: &FragmentId| of(lease, fragment);
        let before = self.preceding_lease(lease);
        let fragments = self.fragment_ids_of(lease.path);
        let adopted = fragments.iter().zip(&progress.adopted).map(|(fragment, &adopted)| {
            before.and_then(|before| of(before, fragment)).map_or(adopted, |receive| receive.version)
        });
        let versions = fragments.iter().zip(adopted);
        Ok(CompletedLeaseRecord {
            from: lease.from,
            to: lease.to,
            versions: versions.map(|(id, adopted)| received(id).map_or(adopted, |r| r.version)).collect(),
            received: fragments.iter().map(|fragment| received(fragment).is_some()).collect(),
        })
    }

    /// Returns whether a lease uploads its path's state: every `state_every` leases, when the path changes hands, when
    /// the worker can't keep the state, and at the end of a phase that is not the last. At the end of the run the state is useless, so it is uploaded only if
    /// every lease uploads it.
    pub(super) fn needs_state(&self, lease: &Lease) -> Result<bool, LedgerError> {
        if lease.task != LeaseTask::Train {
            return Ok(false);
        }
        if lease.hands_over.is_some() {
            return Ok(true);
        }
        let schedule = self.state.schedule();
        // The next lease of the path begins here.
        let next = schedule.rests_until(lease.path, lease.to);
        if next == schedule.total() {
            return Ok(self.plan.state_every == 1);
        }
        if lease.crowded {
            return Ok(true);
        }
        let completed = self.objects.path(lease.path)?.replay.len();
        let replay = match self.preceding_lease(lease) {
            // No lease precedes that one, so this looks no further.
            Some(before) if self.needs_state(before)? => 1,
            Some(_) => completed + 2,
            None => completed + 1,
        };
        let carried_over = next >= schedule.end(self.state.phase());
        let long = replay >= self.plan.state_every as usize
            || replay * self.fragment_ids_of(lease.path).len() > MAX_REPLAY_WEIGHTS;
        Ok(long || carried_over)
    }

    /// Notes the held-out loss of the weights with which a lease began. Returns true if it is the path's lowest. Only
    /// weights that are all global can be served, so a loss of other weights is not noted.
    fn note_loss(&mut self, lease: &Lease, report: &LeaseReport) -> Result<bool, LedgerError> {
        // A negative number would stay the best for ever.
        let Some(loss) = possible_loss(report.held_out_loss) else { return Ok(false) };
        let received = |fragment: &FragmentId| lease.receives.iter().find(|r| r.fragment == *fragment);
        let fragments = self.fragment_ids_of(lease.path);
        let versions: Option<Vec<u32>> =
            fragments.iter().map(|fragment| Some(received(fragment)?.version)).collect();
        let Some(versions) = versions else { return Ok(false) };
        let round = lease.from / self.state.schedule().inner_steps();
        let path = self.objects.path_mut(lease.path)?;
        let measured = EarlyStoppingBest { round: u32::try_from(round).unwrap_or(u32::MAX), versions, loss };
        let best = path.best.as_ref().is_none_or(|best| loss < best.loss);
        if best {
            path.best = Some(measured.clone());
        }
        path.last = Some(measured);
        Ok(best)
    }
}
