//! The run's books: every decision of the core, beside the manifest that is to record it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dipaco_store::{
    ChangeRecord, FragmentRecord, GradientRecord, KeptVersion, ObjectRef, PathRecord, RunManifest, RunStore,
    Sequence, ShardRecord, TrainingRecord, names,
};
use dipaco_sync::{
    Contribution, Fence, FragmentId, Grant, Lease, LeaseError, OuterStep, PathProgress, RunPlan, RunState,
    TrainingProgress, fragment_ids_of,
};
use dipaco_topology::{PathId, Topology};
use tokio::sync::Notify;

use crate::TrainError;
use crate::coordinator::start::check_shards;
use dipaco_protocol::LeaseResult;
use dipaco_protocol::OuterStepDone;
use dipaco_protocol::WorkerPlan;

mod checkpoints;
mod results;

use checkpoints::Checkpoints;
pub(crate) use checkpoints::read as read_checkpoint;

/// The state machine of the run beside the manifest that records it.
///
/// The [`ManifestWriter`](crate::scribe::Scribe) writes the manifest, and no answer leaves before its change is written, so that
/// what a worker has been told survives a crash. A failure to write ends the coordinator: memory would be ahead of the
/// disk, and `--resume` continues from the disk.
pub(crate) struct Ledger {
    rounds: RunState,
    manifest: RunManifest,
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
    staged: BTreeMap<(PathId, Fence), BTreeMap<LeaseResult, ObjectRef>>,
    /// Fragments to which something has been contributed since their synchronizer has looked.
    news: BTreeSet<FragmentId>,
    /// What the run can go back to.
    checkpoints: Checkpoints,
    /// Whether the coordinator stops: nothing counts from now on.
    closed: bool,
}

/// What there is to write down.
pub(crate) struct PendingWrite {
    /// A checkpoint that the manifest refers to, to be written before it.
    pub(crate) checkpoint: Option<(ObjectRef, Bytes)>,
    /// The manifest, when it has changed.
    pub(crate) manifest: Option<RunManifest>,
    /// The number of its last change.
    pub(crate) change: u64,
    /// Objects that can be deleted when it is written.
    pub(crate) obsolete: Vec<String>,
}

/// Weights that the leases since a path's last state may name together: they are sent with each of its leases.
const MAX_REPLAY_WEIGHTS: usize = 2_000;

/// The answer to a finished lease.
#[derive(Debug)]
pub(crate) enum LeaseCompletion {
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
        store: &RunStore,
        mut manifest: RunManifest,
        sequence: Sequence,
        topology: Topology,
        plan: &WorkerPlan,
        lease: Duration,
        changed: Arc<Notify>,
    ) -> Result<(Self, Sequence), TrainError> {
        manifest.incarnation += 1;
        let training = manifest.training.as_ref().ok_or(TrainError::NotStarted)?;
        let (state_every, kept) = (plan.train.state_every, plan.train.checkpoints);
        let sampling = plan.sync.shard_sampling.then_some(plan.seed);
        let plan = RunPlan {
            schedule: plan.schedule()?,
            scheme: plan.sync.scheme(),
            phase: training.phase as usize,
            lease,
        };
        let mut rounds = RunState::new(topology, plan, progress(training), manifest.incarnation)?;
        for (path, record) in (0..).map(PathId).zip(&training.paths) {
            rounds.bind(path, !record.replay.is_empty());
        }
        if let Some(seed) = sampling {
            rounds.sample_shards(seed, shard_tokens(training));
        }
        // Listed before the manifest is replaced: what is there now can't belong to a coordinator after this one.
        let stored = stored(store).await?;
        let checkpoints = Checkpoints::load(store, &manifest, kept).await?;
        manifest.checkpoints = checkpoints.records();
        let sequence = store.replace(&manifest, sequence).await?;
        let staged = BTreeMap::new();
        let news = rounds.progress().pending.keys().copied().collect();
        let mut ledger = Self {
            rounds,
            manifest,
            changes: 0,
            obsolete: Vec::new(),
            changed,
            state_every,
            sampling,
            staged,
            news,
            checkpoints,
            closed: false,
        };
        // What a crashed coordinator left behind.
        ledger.delete_unused(stored)?;
        Ok((ledger, sequence))
    }

    /// The number of the last change.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// What there is to write down when the changes up to `written` are on the disk.
    pub(crate) fn page(&mut self, written: u64) -> Result<PendingWrite, TrainError> {
        let checkpoint = if self.changes > written { self.checkpoint()? } else { None };
        Ok(PendingWrite {
            checkpoint,
            manifest: (self.changes > written).then(|| self.manifest.clone()),
            change: self.changes,
            obsolete: std::mem::take(&mut self.obsolete),
        })
    }

    /// Notes that the manifest has changed, and what it refers to no more.
    fn save(&mut self, obsolete: Vec<String>) {
        self.changes += 1;
        // What a checkpoint refers to goes with the checkpoint.
        self.obsolete.extend(obsolete.into_iter().filter(|name| !self.checkpoints.hold(name)));
        self.changed.notify_one();
    }

    /// Those of these names to which neither the manifest nor a checkpoint refers.
    fn unused(&self, names: impl IntoIterator<Item = String>) -> Result<Vec<String>, TrainError> {
        let used: BTreeSet<_> = self.training()?.objects().map(|object| &object.name).collect();
        let unused = |name: &String| !used.contains(name) && !self.checkpoints.hold(name);
        Ok(names.into_iter().filter(unused).collect())
    }

    /// Has the scribe delete what has been made or brought in vain. A late repetition of what counts must not take it
    /// away.
    pub(crate) fn delete_unused(
        &mut self,
        names: impl IntoIterator<Item = String>,
    ) -> Result<(), TrainError> {
        let unused = self.unused(names)?;
        self.obsolete.extend(unused);
        self.changed.notify_one();
        Ok(())
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

    pub(crate) fn rounds(&self) -> &RunState {
        &self.rounds
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.manifest.incarnation
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

    /// Fragments of those that are asked for to which something has been contributed since the last question.
    pub(crate) fn take_news(&mut self, asked: impl Fn(FragmentId) -> bool) -> Vec<FragmentId> {
        self.news.extract_if(.., |fragment| asked(*fragment)).collect()
    }

    /// Ends a lease unfinished and deletes what it has brought; returns whether it was out.
    pub(crate) fn release(&mut self, path: PathId, fence: Fence) -> bool {
        let held = self.rounds.release(path, fence);
        if held {
            self.discard(path);
        }
        held
    }

    /// Ends the leases whose deadline has passed, and deletes what they have brought.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<Lease> {
        let expired = self.rounds.expire(now);
        for lease in &expired {
            self.discard(lease.path);
        }
        expired
    }

    fn discard(&mut self, path: PathId) {
        let of_path = |(staged, _): &(PathId, Fence)| *staged == path;
        let leases: Vec<_> = self.staged.keys().copied().filter(of_path).collect();
        let staged = leases.into_iter().filter_map(|lease| self.staged.remove(&lease)).flatten();
        self.obsolete.extend(staged.map(|(_, object)| object.name));
        self.changed.notify_one();
    }

    /// The place of a fragment in the lists of its paths' records.
    fn slot(&self, fragment: FragmentId) -> usize {
        fragment.slot(self.rounds.schedule().fragments())
    }

    fn fragment_ids_of(&self, path: PathId) -> Vec<FragmentId> {
        fragment_ids_of(self.rounds.topology(), self.rounds.schedule().fragments(), path)
    }

    /// Takes an outer step into the books: what it made is in the store.
    pub(crate) fn stepped(&mut self, step: &OuterStep, done: &OuterStepDone) -> Result<(), TrainError> {
        if self.closed {
            return Err(TrainError::Cancelled);
        }
        let fragment = step.fragment;
        // What another process says it took may be any number.
        let took = Duration::try_from_secs_f64(done.seconds).unwrap_or_default();
        if !self.rounds.stepped(step, took) {
            let what = format!("what outer step {} of {fragment} merged", step.version);
            return Err(TrainError::ManifestLacks { what });
        }
        let OuterStepDone { weights, momentum, change, .. } = done.clone();
        let mut obsolete = Vec::new();
        let record = fragment_record(&mut self.manifest, fragment)?;
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
                (g.module, g.fragment, g.number) == (fragment.module, fragment.index, contribution.number)
            };
            let (used, left): (Vec<_>, Vec<_>) =
                std::mem::take(&mut record.gradients).into_iter().partition(merged);
            record.gradients = left;
            obsolete.extend(used.into_iter().map(|gradient| gradient.object.name));
        }
        obsolete.extend(self.prune(fragment)?);
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
        let fragments: Vec<FragmentId> = self.rounds.progress().versions.keys().copied().collect();
        for fragment in fragments {
            obsolete.extend(self.prune(fragment)?);
        }
        self.save(obsolete);
        self.rounds.go_on(phase);
        Ok(())
    }

    /// Drops the earlier versions of a fragment that no path trains on and that are the best of none, and returns their
    /// objects.
    fn prune(&mut self, fragment: FragmentId) -> Result<Vec<String>, TrainError> {
        let slot = self.slot(fragment);
        let mut needed = self.rounds.needed_versions(fragment);
        let training = self.training()?;
        for path in self.rounds.topology().paths_through(fragment.module) {
            let Some(record) = training.path(path) else { continue };
            needed.extend(record.best.as_ref().and_then(|best| best.versions.get(slot)));
            needed.extend(record.replay.iter().filter_map(|stretch| stretch.versions.get(slot)));
        }
        let record = fragment_record(&mut self.manifest, fragment)?;
        let (kept, dropped): (Vec<_>, Vec<_>) =
            std::mem::take(&mut record.kept).into_iter().partition(|kept| needed.contains(&kept.version));
        record.kept = kept;
        Ok(dropped.into_iter().map(|kept| kept.weights.name).collect())
    }
}

/// Tokens in the shard of each path.
pub(crate) fn shard_tokens(training: &TrainingRecord) -> Vec<u64> {
    training.shards.iter().map(|shard| shard.tokens).collect()
}

/// The names of all objects of a training run that are in the store.
async fn stored(store: &RunStore) -> Result<Vec<String>, TrainError> {
    let mut stored = Vec::new();
    let outer_steps = [names::OUTER_GRADIENTS, names::MODULES, names::MOMENTA, names::CHANGES];
    for prefix in outer_steps.into_iter().chain([names::PATHS, names::CHECKPOINTS]) {
        stored.extend(store.list(prefix).await?.into_iter().map(|object| object.name));
    }
    Ok(stored)
}

fn path_record(manifest: &mut RunManifest, path: PathId) -> Result<&mut PathRecord, TrainError> {
    let training = manifest.training.as_mut().ok_or(TrainError::NotStarted)?;
    let record = training.paths.get_mut(path.index());
    record.ok_or_else(|| TrainError::ManifestLacks { what: format!("path {path}") })
}

fn fragment_record(
    manifest: &mut RunManifest,
    fragment: FragmentId,
) -> Result<&mut FragmentRecord, TrainError> {
    let training = manifest.training.as_mut().ok_or(TrainError::NotStarted)?;
    let module = training.modules.iter_mut().find(|record| record.module == fragment.module);
    let record = module.and_then(|module| module.fragments.get_mut(fragment.index as usize));
    record.ok_or_else(|| TrainError::ManifestLacks { what: format!("fragment {fragment}") })
}

/// What the manifest says of a run's progress, as the core takes it.
fn progress(training: &TrainingRecord) -> TrainingProgress {
    let mut progress = TrainingProgress {
        versions: BTreeMap::new(),
        paths: Vec::new(),
        pending: BTreeMap::<_, Vec<_>>::new(),
    };
    for module in &training.modules {
        for (fragment, record) in (0..).zip(&module.fragments) {
            progress.versions.insert(FragmentId { module: module.module, index: fragment }, record.version);
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
            let fragment = FragmentId { module, index: fragment };
            let contribution = Contribution { path, number, base, steps, tokens };
            progress.pending.entry(fragment).or_default().push(contribution);
        }
    }
    progress.pending.values_mut().for_each(|pending| pending.sort_unstable());
    progress
}
