//! Results of leases in the ledger.

use std::collections::BTreeMap;

use dipaco_store::{CompletedLeaseRecord, EarlyStoppingBest, GradientRecord, ObjectRef};
use dipaco_sync::{
    Commit, Contribution, Fence, FragmentId, Lease, LeaseError, LeaseOutcome, LeaseTask, PathProgress,
};
use dipaco_topology::PathId;

use super::records::path_record;
use super::{LeaseCompletion, Ledger, MAX_REPLAY_WEIGHTS};
use crate::coordinator::error::CoordinatorError;
use dipaco_protocol::{LeaseReport, LeaseResult};

/// The outcome of recording a result.
pub(crate) enum Recording {
    /// The result counts already, or counts with the end of its lease.
    Recorded,
    /// The result does not count.
    Rejected(LeaseError),
}

/// The results that the worker of a lease has uploaded for its end.
#[derive(Default)]
struct UploadedResults {
    /// Objects by result, without the numbers of tokens.
    objects: BTreeMap<LeaseResult, ObjectRef>,
    /// Tokens in the outer gradient of each fragment.
    tokens: BTreeMap<FragmentId, u64>,
}

impl Ledger {
    /// Records that a result of a lease is in the store. An outer gradient that is sent before the end of its lease
    /// counts at once. The object is deleted if the lease is not out any more or the result counts already.
    pub(crate) fn record_result(
        &mut self,
        path: PathId,
        fence: Fence,
        item: LeaseResult,
        object: ObjectRef,
    ) -> Result<Recording, CoordinatorError> {
        let checked = match self.check(path, fence) {
            Ok(lease) if self.closed => Err(LeaseError::Lost { path, step: lease.from, fence }),
            checked => checked,
        };
        let lease = match checked {
            Ok(lease) => lease,
            Err(error) => return self.reject(object, error),
        };
        let at_end = |fragment, number| {
            lease.sends.iter().any(|s| (s.fragment, s.number, s.step) == (fragment, number, lease.to))
        };
        match item {
            LeaseResult::OuterGradient { fragment, number, tokens } if !at_end(fragment, number) => {
                match self.state.contribute(path, fence, fragment, number, tokens) {
                    Commit::Accepted(contribution) => {
                        self.note_gradient(fragment, contribution, object)?;
                        self.note_progress(path)?;
                        self.note_change(Vec::new());
                    }
                    Commit::Duplicate => self.delete_unused([object.name])?,
                    Commit::Refused(error) => return self.reject(object, error),
                }
            }
            item => {
                self.staged.entry((path, fence)).or_default().insert(item, object);
            }
        }
        Ok(Recording::Recorded)
    }

    fn reject(&mut self, object: ObjectRef, error: LeaseError) -> Result<Recording, CoordinatorError> {
        self.delete_unused([object.name])?;
        Ok(Recording::Rejected(error))
    }

    /// Writes an outer gradient that counts into its path's record.
    fn note_gradient(
        &mut self,
        fragment: FragmentId,
        contribution: Contribution,
        object: ObjectRef,
    ) -> Result<(), CoordinatorError> {
        let Contribution { path, number, base, steps, tokens } = contribution;
        let FragmentId { module, index } = fragment;
        self.news.insert(fragment);
        let slot = self.slot(fragment);
        let record = path_record(&mut self.manifest, path)?;
        if let Some(counted) = record.counted.get_mut(slot) {
            counted.steps += steps;
            counted.tokens += tokens;
        }
        let gradient = GradientRecord { module, fragment: index, number, base, steps, tokens, object };
        record.gradients.push(gradient);
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
        path: PathId,
        fence: Fence,
        report: &LeaseReport,
    ) -> Result<LeaseCompletion, CoordinatorError> {
        if self.closed {
            return Ok(LeaseCompletion::Closed);
        }
        // Cloned, because the core forgets the lease when it commits.
        let lease = self.state.check(path, fence).ok().cloned();
        let mut uploaded = UploadedResults::default();
        // Checked before the commit, which can't be taken back. The worker still has the lease and uploads the rest.
        if let Some(lease) = lease.as_ref().filter(|lease| lease.task == LeaseTask::Train) {
            uploaded = self.uploaded_results(lease);
            if let Some(missing) = self.missing_result(lease, &uploaded)? {
                return Ok(LeaseCompletion::Incomplete(missing.name()));
            }
        }
        let outcome = LeaseOutcome { seconds: report.seconds, tokens: uploaded.tokens };
        let contributions = match self.state.commit(path, fence, &outcome) {
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
        self.staged.remove(&(path, fence));
        let mut obsolete = Vec::new();
        if lease.task == LeaseTask::Train {
            obsolete.extend(self.note_completed(&lease, &uploaded.objects)?);
        }
        self.note_progress(path)?;
        obsolete.extend(self.note_results(path, &contributions, uploaded.objects)?);
        // A path whose last leases are in no state goes on with the worker that trained them, if it can.
        let bound = !path_record(&mut self.manifest, path)?.replay.is_empty();
        self.state.bind(path, bound);
        let best = self.note_loss(path, &lease, report)?;
        // Last: leases, states and bests decide which versions are still needed.
        for fragment in self.fragment_ids_of(path) {
            obsolete.extend(self.prune(fragment)?);
        }
        self.note_change(obsolete);
        Ok(LeaseCompletion::Accepted { lease, best })
    }

    /// The results that are in the store for the end of a lease.
    fn uploaded_results(&self, lease: &Lease) -> UploadedResults {
        let mut uploaded = UploadedResults::default();
        for (item, object) in self.staged.get(&(lease.path, lease.fence)).into_iter().flatten() {
            if let LeaseResult::OuterGradient { fragment, tokens, .. } = *item {
                uploaded.tokens.insert(fragment, tokens);
            }
            uploaded.objects.insert(item.without_tokens(), object.clone());
        }
        uploaded
    }

    /// The first result that is due at the end of a lease and has not been uploaded.
    fn missing_result(
        &self,
        lease: &Lease,
        uploaded: &UploadedResults,
    ) -> Result<Option<LeaseResult>, CoordinatorError> {
        let last = lease.sends.iter().filter(|send| send.step == lease.to);
        let last = last.map(|send| {
            let (fragment, number) = (send.fragment, send.number);
            LeaseResult::OuterGradient { fragment, number, tokens: 0 }
        });
        let state = self.needs_state(lease)?.then_some(LeaseResult::State);
        Ok(last.chain(state).find(|item| !uploaded.objects.contains_key(item)))
    }

    /// Adds a completed lease to the leases that a worker without the path's state replays. Returns obsolete objects.
    fn note_completed(
        &mut self,
        lease: &Lease,
        results: &BTreeMap<LeaseResult, ObjectRef>,
    ) -> Result<Option<String>, CoordinatorError> {
        let completed = self.completed_lease_record(lease)?;
        let total = self.state.schedule().total();
        let record = path_record(&mut self.manifest, lease.path)?;
        record.fence = Some(lease.fence.0);
        record.replay.push(completed);
        if lease.to < total || results.contains_key(&LeaseResult::State) {
            return Ok(None);
        }
        // The run is over for this path: nobody replays its leases, and its earlier state is useless.
        record.replay.clear();
        Ok(record.state.take().map(|object| object.name))
    }

    /// Writes uploaded results into their path's record. Returns obsolete objects.
    fn note_results(
        &mut self,
        path: PathId,
        contributions: &BTreeMap<FragmentId, Contribution>,
        results: BTreeMap<LeaseResult, ObjectRef>,
    ) -> Result<Vec<String>, CoordinatorError> {
        let mut obsolete = Vec::new();
        for (item, object) in results {
            match item {
                LeaseResult::OuterGradient { fragment, .. } => match contributions.get(&fragment) {
                    Some(&contribution) => self.note_gradient(fragment, contribution, object)?,
                    // A lost lease of the path contributed this gradient before, under another object.
                    None => obsolete.push(object.name),
                },
                LeaseResult::State => {
                    let record = path_record(&mut self.manifest, path)?;
                    record.replay.clear();
                    obsolete.extend(record.state.replace(object).map(|object| object.name));
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

    /// Notes the held-out loss of the weights with which a lease began. Returns true if it is the path's lowest.
    fn note_loss(
        &mut self,
        path: PathId,
        lease: &Lease,
        report: &LeaseReport,
    ) -> Result<bool, CoordinatorError> {
        let Some(loss) = report.held_out_loss.filter(|loss| loss.is_finite()) else { return Ok(false) };
        let round = lease.from / self.state.schedule().inner_steps();
        let record = path_record(&mut self.manifest, path)?;
        let versions = lease.receives.iter().map(|receive| receive.version).collect();
        let measured = EarlyStoppingBest { round: u32::try_from(round).unwrap_or(u32::MAX), versions, loss };
        let best = record.best.as_ref().is_none_or(|best| loss < best.loss);
        if best {
            record.best = Some(measured.clone());
        }
        record.last = Some(measured);
        Ok(best)
    }
}
