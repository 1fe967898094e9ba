//! The books of what leases bring.

use std::collections::BTreeMap;

use dipaco_store::{Best, CompletedLeaseRecord, GradientRecord, ObjectRef};
use dipaco_sync::{
    Commit, Contribution, Fence, FragmentId, Lease, LeaseError, LeaseOutcome, LeaseTask, PathProgress,
};
use dipaco_topology::PathId;

use super::{LeaseCompletion, Ledger, MAX_REPLAY_WEIGHTS, path_record};
use crate::TrainError;
use dipaco_protocol::{LeaseReport, LeaseResult};

impl Ledger {
    /// Notes that an item of a lease is in the store: an outer gradient that is sent before the end of its lease counts
    /// at once. When the lease is out no more, or the item counts already, it is deleted; the error says why it is not
    /// taken.
    pub(crate) fn stage(
        &mut self,
        path: PathId,
        fence: Fence,
        item: LeaseResult,
        object: ObjectRef,
    ) -> Result<Result<(), LeaseError>, TrainError> {
        let checked = match self.check(path, fence) {
            Ok(lease) if !self.closed => Ok(lease),
            Ok(lease) => Err(LeaseError::Lost { path, step: lease.from, fence }),
            Err(error) => Err(error),
        };
        let lease = match checked {
            Ok(lease) => lease,
            Err(error) => {
                self.delete_unused([object.name])?;
                return Ok(Err(error));
            }
        };
        let ends = |fragment, number| {
            lease.sends.iter().any(|s| (s.fragment, s.number, s.step) == (fragment, number, lease.to))
        };
        match item {
            LeaseResult::OuterGradient { fragment, number, tokens } if !ends(fragment, number) => {
                match self.rounds.contribute(path, fence, fragment, number, tokens) {
                    Commit::Accepted => {
                        self.note_gradient(path, fragment, number, object)?;
                        self.note_progress(path)?;
                        self.save(Vec::new());
                    }
                    Commit::Duplicate => self.delete_unused([object.name])?,
                    Commit::Refused(error) => {
                        self.delete_unused([object.name])?;
                        return Ok(Err(error));
                    }
                }
            }
            item => {
                self.staged.entry((path, fence)).or_default().insert(item, object);
            }
        }
        Ok(Ok(()))
    }

    /// Writes an outer gradient that counts from now on into its path's record.
    fn note_gradient(
        &mut self,
        path: PathId,
        fragment: FragmentId,
        number: u32,
        object: ObjectRef,
    ) -> Result<(), TrainError> {
        let pending = self.rounds.progress().pending.get(&fragment).into_iter().flatten();
        let found = pending.copied().find(|c| (c.path, c.number) == (path, number));
        let lacks = || TrainError::ManifestLacks { what: format!("outer gradient {number} of path {path}") };
        let Contribution { base, steps, tokens, .. } = found.ok_or_else(lacks)?;
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

    /// Brings a path's record up to the core's progress.
    fn note_progress(&mut self, path: PathId) -> Result<(), TrainError> {
        let PathProgress { steps, measured, sent, adopted } =
            self.rounds.progress().paths[path.index()].clone();
        let record = path_record(&mut self.manifest, path)?;
        (record.steps, record.measured, record.sent, record.adopted) = (steps, measured, sent, adopted);
        Ok(())
    }

    /// Takes a finished lease into the books.
    pub(crate) fn complete(
        &mut self,
        path: PathId,
        fence: Fence,
        report: &LeaseReport,
    ) -> Result<LeaseCompletion, TrainError> {
        if self.closed {
            return Ok(LeaseCompletion::Closed);
        }
        let lease = self.rounds.check(path, fence).ok().cloned();
        let mut items = BTreeMap::new();
        let mut done = LeaseOutcome { seconds: report.seconds, ..LeaseOutcome::default() };
        if let Some(lease) = lease.as_ref().filter(|lease| lease.task == LeaseTask::Train) {
            for (item, object) in self.staged.get(&(path, fence)).into_iter().flatten() {
                if let LeaseResult::OuterGradient { fragment, tokens, .. } = *item {
                    done.tokens.insert(fragment, tokens);
                }
                items.insert(key(*item), object.clone());
            }
            let last = lease.sends.iter().filter(|send| send.step == lease.to);
            let last = last.map(|s| LeaseResult::OuterGradient {
                fragment: s.fragment,
                number: s.number,
                tokens: 0,
            });
            let state = self.needs_state(lease)?.then_some(LeaseResult::State);
            if let Some(missing) = last.chain(state).find(|item| !items.contains_key(&key(*item))) {
                return Ok(LeaseCompletion::Incomplete(missing.name()));
            }
        }
        match self.rounds.commit(path, fence, &done) {
            Commit::Duplicate => return Ok(LeaseCompletion::Duplicate),
            Commit::Refused(error @ LeaseError::Owes { .. }) => {
                return Ok(LeaseCompletion::Incomplete(error.to_string()));
            }
            Commit::Refused(error) => return Ok(LeaseCompletion::Lost(error)),
            Commit::Accepted => {}
        }
        let lease = lease.ok_or_else(|| TrainError::ManifestLacks { what: format!("a lease of {path}") })?;
        self.staged.remove(&(path, fence));
        let mut obsolete = Vec::new();
        if lease.task == LeaseTask::Train {
            let stretch = self.stretch(&lease)?;
            let total = self.rounds.schedule().total();
            let record = path_record(&mut self.manifest, path)?;
            record.fence = Some(fence.0);
            record.replay.push(stretch);
            if lease.to == total && !items.contains_key(&Key::State) {
                // Nobody goes on with a state that has stayed with its worker to the end of the run.
                record.replay.clear();
                obsolete.extend(record.state.take().map(|object| object.name));
            }
        }
        self.note_progress(path)?;
        for (item, object) in items {
            match item {
                Key::OuterGradient(fragment, number) => self.note_gradient(path, fragment, number, object)?,
                Key::State => {
                    let record = path_record(&mut self.manifest, path)?;
                    record.replay.clear();
                    obsolete.extend(record.state.replace(object).map(|object| object.name));
                }
            }
        }
        let bound = !path_record(&mut self.manifest, path)?.replay.is_empty();
        self.rounds.bind(path, bound);
        let best = self.note_loss(path, &lease, report)?;
        for fragment in self.fragment_ids_of(path) {
            obsolete.extend(self.prune(fragment)?);
        }
        self.save(obsolete);
        Ok(LeaseCompletion::Accepted { lease, best })
    }

    /// The lease that is out before one that follows it.
    fn before(&self, lease: &Lease) -> Option<&Lease> {
        self.rounds.lease(lease.path).filter(|current| current.from < lease.from)
    }

    /// A lease as the path's record keeps it, before it is complete.
    pub(crate) fn stretch(&self, lease: &Lease) -> Result<CompletedLeaseRecord, TrainError> {
        let lacks = || TrainError::ManifestLacks { what: format!("path {}", lease.path) };
        let adopted = &self.training()?.path(lease.path).ok_or_else(lacks)?.adopted;
        let of = |lease: &Lease, fragment: &FragmentId| {
            lease.receives.iter().find(|r| r.fragment == *fragment).copied()
        };
        let received = |fragment: &FragmentId| of(lease, fragment);
        let before = self.before(lease);
        let fragments = self.fragment_ids_of(lease.path);
        let adopted = fragments.iter().zip(adopted).map(|(fragment, &adopted)| {
            before.and_then(|before| of(before, fragment)).map_or(adopted, |receive| receive.version)
        });
        let versions = fragments.iter().zip(adopted);
        Ok(CompletedLeaseRecord {
            from: lease.from,
            to: lease.to,
            versions: versions.map(|(u, adopted)| received(u).map_or(adopted, |r| r.version)).collect(),
            received: fragments.iter().map(|fragment| received(fragment).is_some()).collect(),
        })
    }

    /// Whether a lease has to bring its path's state: every so many leases, when the path changes hands, and where a phase
    /// ends that another one follows. Where the run ends nobody goes on with it, and it is brought only if each one is.
    pub(crate) fn needs_state(&self, lease: &Lease) -> Result<bool, TrainError> {
        if lease.task != LeaseTask::Train {
            return Ok(false);
        }
        if lease.hands_over.is_some() {
            return Ok(true);
        }
        if lease.to == self.rounds.schedule().total() {
            return Ok(self.state_every == 1);
        }
        let training = self.training()?;
        let lacks = || TrainError::ManifestLacks { what: format!("path {}", lease.path) };
        let tail = training.path(lease.path).ok_or_else(lacks)?.replay.len() + 1;
        let tail = tail + usize::from(self.before(lease).is_some());
        let phase_ends = training.boundaries.get(training.phase as usize);
        let carried_over = phase_ends.is_some_and(|&end| lease.to == u64::from(end) * training.inner_steps);
        let long = tail >= self.state_every as usize
            || tail * self.fragment_ids_of(lease.path).len() > MAX_REPLAY_WEIGHTS;
        Ok(long || carried_over)
    }

    /// Notes the held-out loss of the weights that a lease began with; returns whether it is the path's lowest.
    fn note_loss(&mut self, path: PathId, lease: &Lease, report: &LeaseReport) -> Result<bool, TrainError> {
        let Some(loss) = report.held_out_loss.filter(|loss| loss.is_finite()) else { return Ok(false) };
        let round = lease.from / self.rounds.schedule().inner_steps();
        let record = path_record(&mut self.manifest, path)?;
        let versions = lease.receives.iter().map(|receive| receive.version).collect();
        let measured = Best { round: u32::try_from(round).unwrap_or(u32::MAX), versions, loss };
        let best = record.best.as_ref().is_none_or(|best| loss < best.loss);
        if best {
            record.best = Some(measured.clone());
        }
        record.last = Some(measured);
        Ok(best)
    }
}

/// An item without what it says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    OuterGradient(FragmentId, u32),
    State,
}

fn key(item: LeaseResult) -> Key {
    match item {
        LeaseResult::OuterGradient { fragment, number, .. } => Key::OuterGradient(fragment, number),
        LeaseResult::State => Key::State,
    }
}
