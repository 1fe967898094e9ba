//! The ledger of a run: its state machine, its objects, and the owners of its modules.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_sync::{
    Fence, FragmentId, Grant, Guard, Lease, LeaseClaim, LeaseError, LeaseRequest, LeaseSecret,
    NeededVersions, ProcessId, RunPlan, RunState, fragment_ids_of,
};
use dipaco_topology::{PathId, Topology};

use crate::names::{self, Owner};
use crate::owners::ModuleOwners;
use crate::records::{Divided, TrainingObjects};
use crate::{
    CheckpointRecord, ExtensionRecord, KeptVersion, LeaseResult, LedgerError, LedgerPlan, ObjectRef,
    RollbackRecord, RunManifest, SeedRecord, ShardRecord, TrainingRecord,
};

mod checkpoints;
mod completion;
mod deletions;
mod grants;
mod numerics;
mod order_builder;
mod outer_steps;
mod phases;
mod quarantine;
mod results;
mod write;

use checkpoints::Checkpoints;
pub use checkpoints::NewCheckpoint;
pub use completion::LeaseCompletion;
pub use numerics::OtherNumerics;
pub use outer_steps::{Orders, ReducedGradient, StepRecording};
pub use phases::{PhaseBoundary, check_shards};
pub use quarantine::{FailureDecision, TrainingFailure};
use results::ReceivedResult;
pub use results::{ExpectedResult, Recording, StoredResult};
pub use write::{PendingWrite, WriteDraft, WritePart};

/// The decisions of a coordinator: the state machine of the run, the objects that make it up, and the owners of its
/// modules.
///
/// Each call changes the ledger in memory. [`Ledger::poll_write`] then drafts the next write of the manifest. The caller
/// sends no answer before the change that it tells of is on the disk ([`Ledger::changes`], [`UntilWritten`](crate::UntilWritten)),
/// so a change that a worker knows of survives a crash. After a failed write the caller must end, because memory is ahead of the disk.
#[derive(Debug)]
pub struct Ledger {
    run: String,
    incarnation: u32,
    seed: Option<SeedRecord>,
    extension: Option<ExtensionRecord>,
    /// The last rollbacks of the run.
    rollbacks: Vec<RollbackRecord>,
    plan: LedgerPlan,
    state: RunState,
    objects: TrainingObjects,
    /// Processes that take the outer steps of each module.
    owners: ModuleOwners,
    /// Number of changes of the manifest under this coordinator.
    changes: u64,
    /// Number of the last change in a write that [`Ledger::poll_write`] drafted.
    polled: u64,
    /// Objects that the manifest does not refer to any more. The manifest on the disk may still refer to them.
    obsolete: Vec<String>,
    /// Objects that stay until the outer step of their fragment that is due is taken: a process may be reading them, or may make
    /// them again under the same names.
    left: BTreeMap<FragmentId, BTreeSet<String>>,
    /// Results of the granted leases that are in the store, without their numbers of tokens.
    received: BTreeMap<(PathId, Fence), BTreeMap<LeaseResult, ReceivedResult>>,
    /// Versions of the early-stopping bests, and of the leases that a worker replays.
    recorded: NeededVersions,
    /// Each path's factor in the merged outer gradient of its module of each level, in this phase.
    shares: Vec<Vec<f32>>,
    /// Refuses outer gradients that are far larger than those that count.
    guard: Guard,
    /// Earlier rounds to which the run can go back.
    checkpoints: Checkpoints,
    /// True when the coordinator stops: nothing counts from then on.
    closed: bool,
}

/// The store of a run as a coordinator finds it.
#[derive(Clone, Debug)]
pub struct StoredRun {
    /// The current manifest.
    pub manifest: RunManifest,
    /// The undamaged checkpoints that the manifest names, the newest last.
    pub checkpoints: Vec<SavedCheckpoint>,
    /// Names of all objects of the training in the store. Listed before the manifest is replaced, so none of them belongs
    /// to a later coordinator.
    pub names: Vec<String>,
}

/// A checkpoint and its content.
#[derive(Clone, Debug)]
pub struct SavedCheckpoint {
    /// The manifest's record.
    pub record: CheckpointRecord,
    /// The training.
    pub training: TrainingRecord,
}

impl Ledger {
    /// Takes a run over. Raises the incarnation, so fencing numbers are new, and an earlier coordinator that still runs
    /// fails at its next write. The first write replaces the manifest, and must reach the disk before any other call.
    ///
    /// # Errors
    /// When training has not begun, or the manifest does not fit the plan.
    pub fn take_over(stored: StoredRun, topology: Topology, plan: LedgerPlan) -> Result<Self, LedgerError> {
        let StoredRun { manifest, checkpoints, names } = stored;
        let RunManifest { run, incarnation, seed, extension, training, checkpoints: _, rollbacks } = manifest;
        let incarnation = incarnation.saturating_add(1);
        let Divided { progress, phase, objects } = training.ok_or(LedgerError::NotStarted)?.divide()?;
        let LedgerPlan { schedule, scheme, limits, .. } = plan.clone();
        let run_plan = RunPlan { schedule, scheme, phase, limits };
        let mut state = RunState::new(topology, run_plan, progress, incarnation)?;
        for (&path, objects) in objects.paths.iter() {
            state.bind(path, !objects.replay.is_empty());
            if let Some(last) = objects.replay.last() {
                // Also who has contributed in the lease after it.
                let newest = objects.contributors.iter().filter(|(_, record)| record.last_step >= last.to);
                let tokens = newest.map(|(token, _)| token).chain(&objects.completed_by);
                tokens.for_each(|token| state.note_last_token(path, token));
            }
            objects.contributors.keys().for_each(|token| state.note_contributor(token));
        }
        if let Some(seed) = plan.sampling {
            state.sample_shards(seed, objects.shard_tokens());
        }
        // Some paths rest in the first round.
        state.pass_over_idle();
        let mut ledger = Self {
            run,
            incarnation,
            seed,
            extension,
            rollbacks,
            state,
            objects,
            owners: ModuleOwners::new(incarnation),
            changes: 1,
            polled: 0,
            obsolete: Vec::new(),
            left: BTreeMap::new(),
            received: BTreeMap::new(),
            recorded: NeededVersions::default(),
            shares: Vec::new(),
            guard: Guard::new(plan.guard),
            checkpoints: Checkpoints::new(plan.checkpoints, checkpoints)?,
            closed: false,
            plan,
        };
        ledger.begin_shares()?;
        for &fragment in ledger.state.progress().pending.keys() {
            ledger.owners.note_news(fragment);
        }
        for path in ledger.state.topology().path_ids() {
            ledger.note_recorded(path)?;
        }
        // Objects that a crashed coordinator left behind.
        ledger.delete_unused(names);
        Ok(ledger)
    }

    /// The number of the last change.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Notes a change of the manifest, after which it does not refer to `obsolete` any more.
    fn note_change(&mut self, obsolete: Vec<String>) {
        self.changes += 1;
        // Objects of a checkpoint are deleted with the checkpoint. A module at rest has the same object at several versions.
        self.delete_unused(obsolete);
    }

    /// Closes the ledger. Later results are answered as if their lease were lost.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// The state machine.
    #[must_use]
    pub fn state(&self) -> &RunState {
        &self.state
    }

    /// Number of coordinators that the run has had, with this one.
    #[must_use]
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Identity of the run.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Rounds that every path has completed.
    #[must_use]
    pub fn rounds_done(&self) -> u32 {
        u32::try_from(self.state.least_steps() / self.objects.inner_steps.max(1)).unwrap_or(u32::MAX)
    }

    /// The shard of a path in this phase.
    ///
    /// # Errors
    /// When there is no such path.
    pub fn shard(&self, path: PathId) -> Result<&ShardRecord, LedgerError> {
        let lacks = || LedgerError::Lacks { what: format!("the shard of path {path}") };
        self.objects.shards.get(path.index()).ok_or_else(lacks)
    }

    /// True if a worker may fetch an object: the manifest refers to it as weights, as a change of weights or as a state.
    #[must_use]
    pub fn is_current(&self, object: &ObjectRef) -> bool {
        // Asked for each piece, so it looks only at what the object's name says that it belongs to.
        match names::owner(&object.name) {
            Some(Owner::Fragment(fragment)) => {
                let objects = self.objects.fragments.get(&fragment);
                objects.is_some_and(|objects| objects.for_workers().any(|current| current == object))
            }
            Some(Owner::Path(path)) => {
                self.objects.paths.get(&path).is_some_and(|path| path.state.as_ref() == Some(object))
            }
            Some(Owner::OuterGradient(..)) | None => false,
        }
    }

    /// Grants a lease to a worker that holds the states of the paths of its request.
    pub fn grant(&mut self, now: Duration, request: &LeaseRequest<'_>) -> Grant {
        self.state.grant(now, request)
    }

    /// Grants the lease that follows a current lease.
    ///
    /// # Errors
    /// When the claim names no current lease.
    pub fn follow(
        &mut self,
        now: Duration,
        claim: &LeaseClaim,
        secret: LeaseSecret,
    ) -> Result<Grant, LeaseError> {
        self.state.follow(now, claim, secret)
    }

    /// Renews a lease whose worker has taken `step` inner steps of it, after it repeated steps of earlier leases.
    ///
    /// # Errors
    /// When the claim names no lease.
    pub fn heartbeat(
        &mut self,
        now: Duration,
        claim: &LeaseClaim,
        step: u64,
        repeated: u64,
    ) -> Result<(), LeaseError> {
        let path = self.objects.paths.get(&claim.key.path);
        let replay = path.map_or(0, |path| path.replay.iter().map(|lease| lease.to - lease.from).sum());
        let taken = step.saturating_add(repeated.min(replay));
        self.state.heartbeat(now, claim, taken, replay).map(|_| ())
    }

    /// True if a claim names a current lease.
    #[must_use]
    pub fn is_out(&self, claim: &LeaseClaim) -> bool {
        self.state.check(claim).is_ok()
    }

    /// Ends the leases of the selected processes with a token, and with a name if one is given, unfinished, and deletes
    /// their results. Returns the leases. Workers that leave a path unfinished again and again leave it to others.
    pub fn release(
        &mut self,
        token: &str,
        name: Option<&str>,
        selected: impl Fn(&ProcessId) -> bool,
    ) -> Vec<Lease> {
        let leases = self.state.leases_of(token, name).filter(|lease| selected(&lease.worker));
        let leases: Vec<_> = leases.cloned().collect();
        for lease in &leases {
            self.state.give_back(lease.path, lease.fence);
            self.discard_received(lease.path);
        }
        leases
    }

    /// Ends the leases of a process that does not come back, unfinished, deletes their results, and forgets the states that it
    /// holds. Returns the leases.
    pub fn part_with(&mut self, process: &ProcessId) -> Vec<Lease> {
        let ProcessId { token, name, .. } = process;
        let released = self.release(token, Some(name), |worker| worker == process);
        self.state.part_with(process);
        released
    }

    /// Ends the leases whose deadline has passed, and deletes their results. Returns the leases. Grace periods that have ended
    /// are deadlines no more: whoever takes outer steps must ask for orders after this call.
    pub fn expire(&mut self, now: Duration) -> Vec<Lease> {
        let expired = self.state.expire(now);
        for lease in &expired {
            self.discard_received(lease.path);
        }
        expired
    }

    /// Takes a time in which the coordinator did not run, and which has just ended, for no silence and no standstill of
    /// another process, and for no part of a grace period. Call it before the first call that ends leases or grace
    /// periods, or forgets workers: [`Self::expire`], [`Self::orders`], [`Self::grant`] or [`Self::follow`].
    pub fn postpone(&mut self, now: Duration, by: Duration) {
        self.state.postpone(now, by);
        self.owners.postpone(now, by);
    }

    /// Time of the next event without a message: of a lease, of a grace period, or of a synchronizer that has not taken an
    /// outer step for `standstill`.
    #[must_use]
    pub fn next_deadline(&self, standstill: Duration) -> Option<Duration> {
        let of_steps = self.owners.oldest_order().map(|since| since.saturating_add(standstill));
        self.state.next_deadline().into_iter().chain(of_steps).min()
    }

    /// Index of a fragment in the lists of its paths' records.
    fn slot(&self, fragment: FragmentId) -> usize {
        fragment.slot(self.state.schedule().fragments())
    }

    fn fragment_ids_of(&self, path: PathId) -> Vec<FragmentId> {
        fragment_ids_of(self.state.topology(), self.state.schedule().fragments(), path)
    }

    /// Drops the earlier versions of a fragment that no path needs to train on, to replay, or as its early-stopping best.
    /// Returns the names of their objects.
    fn prune(&mut self, fragment: FragmentId) -> Result<Vec<String>, LedgerError> {
        let (state, recorded) = (&self.state, &self.recorded);
        let is_needed = |kept: &KeptVersion| {
            let version = kept.version;
            state.needs_version(fragment, version) || recorded.contains(fragment, version)
        };
        // Mostly so. Then the objects need no copy.
        if self.objects.fragment(fragment)?.kept.iter().all(is_needed) {
            return Ok(Vec::new());
        }
        let objects = self.objects.fragment_mut(fragment)?;
        let (kept, dropped): (Vec<_>, Vec<_>) =
            std::mem::take(&mut objects.kept).into_iter().partition(is_needed);
        objects.kept = kept;
        Ok(dropped.into_iter().map(|kept| kept.weights.name).collect())
    }

    /// Counts the versions that the records of a path name: its early-stopping best, and the leases that a worker replays.
    fn note_recorded(&mut self, path: PathId) -> Result<(), LedgerError> {
        let objects = self.objects.path(path)?;
        let best = objects.best.as_ref().map(|best| &best.versions);
        let replay = objects.replay.iter().map(|lease| &lease.versions);
        let fragments = self.fragment_ids_of(path);
        let of_record =
            |versions: &Vec<u32>| fragments.iter().copied().zip(versions.iter().copied()).collect::<Vec<_>>();
        let needed = best.into_iter().chain(replay).flat_map(of_record).collect();
        self.recorded.set(path, needed);
        Ok(())
    }
}
