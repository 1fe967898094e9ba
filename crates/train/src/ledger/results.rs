//! The books of what leases bring.

use std::collections::BTreeMap;

use dipaco_store::{Best, GradientRecord, ObjectRef, StretchRecord};
use dipaco_sync::{Commit, Contribution, Done, Fence, Lease, LeaseError, PathProgress, Task, Unit};
use dipaco_topology::PathId;

use super::{Completed, Ledger, TAIL, path_record};
use crate::TrainError;
use crate::protocol::{Item, Report};

impl Ledger {
    /// Notes that an item of a lease is in the store: an outer gradient that is sent before the end of its lease counts
    /// at once. When the lease is out no more, or the item counts already, it is deleted; the error says why it is not
    /// taken.
    pub(crate) fn stage(
        &mut self,
        path: PathId,
        fence: Fence,
        item: Item,
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
        let ends =
            |unit, number| lease.sends.iter().any(|s| (s.unit, s.number, s.step) == (unit, number, lease.to));
        match item {
            Item::OuterGradient { unit, number, tokens } if !ends(unit, number) => {
                match self.rounds.contribute(path, fence, unit, number, tokens) {
                    Commit::Accepted => {
                        self.note_gradient(path, unit, number, object)?;
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
        unit: Unit,
        number: u32,
        object: ObjectRef,
    ) -> Result<(), TrainError> {
        let pending = self.rounds.progress().pending.get(&unit).into_iter().flatten();
        let found = pending.copied().find(|c| (c.path, c.number) == (path, number));
        let lacks = || TrainError::ManifestLacks { what: format!("outer gradient {number} of path {path}") };
        let Contribution { base, steps, tokens, .. } = found.ok_or_else(lacks)?;
        let Unit { module, fragment } = unit;
        self.news.insert(unit);
        let slot = self.slot(unit);
        let record = path_record(&mut self.manifest, path)?;
        if let Some(counted) = record.counted.get_mut(slot) {
            counted.steps += steps;
            counted.tokens += tokens;
        }
        let gradient = GradientRecord { module, fragment, number, base, steps, tokens, object };
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
        report: &Report,
    ) -> Result<Completed, TrainError> {
        if self.closed {
            return Ok(Completed::Closed);
        }
        let lease = self.rounds.check(path, fence).ok().cloned();
        let mut items = BTreeMap::new();
        let mut done = Done { seconds: report.seconds, ..Done::default() };
        if let Some(lease) = lease.as_ref().filter(|lease| lease.task == Task::Train) {
            for (item, object) in self.staged.get(&(path, fence)).into_iter().flatten() {
                if let Item::OuterGradient { unit, tokens, .. } = *item {
                    done.tokens.insert(unit, tokens);
                }
                items.insert(key(*item), object.clone());
            }
            let last = lease.sends.iter().filter(|send| send.step == lease.to);
            let last = last.map(|s| Item::OuterGradient { unit: s.unit, number: s.number, tokens: 0 });
            let state = self.needs_state(lease)?.then_some(Item::State);
            if let Some(missing) = last.chain(state).find(|item| !items.contains_key(&key(*item))) {
                return Ok(Completed::Incomplete(missing.name()));
            }
        }
        match self.rounds.commit(path, fence, &done) {
            Commit::Duplicate => return Ok(Completed::Duplicate),
            Commit::Refused(error @ LeaseError::Owes { .. }) => {
                return Ok(Completed::Incomplete(error.to_string()));
            }
            Commit::Refused(error) => return Ok(Completed::Lost(error)),
            Commit::Accepted => {}
        }
        let lease = lease.ok_or_else(|| TrainError::ManifestLacks { what: format!("a lease of {path}") })?;
        self.staged.remove(&(path, fence));
        let mut obsolete = Vec::new();
        if lease.task == Task::Train {
            let stretch = self.stretch(&lease)?;
            let total = self.rounds.schedule().total();
            let record = path_record(&mut self.manifest, path)?;
            record.fence = Some(fence.0);
            record.tail.push(stretch);
            if lease.to == total && !items.contains_key(&Key::State) {
                // Nobody goes on with a state that has stayed with its worker to the end of the run.
                record.tail.clear();
                obsolete.extend(record.state.take().map(|object| object.name));
            }
        }
        self.note_progress(path)?;
        for (item, object) in items {
            match item {
                Key::OuterGradient(unit, number) => self.note_gradient(path, unit, number, object)?,
                Key::State => {
                    let record = path_record(&mut self.manifest, path)?;
                    record.tail.clear();
                    obsolete.extend(record.state.replace(object).map(|object| object.name));
                }
            }
        }
        let bound = !path_record(&mut self.manifest, path)?.tail.is_empty();
        self.rounds.bind(path, bound);
        let best = self.note_loss(path, &lease, report)?;
        for unit in self.units_of(path) {
            obsolete.extend(self.prune(unit)?);
        }
        self.save(obsolete);
        Ok(Completed::Accepted { lease, best })
    }

    /// The lease that is out before one that follows it.
    fn before(&self, lease: &Lease) -> Option<&Lease> {
        self.rounds.lease(lease.path).filter(|current| current.from < lease.from)
    }

    /// A lease as the path's record keeps it, before it is complete.
    pub(crate) fn stretch(&self, lease: &Lease) -> Result<StretchRecord, TrainError> {
        let lacks = || TrainError::ManifestLacks { what: format!("path {}", lease.path) };
        let adopted = &self.training()?.path(lease.path).ok_or_else(lacks)?.adopted;
        let of = |lease: &Lease, unit: &Unit| lease.receives.iter().find(|r| r.unit == *unit).copied();
        let received = |unit: &Unit| of(lease, unit);
        let before = self.before(lease);
        let units = self.units_of(lease.path);
        let adopted = units.iter().zip(adopted).map(|(unit, &adopted)| {
            before.and_then(|before| of(before, unit)).map_or(adopted, |receive| receive.version)
        });
        let versions = units.iter().zip(adopted);
        Ok(StretchRecord {
            from: lease.from,
            to: lease.to,
            versions: versions.map(|(u, adopted)| received(u).map_or(adopted, |r| r.version)).collect(),
            received: units.iter().map(|unit| received(unit).is_some()).collect(),
        })
    }

    /// Whether a lease has to bring its path's state: every so many leases, when the path changes hands, and where a phase
    /// ends that another one follows. Where the run ends nobody goes on with it, and it is brought only if each one is.
    pub(crate) fn needs_state(&self, lease: &Lease) -> Result<bool, TrainError> {
        if lease.task != Task::Train {
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
        let tail = training.path(lease.path).ok_or_else(lacks)?.tail.len() + 1;
        let tail = tail + usize::from(self.before(lease).is_some());
        let phase_ends = training.boundaries.get(training.phase as usize);
        let carried_over = phase_ends.is_some_and(|&end| lease.to == u64::from(end) * training.inner_steps);
        let long = tail >= self.state_every as usize || tail * self.units_of(lease.path).len() > TAIL;
        Ok(long || carried_over)
    }

    /// Notes the held-out loss of the weights that a lease began with; returns whether it is the path's lowest.
    fn note_loss(&mut self, path: PathId, lease: &Lease, report: &Report) -> Result<bool, TrainError> {
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
    OuterGradient(Unit, u32),
    State,
}

fn key(item: Item) -> Key {
    match item {
        Item::OuterGradient { unit, number, .. } => Key::OuterGradient(unit, number),
        Item::State => Key::State,
    }
}
