//! Results of leases in the ledger.

use std::collections::BTreeMap;
use std::time::Duration;

use dipaco_store::{CompletedLeaseRecord, ContributorRecord, EarlyStoppingBest, GradientRecord, ObjectRef};
use dipaco_sync::{
    Commit, Contribution, FragmentId, Guard, Lease, LeaseClaim, LeaseError, LeaseKey, LeaseOutcome,
    LeaseTask, OutOfProportion, PathProgress,
};
use dipaco_topology::PathId;
use thiserror::Error;

use super::records::{fragment_record, path_record};
use super::{LeaseCompletion, Ledger, MAX_REPLAY_WEIGHTS};
use crate::coordinator::error::CoordinatorError;
use crate::host::StoredResult;
use dipaco_protocol::{LeaseReport, LeaseResult, Response};

/// A result of a granted lease that is in the store.
pub(super) struct ReceivedResult {
    pub(super) object: ObjectRef,
    /// Tokens in an outer gradient; 0 for a state.
    tokens: u64,
    /// Euclidean norm of an outer gradient; 0 for a state.
    norm: f64,
}

/// The outcome of recording a result.
pub(crate) enum Recording {
    /// The result counts already, or counts with the end of its lease.
    Recorded,
    /// The result does not count.
    Rejected(ResultError),
}

/// The decision about a result that may count.
enum Decision {
    /// It is this contribution to the fragment.
    Counts(FragmentId, Contribution),
    /// It counts with the end of its lease.
    CountsWithLease,
    /// A lost lease of the path contributed it before.
    Duplicate,
}

/// Reasons why a result does not count.
#[derive(Debug, Error)]
pub(crate) enum ResultError {
    /// The lease does not expect it.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The lease only measures.
    #[error("this lease measures a loss; its only result is the report")]
    Measures,
    /// The lease has another result under the same name.
    #[error(
        "this lease has another content or another number of tokens of {item}: a result is uploaded once; \
         check the memory of the worker's machine"
    )]
    OtherContent {
        /// The result.
        item: String,
    },
    /// The norm is far larger than those of the contributions that count.
    #[error(transparent)]
    OutOfProportion(#[from] OutOfProportion),
}

impl ResultError {
    /// The answer to the worker.
    pub(crate) fn response(&self) -> Response {
        let reason = self.to_string();
        match self {
            Self::Lease(LeaseError::Lost { .. }) => Response::Lost { reason },
            _ => Response::Refused { reason },
        }
    }
}

impl Ledger {
    /// Inner steps of the path after which its worker makes this result.
    ///
    /// # Errors
    /// When the claim names no current lease, the lease does not expect the result, or has another content of it.
    pub(crate) fn expects(
        &self,
        claim: &LeaseClaim,
        item: LeaseResult,
        hash: &str,
    ) -> Result<u64, ResultError> {
        let to = match item {
            LeaseResult::OuterGradient { fragment, number, tokens } => {
                self.state.expects(claim, fragment, number, tokens)?.step
            }
            LeaseResult::State => {
                let lease = self.state.check(claim)?;
                if lease.task != LeaseTask::Train {
                    return Err(ResultError::Measures);
                }
                lease.to
            }
        };
        self.check_content(claim, item, hash)?;
        Ok(to)
    }

    /// Checks that a lease has no other content of a result.
    fn check_content(&self, claim: &LeaseClaim, item: LeaseResult, hash: &str) -> Result<(), ResultError> {
        let received = self.received.get(&(claim.key.path, claim.key.fence));
        match received.and_then(|received| received.get(&item.without_tokens())) {
            Some(result) if (result.object.hash.as_str(), result.tokens) != (hash, item.tokens()) => {
                Err(ResultError::OtherContent { item: item.name() })
            }
            _ => Ok(()),
        }
    }

    /// Records that a result of a lease is in the store. An outer gradient that is sent before the end of its lease
    /// counts at once. The object is deleted if it does not count.
    pub(crate) fn record_result(
        &mut self,
        claim: &LeaseClaim,
        item: LeaseResult,
        stored: StoredResult,
    ) -> Result<Recording, CoordinatorError> {
        let StoredResult { object, norm } = stored;
        let lease = (claim.key.path, claim.key.fence);
        let received = ReceivedResult { object: object.clone(), tokens: item.tokens(), norm };
        match self.decide(claim, item, &received) {
            Ok(Decision::Counts(fragment, contribution)) => {
                self.note_gradient(fragment, contribution, &received, &claim.worker.token)?;
                self.note_progress(lease.0)?;
                self.note_change(Vec::new());
            }
            Ok(Decision::CountsWithLease) => {}
            Ok(Decision::Duplicate) => self.delete_unused([object.name])?,
            Err(error) => {
                // The same content with another number of tokens has the name of the result that counts.
                let same = |result: &ReceivedResult| result.object.name == object.name;
                if !self.received.get(&lease).is_some_and(|received| received.values().any(same)) {
                    self.delete_unused([object.name])?;
                }
                return Ok(Recording::Rejected(error));
            }
        }
        self.received.entry(lease).or_default().insert(item.without_tokens(), received);
        Ok(Recording::Recorded)
    }

    /// Decides on a result that is in the store. Its lease may have ended since [`Ledger::expects`].
    fn decide(
        &mut self,
        claim: &LeaseClaim,
        item: LeaseResult,
        received: &ReceivedResult,
    ) -> Result<Decision, ResultError> {
        let LeaseKey { path, fence, .. } = claim.key;
        if self.closed {
            return Err(LeaseError::Lost { path, step: 0, fence }.into());
        }
        self.check_content(claim, item, &received.object.hash)?;
        let LeaseResult::OuterGradient { fragment, number, tokens } = item else {
            self.state.check(claim)?;
            return Ok(Decision::CountsWithLease);
        };
        let training = self.manifest.training.as_ref();
        let record = training.and_then(|training| training.fragment(fragment.module, fragment.index));
        self.guard.check(fragment, record.map_or(&[], |record| &record.norms), received.norm)?;
        match self.state.contribute(claim, fragment, number, tokens) {
            Commit::Accepted(Some(contribution)) => Ok(Decision::Counts(fragment, contribution)),
            Commit::Accepted(None) => Ok(Decision::CountsWithLease),
            Commit::Duplicate => Ok(Decision::Duplicate),
            Commit::Refused(error) => Err(error.into()),
        }
    }

    /// Writes an outer gradient that counts into the records of its path and its fragment.
    fn note_gradient(
        &mut self,
        fragment: FragmentId,
        contribution: Contribution,
        received: &ReceivedResult,
        token: &str,
    ) -> Result<(), CoordinatorError> {
        let Contribution { path, number, base, steps, tokens } = contribution;
        let ReceivedResult { object, norm, .. } = received;
        let FragmentId { module, index } = fragment;
        self.news.insert(fragment);
        Guard::remember(&mut fragment_record(&mut self.manifest, fragment)?.norms, *norm);
        let slot = self.slot(fragment);
        let step = self.state.lease(path).map_or(0, |lease| lease.to);
        let record = path_record(&mut self.manifest, path)?;
        let step = step.max(record.steps);
        if let Some(counted) = record.counted.get_mut(slot) {
            counted.steps = counted.steps.saturating_add(steps);
            counted.tokens = counted.tokens.saturating_add(tokens);
        }
        let fragments = record.counted.len();
        let first = || ContributorRecord { first_step: step, ..ContributorRecord::default() };
        let contributor = record.contributors.entry(token.to_owned()).or_insert_with(first);
        contributor.gradients += 1;
        contributor.last_step = step;
        contributor.tokens = contributor.tokens.saturating_add(tokens);
        contributor.by_fragment.resize(fragments, 0);
        if let Some(gradients) = contributor.by_fragment.get_mut(slot) {
            *gradients += 1;
        }
        record.gradients.push(GradientRecord {
            module,
            fragment: index,
            number,
            base,
            steps,
            tokens,
            norm: *norm,
            token: token.to_owned(),
            object: object.clone(),
        });
        Ok(())
    }

    /// Copies a path's progress from the state machine into its record.
    fn note_progress(&mut self, path: PathId) -> Result<(), CoordinatorError> {
        let PathProgress { steps, measured, sent, adopted } =
            self.state.progress().paths[path.index()].clone();
        let record = path_record(&mut self.manifest, path)?;
        (record.steps, record.measured, record.sent, record.adopted) = (steps, measured, sent, adopted);
        Ok(())
    }

    /// Records a finished lease. Everything that can refuse it comes before `commit`, because a commit can't be undone.
    pub(crate) fn complete_lease(
        &mut self,
        now: Duration,
        claim: &LeaseClaim,
        report: &LeaseReport,
    ) -> Result<LeaseCompletion, CoordinatorError> {
        if self.closed {
            return Ok(LeaseCompletion::Closed);
        }
        let LeaseKey { path, fence, .. } = claim.key;
        // Cloned, because the core forgets the lease when it commits.
        let lease = self.state.check(claim).ok().cloned();
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
        let unknown =
            || CoordinatorError::internal(format!("a lease of path {path} was accepted and is not out"));
        let lease = lease.ok_or_else(unknown)?;
        let mut results = self.received.remove(&(path, fence)).unwrap_or_default();
        // Results that the lease sent before its end have counted already.
        results.retain(|item, _| lasts(&lease, *item));
        let mut obsolete = Vec::new();
        if lease.task == LeaseTask::Train {
            obsolete.extend(self.note_completed(&lease, results.contains_key(&LeaseResult::State))?);
        }
        self.note_progress(path)?;
        obsolete.extend(self.note_results(&lease, &contributions, results)?);
        // A path whose last leases are in no state goes on with the worker that trained them, if it can.
        let bound = !path_record(&mut self.manifest, path)?.replay.is_empty();
        self.state.bind(path, bound);
        let best = self.note_loss(path, &lease, report)?;
        // Last: leases, states and bests decide which versions are still needed.
        for fragment in self.fragment_ids_of(path) {
            obsolete.extend(self.prune(fragment)?);
        }
        self.note_change(obsolete);
        Ok(LeaseCompletion::Accepted { lease: Box::new(lease), best })
    }

    /// The first result that is due at the end of a lease and has not been uploaded.
    fn missing_result(&self, lease: &Lease) -> Result<Option<LeaseResult>, CoordinatorError> {
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
    fn note_completed(
        &mut self,
        lease: &Lease,
        with_state: bool,
    ) -> Result<Option<String>, CoordinatorError> {
        let completed = self.completed_lease_record(lease)?;
        let total = self.state.schedule().total();
        let record = path_record(&mut self.manifest, lease.path)?;
        record.fence = Some(lease.fence.0);
        record.replay.push(completed);
        if lease.to < total || with_state {
            return Ok(None);
        }
        // The run is over for this path: nobody replays its leases, and its earlier state is useless.
        record.replay.clear();
        Ok(record.state.take().map(|object| object.name))
    }

    /// Writes uploaded results into their path's record. Returns obsolete objects.
    fn note_results(
        &mut self,
        lease: &Lease,
        contributions: &BTreeMap<FragmentId, Contribution>,
        results: BTreeMap<LeaseResult, ReceivedResult>,
    ) -> Result<Vec<String>, CoordinatorError> {
        let mut obsolete = Vec::new();
        for (item, result) in results {
            match item {
                LeaseResult::OuterGradient { fragment, .. } => match contributions.get(&fragment) {
                    Some(&contribution) => {
                        self.note_gradient(fragment, contribution, &result, &lease.worker.token)?;
                    }
                    // A lost lease of the path contributed this gradient before, under another object.
                    None => obsolete.push(result.object.name),
                },
                LeaseResult::State => {
                    let record = path_record(&mut self.manifest, lease.path)?;
                    record.replay.clear();
                    obsolete.extend(record.state.replace(result.object).map(|object| object.name));
                }
            }
        }
        Ok(obsolete)
    }

    /// The lease that is out when `lease` follows it; `None` if `lease` itself is the current lease.
    fn preceding_lease(&self, lease: &Lease) -> Option<&Lease> {
        self.state.lease(lease.path).filter(|current| current.from < lease.from)
    }

    /// The record of a lease in its path's record, before the lease is complete.
    pub(crate) fn completed_lease_record(
        &self,
        lease: &Lease,
    ) -> Result<CompletedLeaseRecord, CoordinatorError> {
        let lacks = || CoordinatorError::ManifestLacks { what: format!("path {}", lease.path) };
        let adopted = &self.training()?.path(lease.path).ok_or_else(lacks)?.adopted;
        let of = |lease: &Lease, fragment: &FragmentId| {
            lease.receives.iter().find(|r| r.fragment == *fragment).copied()
        };
        let received = |fragment: &FragmentId| of(lease, fragment);
        let before = self.preceding_lease(lease);
        let fragments = self.fragment_ids_of(lease.path);
        let adopted = fragments.iter().zip(adopted).map(|(fragment, &adopted)| {
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

    /// Returns whether a lease uploads its path's state: every `state_every` leases, when the path changes hands, and at
    /// the end of a phase that is not the last. At the end of the run the state is useless, so it is uploaded only if
    /// every lease uploads it.
    pub(crate) fn needs_state(&self, lease: &Lease) -> Result<bool, CoordinatorError> {
        if lease.task != LeaseTask::Train {
            return Ok(false);
        }
        if lease.hands_over.is_some() {
            return Ok(true);
        }
        if lease.to == self.state.schedule().total() {
            return Ok(self.state_every == 1);
        }
        let training = self.training()?;
        let lacks = || CoordinatorError::ManifestLacks { what: format!("path {}", lease.path) };
        let replay = training.path(lease.path).ok_or_else(lacks)?.replay.len() + 1;
        let replay = replay + usize::from(self.preceding_lease(lease).is_some());
        let phase_ends = training.boundaries.get(training.phase as usize);
        let carried_over = phase_ends.is_some_and(|&end| lease.to == u64::from(end) * training.inner_steps);
        let long = replay >= self.state_every as usize
            || replay * self.fragment_ids_of(lease.path).len() > MAX_REPLAY_WEIGHTS;
        Ok(long || carried_over)
    }

    /// Notes the held-out loss of the weights with which a lease began. Returns true if it is the path's lowest. Only
    /// weights that are all global can be served, so a loss of other weights is not noted.
    fn note_loss(
        &mut self,
        path: PathId,
        lease: &Lease,
        report: &LeaseReport,
    ) -> Result<bool, CoordinatorError> {
        // A cross entropy is not negative: a lower number would stay the best for ever.
        let possible = |loss: &f64| loss.is_finite() && *loss >= 0.0;
        let Some(loss) = report.held_out_loss.filter(possible) else { return Ok(false) };
        let received = |fragment: &FragmentId| lease.receives.iter().find(|r| r.fragment == *fragment);
        let fragments = self.fragment_ids_of(path);
        let versions: Option<Vec<u32>> =
            fragments.iter().map(|fragment| Some(received(fragment)?.version)).collect();
        let Some(versions) = versions else { return Ok(false) };
        let round = lease.from / self.state.schedule().inner_steps();
        let record = path_record(&mut self.manifest, path)?;
        let measured = EarlyStoppingBest { round: u32::try_from(round).unwrap_or(u32::MAX), versions, loss };
        let best = record.best.as_ref().is_none_or(|best| loss < best.loss);
        if best {
            record.best = Some(measured.clone());
        }
        record.last = Some(measured);
        Ok(best)
    }
}

/// True if a result belongs to the end of a lease.
fn lasts(lease: &Lease, item: LeaseResult) -> bool {
    match item {
        LeaseResult::OuterGradient { fragment, number, .. } => {
            lease.sends.iter().any(|s| (s.fragment, s.number, s.step) == (fragment, number, lease.to))
        }
        LeaseResult::State => true,
    }
}
