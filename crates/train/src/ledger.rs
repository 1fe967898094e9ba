//! The run's books: every decision of the core, beside the manifest that is to record it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dipaco_store::{
    Best, ChangeRecord, FragmentRecord, GradientRecord, KeptVersion, ObjectRef, PathRecord, RunManifest,
    RunStore, Sequence, ShardRecord, StretchRecord, TrainingRecord, names,
};
use dipaco_sync::{
    Commit, Contribution, Done, Fence, Grant, Lease, LeaseError, OuterStep, PathProgress, Plan, Progress,
    Rounds, Task, Unit, units_of,
};
use dipaco_topology::{PathId, Topology};
use tokio::sync::Notify;

use crate::TrainError;
use crate::plan::WorkerPlan;
use crate::protocol::{Item, Report};
use crate::start::check_shards;

/// The state machine of the run beside the manifest that records it.
///
/// The [`Scribe`](crate::scribe::Scribe) writes the manifest, and no answer leaves before its change is written, so that
/// what a worker has been told survives a crash. A failure to write ends the coordinator: memory would be ahead of the
/// disk, and `--resume` continues from the disk.
pub(crate) struct Ledger {
    rounds: Rounds,
    manifest: RunManifest,
    store: RunStore,
    /// Changes of the manifest under this coordinator.
    changes: u64,
    /// Objects that the manifest refers to no more, and the one on the disk may.
    obsolete: Vec<String>,
    /// Wakes the scribe.
    changed: Arc<Notify>,
    /// Leases of a path between two states that are brought.
    state_every: u32,
    /// The seed of shard sampling, when paths are drawn.
    sampling: Option<u64>,
    /// What has been brought for the end of a lease that is still out.
    staged: BTreeMap<(PathId, Fence), BTreeMap<Item, ObjectRef>>,
    /// Whether the coordinator stops: nothing counts from now on.
    closed: bool,
}

/// What there is to write down.
pub(crate) struct Page {
    /// The manifest, when it has changed.
    pub(crate) manifest: Option<RunManifest>,
    /// The number of its last change.
    pub(crate) change: u64,
    /// Objects that can be deleted when it is written.
    pub(crate) obsolete: Vec<String>,
}

/// Weights that the leases since a path's last state may name together: they are sent with each of its leases.
const TAIL: usize = 2_000;

/// The answer to a finished lease.
#[derive(Debug)]
pub(crate) enum Completed {
    /// It counts, and is on the disk.
    Accepted {
        /// The lease that is complete.
        lease: Lease,
        /// Whether it began with the best weights of the path so far.
        best: bool,
    },
    /// It had been accepted before.
    Duplicate,
    /// It does not count.
    Lost(LeaseError),
    /// It does not count: the coordinator stops.
    Closed,
    /// Something that the lease had to bring is missing.
    Incomplete(String),
}

impl Ledger {
    /// Takes a run over: raises the incarnation, so that fencing numbers are new and a coordinator that still
    /// believes to hold the run fails at its next write. Returns the place of the manifest on the disk too; `changed` is
    /// woken when there is something to write.
    pub(crate) async fn take_over(
        store: RunStore,
        mut manifest: RunManifest,
        sequence: Sequence,
        topology: Topology,
        plan: &WorkerPlan,
        lease: Duration,
        changed: Arc<Notify>,
    ) -> Result<(Self, Sequence), TrainError> {
        manifest.incarnation += 1;
        let training = manifest.training.as_ref().ok_or(TrainError::NotStarted)?;
        let state_every = plan.train.state_every;
        let sampling = plan.sync.shard_sampling.then_some(plan.seed);
        let plan = Plan {
            schedule: plan.schedule()?,
            scheme: plan.sync.scheme(),
            phase: training.phase as usize,
            lease,
        };
        let mut rounds = Rounds::new(topology, plan, progress(training), manifest.incarnation)?;
        for (path, record) in (0..).map(PathId).zip(&training.paths) {
            rounds.bind(path, !record.tail.is_empty());
        }
        if let Some(seed) = sampling {
            rounds.sample_shards(seed, shard_tokens(training));
        }
        // Listed before the manifest is replaced: what is there now can't belong to a coordinator after this one.
        let stored = stored(&store).await?;
        let sequence = store.replace(&manifest, sequence).await?;
        let staged = BTreeMap::new();
        let ledger = Self {
            rounds,
            manifest,
            store,
            changes: 0,
            obsolete: Vec::new(),
            changed,
            state_every,
            sampling,
            staged,
            closed: false,
        };
        ledger.sweep(stored).await?;
        Ok((ledger, sequence))
    }

    /// The number of the last change.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// What there is to write down when the changes up to `written` are on the disk.
    pub(crate) fn page(&mut self, written: u64) -> Page {
        Page {
            manifest: (self.changes > written).then(|| self.manifest.clone()),
            change: self.changes,
            obsolete: std::mem::take(&mut self.obsolete),
        }
    }

    /// Notes that the manifest has changed, and what it refers to no more.
    fn save(&mut self, obsolete: Vec<String>) {
        self.changes += 1;
        self.obsolete.extend(obsolete);
        self.changed.notify_one();
    }

    /// Deletes what a crashed coordinator left behind: those of `stored` that the manifest does not refer to.
    async fn sweep(&self, stored: Vec<String>) -> Result<(), TrainError> {
        let training = self.training()?;
        let mut used = BTreeSet::new();
        for fragment in training.modules.iter().flat_map(|module| &module.fragments) {
            used.insert(&fragment.weights.name);
            used.extend(fragment.momentum.iter().map(|object| &object.name));
            used.extend(fragment.kept.iter().map(|kept| &kept.weights.name));
            used.extend(fragment.changes.iter().map(|change| &change.object.name));
        }
        for path in &training.paths {
            used.extend(path.state.iter().map(|object| &object.name));
            used.extend(path.gradients.iter().map(|gradient| &gradient.object.name));
        }
        let unused: Vec<_> = stored.into_iter().filter(|name| !used.contains(name)).collect();
        self.delete(&unused).await
    }

    /// Ends the books: what comes after this is told that its lease is lost.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn training(&self) -> Result<&TrainingRecord, TrainError> {
        self.manifest.training.as_ref().ok_or(TrainError::NotStarted)
    }

    fn training_mut(manifest: &mut RunManifest) -> Result<&mut TrainingRecord, TrainError> {
        manifest.training.as_mut().ok_or(TrainError::NotStarted)
    }

    pub(crate) fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    pub(crate) fn run(&self) -> &str {
        &self.manifest.run
    }

    pub(crate) fn grant(&mut self, now: Duration, worker: &str, held: &[PathId]) -> Grant {
        let grant = self.rounds.grant(now, worker, held);
        if let Grant::Lease(lease) = &grant {
            self.staged.insert((lease.path, lease.fence), BTreeMap::new());
        }
        grant
    }

    /// The lease that comes after one that is out, as soon as it can be given.
    pub(crate) fn follow(&mut self, now: Duration, path: PathId, fence: Fence) -> Result<Grant, LeaseError> {
        let grant = self.rounds.follow(now, path, fence)?;
        if let Grant::Lease(lease) = &grant {
            self.staged.entry((lease.path, lease.fence)).or_default();
        }
        Ok(grant)
    }

    pub(crate) fn heartbeat(&mut self, now: Duration, path: PathId, fence: Fence) -> Result<(), LeaseError> {
        self.rounds.heartbeat(now, path, fence).map(|_| ())
    }

    pub(crate) fn check(&self, path: PathId, fence: Fence) -> Result<&Lease, LeaseError> {
        self.rounds.check(path, fence)
    }

    /// The outer steps that can be taken now.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<OuterStep> {
        self.rounds.due(now)
    }

    /// Ends a lease unfinished and deletes what it has brought; returns whether it was out.
    pub(crate) async fn release(&mut self, path: PathId, fence: Fence) -> Result<bool, TrainError> {
        let held = self.rounds.release(path, fence);
        if held {
            self.discard(path).await?;
        }
        Ok(held)
    }

    /// Ends the leases whose deadline has passed, and deletes what they have brought.
    pub(crate) async fn expire(&mut self, now: Duration) -> Result<Vec<Lease>, TrainError> {
        let expired = self.rounds.expire(now);
        for lease in &expired {
            self.discard(lease.path).await?;
        }
        Ok(expired)
    }

    async fn discard(&mut self, path: PathId) -> Result<(), TrainError> {
        let of_path = |(staged, _): &(PathId, Fence)| *staged == path;
        let leases: Vec<_> = self.staged.keys().copied().filter(of_path).collect();
        let staged = leases.into_iter().filter_map(|lease| self.staged.remove(&lease)).flatten();
        let names: Vec<_> = staged.map(|(_, object)| object.name).collect();
        self.delete(&names).await
    }

    /// Notes that an item of a lease is in the store: an outer gradient that is sent before the end of its lease counts
    /// at once. When the lease is out no more, or the item counts already, it is deleted; the error says why it is not
    /// taken.
    pub(crate) async fn stage(
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
                self.delete_unless_counted(path, object).await?;
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
                    Commit::Duplicate => self.delete_unless_counted(path, object).await?,
                    Commit::Refused(error) => {
                        self.delete_unless_counted(path, object).await?;
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

    /// Deletes an object that a path brought in vain. A late repetition of what has counted since must not take it away.
    async fn delete_unless_counted(&self, path: PathId, object: ObjectRef) -> Result<(), TrainError> {
        let counts = self.training()?.paths.get(path.index()).is_some_and(|record| {
            let gradients = record.gradients.iter().map(|gradient| &gradient.object);
            record.state.iter().chain(gradients).any(|counted| counted.name == object.name)
        });
        if counts { Ok(()) } else { self.delete(&[object.name]).await }
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
        if lease.task == Task::Train {
            let stretch = self.stretch(&lease)?;
            let record = path_record(&mut self.manifest, path)?;
            record.fence = Some(fence.0);
            record.tail.push(stretch);
        }
        self.note_progress(path)?;
        let mut obsolete = Vec::new();
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

    /// Whether a lease has to bring its path's state: every so many leases, and where a phase or the run ends.
    pub(crate) fn needs_state(&self, lease: &Lease) -> Result<bool, TrainError> {
        let training = self.training()?;
        let lacks = || TrainError::ManifestLacks { what: format!("path {}", lease.path) };
        let tail = training.path(lease.path).ok_or_else(lacks)?.tail.len() + 1;
        let tail = tail + usize::from(self.before(lease).is_some());
        let end = u64::from(training.phase_end()) * training.inner_steps;
        let long = tail >= self.state_every as usize || tail * self.units_of(lease.path).len() > TAIL;
        Ok(lease.task == Task::Train && (long || lease.to == end))
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

    /// The place of a fragment in the lists of its paths' records.
    fn slot(&self, unit: Unit) -> usize {
        unit.slot(self.rounds.schedule().fragments())
    }

    fn units_of(&self, path: PathId) -> Vec<Unit> {
        units_of(self.rounds.topology(), self.rounds.schedule().fragments(), path)
    }

    /// Takes an outer step into the books: the new weights and the momentum are in the store. Returns whether it counts.
    pub(crate) fn stepped(
        &mut self,
        step: &OuterStep,
        weights: ObjectRef,
        momentum: ObjectRef,
        change: Option<ObjectRef>,
        took: Duration,
    ) -> Result<(), TrainError> {
        if self.closed {
            return Err(TrainError::Cancelled);
        }
        let unit = step.unit;
        if !self.rounds.stepped(step, took) {
            let what = format!("what outer step {} of {unit} merged", step.version);
            return Err(TrainError::ManifestLacks { what });
        }
        let mut obsolete = Vec::new();
        let record = fragment_record(&mut self.manifest, unit)?;
        let before = std::mem::replace(&mut record.weights, weights);
        if let Some(object) = change {
            record.changes.push(ChangeRecord { from: before.hash.clone(), version: step.version, object });
            // Together they are to be shorter than the weights.
            let bytes =
                |changes: &[ChangeRecord]| changes.iter().map(|change| change.object.bytes).sum::<u64>();
            while bytes(&record.changes) >= record.weights.bytes && !record.changes.is_empty() {
                obsolete.push(record.changes.remove(0).object.name);
            }
        }
        record.kept.push(KeptVersion { version: record.version, weights: before });
        obsolete.extend(record.momentum.replace(momentum).map(|object| object.name));
        record.version = step.version;
        for contribution in &step.contributions {
            let record = path_record(&mut self.manifest, contribution.path)?;
            let merged = |g: &GradientRecord| {
                (g.module, g.fragment, g.number) == (unit.module, unit.fragment, contribution.number)
            };
            let (used, left): (Vec<_>, Vec<_>) =
                std::mem::take(&mut record.gradients).into_iter().partition(merged);
            record.gradients = left;
            obsolete.extend(used.into_iter().map(|gradient| gradient.object.name));
        }
        obsolete.extend(self.prune(unit)?);
        self.save(obsolete);
        Ok(())
    }

    /// Begins the next phase with these shards. Paths keep their states; their early-stopping bests are forgotten, with
    /// the versions that only those needed, because they were measured on other documents.
    ///
    /// # Errors
    /// When the run is not at a boundary, or the shards are not those of its paths.
    pub(crate) fn begin_phase(&mut self, shards: Vec<ShardRecord>) -> Result<(), TrainError> {
        if self.closed {
            return Err(TrainError::Cancelled);
        }
        check_shards(self.rounds.topology(), &shards)?;
        let training = Self::training_mut(&mut self.manifest)?;
        if !training.at_boundary() {
            return Err(TrainError::NotAtBoundary { round: training.phase_end() });
        }
        training.phase += 1;
        training.shards = shards;
        for path in &mut training.paths {
            (path.best, path.last) = (None, None);
        }
        let phase = training.phase as usize;
        if let Some(seed) = self.sampling {
            self.rounds.sample_shards(seed, shard_tokens(training));
        }
        let mut obsolete = Vec::new();
        let units: Vec<Unit> = self.rounds.progress().versions.keys().copied().collect();
        for unit in units {
            obsolete.extend(self.prune(unit)?);
        }
        self.save(obsolete);
        self.rounds.go_on(phase);
        Ok(())
    }

    /// Drops the earlier versions of a fragment that no path trains on and that are the best of none, and returns their
    /// objects.
    fn prune(&mut self, unit: Unit) -> Result<Vec<String>, TrainError> {
        let slot = self.slot(unit);
        let mut needed = self.rounds.needed_versions(unit);
        let training = self.training()?;
        for path in self.rounds.topology().paths_through(unit.module) {
            let Some(record) = training.path(path) else { continue };
            needed.extend(record.best.as_ref().and_then(|best| best.versions.get(slot)));
            needed.extend(record.tail.iter().filter_map(|stretch| stretch.versions.get(slot)));
        }
        let record = fragment_record(&mut self.manifest, unit)?;
        let (kept, dropped): (Vec<_>, Vec<_>) =
            std::mem::take(&mut record.kept).into_iter().partition(|kept| needed.contains(&kept.version));
        record.kept = kept;
        Ok(dropped.into_iter().map(|kept| kept.weights.name).collect())
    }

    async fn delete(&self, names: &[String]) -> Result<(), TrainError> {
        for name in names {
            self.store.delete(name).await?;
        }
        Ok(())
    }
}

/// Tokens in the shard of each path.
pub(crate) fn shard_tokens(training: &TrainingRecord) -> Vec<u64> {
    training.shards.iter().map(|shard| shard.tokens).collect()
}

/// The names of all objects of a training run that are in the store.
async fn stored(store: &RunStore) -> Result<Vec<String>, TrainError> {
    let mut stored = Vec::new();
    for prefix in [names::OUTER_GRADIENTS, names::PATHS, names::MODULES, names::MOMENTA, names::CHANGES] {
        stored.extend(store.list(prefix).await?.into_iter().map(|object| object.name));
    }
    Ok(stored)
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

fn path_record(manifest: &mut RunManifest, path: PathId) -> Result<&mut PathRecord, TrainError> {
    let training = manifest.training.as_mut().ok_or(TrainError::NotStarted)?;
    let record = training.paths.get_mut(path.index());
    record.ok_or_else(|| TrainError::ManifestLacks { what: format!("path {path}") })
}

fn fragment_record(manifest: &mut RunManifest, unit: Unit) -> Result<&mut FragmentRecord, TrainError> {
    let training = manifest.training.as_mut().ok_or(TrainError::NotStarted)?;
    let module = training.modules.iter_mut().find(|record| record.module == unit.module);
    let record = module.and_then(|module| module.fragments.get_mut(unit.fragment as usize));
    record.ok_or_else(|| TrainError::ManifestLacks { what: format!("fragment {unit}") })
}

/// What the manifest says of a run's progress, as the core takes it.
fn progress(training: &TrainingRecord) -> Progress {
    let mut progress =
        Progress { versions: BTreeMap::new(), paths: Vec::new(), pending: BTreeMap::<_, Vec<_>>::new() };
    for module in &training.modules {
        for (fragment, record) in (0..).zip(&module.fragments) {
            progress.versions.insert(Unit { module: module.module, fragment }, record.version);
        }
    }
    for (path, record) in (0..).map(PathId).zip(&training.paths) {
        progress.paths.push(PathProgress {
            steps: record.steps,
            measured: record.measured,
            sent: record.sent.clone(),
            adopted: record.adopted.clone(),
        });
        for gradient in &record.gradients {
            let GradientRecord { module, fragment, number, base, steps, tokens, .. } = *gradient;
            let unit = Unit { module, fragment };
            let contribution = Contribution { path, number, base, steps, tokens };
            progress.pending.entry(unit).or_default().push(contribution);
        }
    }
    progress.pending.values_mut().for_each(|pending| pending.sort_unstable());
    progress
}
