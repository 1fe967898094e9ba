//! The ledger of a run: its state machine and the manifest that records every decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dipaco_store::{
    ChangeRecord, GradientRecord, KeptVersion, ManifestSequence, RunManifest, RunStore, ShardRecord,
    TrainingRecord,
};
use dipaco_sync::{
    Fence, FragmentId, Grant, Guard, Lease, LeaseClaim, LeaseError, LeaseLimits, LeaseRequest, LeaseSecret,
    OuterStep, RunPlan, RunState, fragment_ids_of,
};
use dipaco_topology::{PathId, Topology};
use tokio::sync::Notify;

use crate::coordinator::error::CoordinatorError;
use crate::coordinator::start::check_shards;
use dipaco_protocol::{LeaseResult, OuterStepDone, WorkerPlan};

mod checkpoints;
mod records;
mod results;

pub(crate) use checkpoints::{CheckpointContent, is_damage, read_checkpoint};
use checkpoints::{Checkpoints, NewCheckpoint};
pub(crate) use records::shard_tokens;
use records::{fragment_record, no_training, path_record, progress, stored_names, training_mut};
use results::ReceivedResult;
pub(crate) use results::Recording;

/// The state machine of the run and the manifest that records it.
///
/// The [`ManifestWriter`](crate::coordinator::manifest_writer::ManifestWriter) writes the manifest. No answer leaves
/// before its change is on the disk, so a change that a worker knows of survives a crash. A failed write ends the
/// coordinator, because memory would be ahead of the disk; `--resume` continues from the disk.
pub(crate) struct Ledger {
    state: RunState,
    manifest: RunManifest,
    /// Number of changes of the manifest under this coordinator.
    changes: u64,
    /// Objects that the manifest does not refer to any more. The manifest on the disk may still refer to them.
    obsolete: Vec<String>,
    /// Wakes the manifest writer.
    changed: Arc<Notify>,
    /// Number of leases of a path after which it uploads its state.
    state_every: u32,
    /// Seed of shard sampling; `None` if every path is trained in turn.
    sampling: Option<u64>,
    /// Results of the granted leases that are in the store, without their numbers of tokens.
    received: BTreeMap<(PathId, Fence), BTreeMap<LeaseResult, ReceivedResult>>,
    /// Refuses outer gradients that are far larger than those that count.
    guard: Guard,
    /// Fragments with contributions that their synchronizer has not been told of.
    news: BTreeSet<FragmentId>,
    /// Earlier rounds to which the run can go back.
    checkpoints: Checkpoints,
    /// True when the coordinator stops: nothing counts from then on.
    closed: bool,
}

/// The next write of the manifest.
pub(crate) struct PendingWrite {
    /// A checkpoint to which the manifest refers, to be written before it.
    pub(crate) checkpoint: Option<NewCheckpoint>,
    /// The manifest; `None` if it has not changed.
    pub(crate) manifest: Option<RunManifest>,
    /// Number of the last change in the manifest.
    pub(crate) change: u64,
    /// Objects that can be deleted after the write.
    pub(crate) obsolete: Vec<String>,
}

/// Number of weights that the leases since a path's last state may refer to. Every lease of the path lists them all for
/// a worker that must replay them, so this bounds its message.
const MAX_REPLAY_WEIGHTS: usize = 2_000;

/// Leases that a process has at a time: while it uploads the results of one, it trains the next.
const LEASES_OF_A_PROCESS: usize = 2;

/// The answer to a finished lease.
#[derive(Debug)]
pub(crate) enum LeaseCompletion {
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
}

impl Ledger {
    /// Takes a run over. Raises the incarnation, so fencing numbers are new, and an earlier coordinator that still runs
    /// fails at its next write. Also returns the sequence number of the manifest on the disk. `changed` is notified by
    /// every change.
    pub(crate) async fn take_over(
        store: &RunStore,
        mut manifest: RunManifest,
        sequence: ManifestSequence,
        topology: Topology,
        plan: &WorkerPlan,
        changed: Arc<Notify>,
    ) -> Result<(Self, ManifestSequence), CoordinatorError> {
        manifest.incarnation += 1;
        let training = manifest.training.as_ref().ok_or(CoordinatorError::NotStarted)?;
        let (state_every, kept) = (plan.train.state_every, plan.train.checkpoints);
        let sampling = plan.sync.shard_sampling.then_some(plan.seed);
        let guard = Guard::new(plan.outer.guard);
        let limits = LeaseLimits {
            silence: Duration::from_secs(plan.train.lease_seconds),
            standstill: Duration::from_secs(plan.train.standstill_seconds),
            per_worker: LEASES_OF_A_PROCESS,
            step_tokens: plan.train.batch.saturating_mul(plan.train.sequence_tokens) as u64,
        };
        let plan = RunPlan {
            schedule: plan.schedule()?,
            scheme: plan.sync.scheme(),
            phase: training.phase as usize,
            limits,
        };
        let mut state = RunState::new(topology, plan, progress(training), manifest.incarnation)?;
        for (path, record) in (0..).map(PathId).zip(&training.paths) {
            state.bind(path, !record.replay.is_empty());
        }
        if let Some(seed) = sampling {
            state.sample_shards(seed, shard_tokens(training));
        }
        // Listed before the manifest is replaced: no object of the list can belong to a later coordinator.
        let stored = stored_names(store).await?;
        let checkpoints = Checkpoints::load(store, &manifest, kept).await?;
        manifest.checkpoints = checkpoints.records();
        let sequence = store.replace(&manifest, sequence).await?;
        let news = state.progress().pending.keys().copied().collect();
        let mut ledger = Self {
            state,
            manifest,
            changes: 0,
            obsolete: Vec::new(),
            changed,
            state_every,
            sampling,
            received: BTreeMap::new(),
            guard,
            news,
            checkpoints,
            closed: false,
        };
        // Objects that a crashed coordinator left behind.
        ledger.delete_unused(stored)?;
        Ok((ledger, sequence))
    }

    /// The number of the last change.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// The next write when the changes up to `written` are on the disk.
    pub(crate) fn pending_write(&mut self, written: u64) -> Result<PendingWrite, CoordinatorError> {
        let checkpoint = if self.changes > written { self.take_checkpoint()? } else { None };
        Ok(PendingWrite {
            checkpoint,
            manifest: (self.changes > written).then(|| self.manifest.clone()),
            change: self.changes,
            obsolete: std::mem::take(&mut self.obsolete),
        })
    }

    /// Notes a change of the manifest, after which it does not refer to `obsolete` any more.
    fn note_change(&mut self, obsolete: Vec<String>) {
        self.changes += 1;
        // Objects of a checkpoint are deleted with the checkpoint.
        self.obsolete.extend(obsolete.into_iter().filter(|name| !self.checkpoints.need(name)));
        self.changed.notify_one();
    }

    /// The names to which neither the manifest nor a checkpoint refers.
    fn unused(&self, names: impl IntoIterator<Item = String>) -> Result<Vec<String>, CoordinatorError> {
        let used: BTreeSet<_> = self.training()?.objects().map(|object| &object.name).collect();
        let unused = |name: &String| !used.contains(name) && !self.checkpoints.need(name);
        Ok(names.into_iter().filter(unused).collect())
    }

    /// Has the manifest writer delete objects that do not count. Keeps objects that the manifest or a checkpoint needs: a
    /// late repetition of an accepted result names the accepted object.
    pub(crate) fn delete_unused(
        &mut self,
        names: impl IntoIterator<Item = String>,
    ) -> Result<(), CoordinatorError> {
        let unused = self.unused(names)?;
        self.obsolete.extend(unused);
        self.changed.notify_one();
        Ok(())
    }

    /// Closes the ledger. Later results are answered as if their lease were lost.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn training(&self) -> Result<&TrainingRecord, CoordinatorError> {
        self.manifest.training.as_ref().ok_or_else(no_training)
    }

    /// The state machine.
    pub(crate) fn state(&self) -> &RunState {
        &self.state
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.manifest.incarnation
    }

    pub(crate) fn run(&self) -> &str {
        &self.manifest.run
    }

    /// Grants a lease to a worker that holds the states of the paths of its request.
    pub(crate) fn grant(&mut self, now: Duration, request: &LeaseRequest<'_>) -> Grant {
        self.state.grant(now, request)
    }

    /// Grants the lease that follows a lease that is out.
    pub(crate) fn follow(
        &mut self,
        now: Duration,
        claim: &LeaseClaim,
        secret: LeaseSecret,
    ) -> Result<Grant, LeaseError> {
        self.state.follow(now, claim, secret)
    }

    /// Renews a lease whose worker has taken `step` inner steps of it, after it repeated steps of earlier leases. A
    /// worker may report any number: it counts up to the steps that the lease can have.
    pub(crate) fn heartbeat(
        &mut self,
        now: Duration,
        claim: &LeaseClaim,
        step: u64,
        repeated: u64,
    ) -> Result<(), LeaseError> {
        let record = self.manifest.training.as_ref().and_then(|training| training.path(claim.key.path));
        let replay = record.map_or(0, |record| record.replay.iter().map(|lease| lease.to - lease.from).sum());
        let steps = self.state.schedule().total();
        let taken = step.min(steps).saturating_add(repeated.min(replay));
        self.state.heartbeat(now, claim, taken).map(|_| ())
    }

    /// True if a claim names a current lease.
    pub(crate) fn is_out(&self, claim: &LeaseClaim) -> bool {
        self.state.check(claim).is_ok()
    }

    /// The outer steps that can be taken now.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<OuterStep> {
        self.state.due(now)
    }

    /// Removes and returns the selected fragments with contributions since the last call.
    pub(crate) fn remove_news(&mut self, selected: impl Fn(FragmentId) -> bool) -> Vec<FragmentId> {
        self.news.extract_if(.., |fragment| selected(*fragment)).collect()
    }

    /// Ends a lease unfinished and deletes its results. Returns true if it was out.
    pub(crate) fn release(&mut self, path: PathId, fence: Fence) -> Result<bool, CoordinatorError> {
        let held = self.state.release(path, fence);
        if held {
            self.discard_received(path)?;
        }
        Ok(held)
    }

    /// Ends the leases whose deadline has passed, and deletes their results.
    pub(crate) fn expire(&mut self, now: Duration) -> Result<Vec<Lease>, CoordinatorError> {
        let expired = self.state.expire(now);
        for lease in &expired {
            self.discard_received(lease.path)?;
        }
        Ok(expired)
    }

    /// Deletes the results of the leases of this path that do not count.
    fn discard_received(&mut self, path: PathId) -> Result<(), CoordinatorError> {
        let leases: Vec<_> = self.received.range((path, Fence(0))..=(path, Fence(u64::MAX))).collect();
        let leases: Vec<_> = leases.into_iter().map(|(&lease, _)| lease).collect();
        let received = leases.into_iter().filter_map(|lease| self.received.remove(&lease)).flatten();
        let names: Vec<_> = received.map(|(_, result)| result.object.name).collect();
        self.delete_unused(names)
    }

    /// Index of a fragment in the lists of its paths' records.
    fn slot(&self, fragment: FragmentId) -> usize {
        fragment.slot(self.state.schedule().fragments())
    }

    fn fragment_ids_of(&self, path: PathId) -> Vec<FragmentId> {
        fragment_ids_of(self.state.topology(), self.state.schedule().fragments(), path)
    }

    /// Records an outer step. Its objects are in the store.
    pub(crate) fn record_step(
        &mut self,
        step: &OuterStep,
        done: &OuterStepDone,
    ) -> Result<(), CoordinatorError> {
        if self.closed {
            return Err(CoordinatorError::Stopped);
        }
        let fragment = step.fragment;
        // Another process may report any number of seconds.
        let took = Duration::try_from_secs_f64(done.seconds).unwrap_or_default();
        if !self.state.stepped(step, took) {
            let what = format!("outer step {} of {fragment} was ordered and is not due", step.version);
            return Err(CoordinatorError::internal(what));
        }
        let OuterStepDone { weights, momentum, change, .. } = done.clone();
        let mut obsolete = Vec::new();
        let record = fragment_record(&mut self.manifest, fragment)?;
        let before = std::mem::replace(&mut record.weights, weights);
        if let Some(object) = change {
            record.changes.push(ChangeRecord { from: before.hash.clone(), version: step.version, object });
            // Longer changes are useless: a worker would fetch the weights instead.
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
        self.note_change(obsolete);
        Ok(())
    }

    /// Begins the next phase with these shards. Paths keep their states. Their early-stopping bests were measured on other
    /// documents, so they are dropped with the versions that only they needed.
    ///
    /// # Errors
    /// When the run is not at a boundary, or the shards do not fit its paths.
    pub(crate) fn begin_phase(&mut self, shards: Vec<ShardRecord>) -> Result<(), CoordinatorError> {
        if self.closed {
            return Err(CoordinatorError::Stopped);
        }
        check_shards(self.state.topology(), &shards)?;
        let training = training_mut(&mut self.manifest)?;
        if !training.at_boundary() {
            return Err(CoordinatorError::NotAtBoundary { round: training.phase_end() });
        }
        training.phase += 1;
        training.shards = shards;
        for path in &mut training.paths {
            (path.best, path.last) = (None, None);
        }
        let phase = training.phase as usize;
        if let Some(seed) = self.sampling {
            self.state.sample_shards(seed, shard_tokens(training));
        }
        let mut obsolete = Vec::new();
        let fragments: Vec<FragmentId> = self.state.progress().versions.keys().copied().collect();
        for fragment in fragments {
            obsolete.extend(self.prune(fragment)?);
        }
        self.note_change(obsolete);
        self.state.go_on(phase);
        Ok(())
    }

    /// Drops the earlier versions of a fragment that no path needs to train on, to replay, or as its early-stopping best.
    /// Returns the names of their objects.
    fn prune(&mut self, fragment: FragmentId) -> Result<Vec<String>, CoordinatorError> {
        let slot = self.slot(fragment);
        let mut needed = self.state.needed_versions(fragment);
        let training = self.training()?;
        for path in self.state.topology().paths_through(fragment.module) {
            let Some(record) = training.path(path) else { continue };
            needed.extend(record.best.as_ref().and_then(|best| best.versions.get(slot)));
            needed.extend(record.replay.iter().filter_map(|lease| lease.versions.get(slot)));
        }
        let record = fragment_record(&mut self.manifest, fragment)?;
        let (kept, dropped): (Vec<_>, Vec<_>) =
            std::mem::take(&mut record.kept).into_iter().partition(|kept| needed.contains(&kept.version));
        record.kept = kept;
        Ok(dropped.into_iter().map(|kept| kept.weights.name).collect())
    }
}
