//! The run's books: every decision of the core, made durable before anyone is told of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_store::{
    Best, Contribution, KeptVersion, ModuleGradient, ModuleRecord, ObjectRef, RunManifest, RunStore,
    Sequence, ShardRecord, TrainingRecord, names,
};
use dipaco_sync::{Commit, Fence, Grant, Lease, LeaseError, PathProgress, Plan, Progress, Rounds, Task};
use dipaco_topology::{ModuleId, PathId, Topology};

use crate::TrainError;
use crate::protocol::{Item, Report};
use crate::start::check_shards;

/// The state machine of the run beside the manifest that records it.
///
/// The manifest is written before an answer leaves, so that what a worker has been told survives a crash. A failure to
/// write it ends the coordinator: memory would be ahead of the disk, and `--resume` continues from the disk.
pub(crate) struct Ledger {
    rounds: Rounds,
    manifest: RunManifest,
    sequence: Sequence,
    store: RunStore,
    /// What has been brought for a lease that is still out, by path.
    staged: BTreeMap<PathId, Staged>,
    /// Whether the coordinator stops: nothing counts from now on.
    closed: bool,
}

struct Staged {
    fence: Fence,
    items: BTreeMap<Item, ObjectRef>,
}

/// The answer to a finished lease.
#[derive(Debug)]
pub(crate) enum Completed {
    /// It counts, and is on the disk.
    Accepted {
        /// What the lease was for.
        task: Task,
        /// Whether the round began with the best weights of the path so far.
        best: bool,
    },
    /// It had been accepted before.
    Duplicate,
    /// It does not count.
    Lost(LeaseError),
    /// It does not count: the coordinator stops.
    Closed,
    /// Something that the lease had to bring is missing.
    Incomplete(Item),
}

impl Ledger {
    /// Takes a run over: raises the incarnation, so that fencing numbers are new and a coordinator that still
    /// believes to hold the run fails at its next write.
    pub(crate) async fn take_over(
        store: RunStore,
        mut manifest: RunManifest,
        sequence: Sequence,
        topology: Topology,
        lease: Duration,
    ) -> Result<Self, TrainError> {
        manifest.incarnation += 1;
        let training = manifest.training.as_ref().ok_or(TrainError::NotStarted)?;
        let progress = Progress {
            modules: training.modules.iter().map(|record| (record.module, record.version)).collect(),
            paths: training
                .paths
                .iter()
                .map(|path| PathProgress { rounds: path.rounds, measured: path.measured })
                .collect(),
        };
        let plan = Plan { rounds: training.rounds, until: training.phase_end(), lease };
        let rounds = Rounds::new(topology, plan, progress, manifest.incarnation)?;
        // Listed before the manifest is replaced: what is there now can't belong to a coordinator after this one.
        let stored = stored(&store).await?;
        let sequence = store.replace(&manifest, sequence).await?;
        let ledger = Self { rounds, manifest, sequence, store, staged: BTreeMap::new(), closed: false };
        ledger.sweep(stored).await?;
        Ok(ledger)
    }

    /// Deletes what a crashed coordinator left behind: those of `stored` that the manifest does not refer to.
    async fn sweep(&self, stored: Vec<String>) -> Result<(), TrainError> {
        let training = self.training()?;
        let mut used = BTreeSet::new();
        for module in &training.modules {
            used.insert(&module.weights.name);
            used.extend(module.momentum.iter().map(|object| &object.name));
            used.extend(module.kept.iter().map(|kept| &kept.weights.name));
        }
        for path in &training.paths {
            used.extend(path.state.iter().map(|object| &object.name));
            let gradients = path.contribution.iter().flat_map(|contribution| &contribution.gradients);
            used.extend(gradients.map(|gradient| &gradient.object.name));
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
            self.staged.insert(lease.path, Staged { fence: lease.fence, items: BTreeMap::new() });
        }
        grant
    }

    pub(crate) fn heartbeat(&mut self, now: Duration, path: PathId, fence: Fence) -> Result<(), LeaseError> {
        self.rounds.heartbeat(now, path, fence).map(|_| ())
    }

    pub(crate) fn check(&self, path: PathId, round: u32, fence: Fence) -> Result<Task, LeaseError> {
        self.rounds.check(path, round, fence).map(|lease| lease.task)
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
        let staged = self.staged.remove(&path).map(|staged| staged.items).unwrap_or_default();
        let names: Vec<_> = staged.into_values().map(|object| object.name).collect();
        self.delete(&names).await
    }

    /// Notes that an item of a lease is in the store. When the lease is out no more, the item is deleted and the error
    /// says so.
    pub(crate) async fn stage(
        &mut self,
        lease: (PathId, u32, Fence),
        item: Item,
        object: ObjectRef,
    ) -> Result<Result<(), LeaseError>, TrainError> {
        let (path, round, fence) = lease;
        if let Err(error) = self.check(path, round, fence) {
            let counts = self.training()?.paths.get(path.index()).is_some_and(|record| {
                record.state.as_ref().is_some_and(|state| state.name == object.name)
                    || record
                        .contribution
                        .iter()
                        .flat_map(|c| &c.gradients)
                        .any(|g| g.object.name == object.name)
            });
            // A late repetition of what has counted since must not take it away.
            if !counts {
                self.delete(&[object.name]).await?;
            }
            return Ok(Err(error));
        }
        let staged = self.staged.entry(path).or_insert_with(|| Staged { fence, items: BTreeMap::new() });
        staged.items.insert(item, object);
        Ok(Ok(()))
    }

    /// Takes a finished lease into the books.
    pub(crate) async fn complete(
        &mut self,
        path: PathId,
        round: u32,
        fence: Fence,
        report: &Report,
    ) -> Result<Completed, TrainError> {
        if self.closed {
            return Ok(Completed::Closed);
        }
        let items = match self.rounds.check(path, round, fence).map(|lease| lease.task) {
            Ok(Task::Train) => {
                let staged = self.staged.get(&path).filter(|staged| staged.fence == fence);
                let items = staged.map(|staged| staged.items.clone()).unwrap_or_default();
                let modules = self.rounds.topology().modules_of(path);
                let wanted = modules.into_iter().map(Item::OuterGradient).chain([Item::State]);
                if let Some(missing) = wanted.into_iter().find(|item| !items.contains_key(item)) {
                    return Ok(Completed::Incomplete(missing));
                }
                Some(items)
            }
            Ok(Task::Measure) | Err(_) => None,
        };
        match self.rounds.commit(path, round, fence) {
            Commit::Duplicate => return Ok(Completed::Duplicate),
            Commit::Refused(error) => return Ok(Completed::Lost(error)),
            Commit::Accepted => {}
        }
        self.staged.remove(&path);
        let done = self.rounds.progress().paths[path.index()];
        let record = Self::training_mut(&mut self.manifest)?
            .paths
            .get_mut(path.index())
            .ok_or_else(|| TrainError::ManifestLacks { what: format!("path {path}") })?;
        (record.rounds, record.measured) = (done.rounds, done.measured);
        let better = |loss: &f64| loss.is_finite() && record.best.is_none_or(|best| *loss < best.loss);
        let best = report.held_out_loss.filter(better);
        if let Some(loss) = best {
            record.best = Some(Best { version: round, loss });
        }
        if let Some(loss) = report.held_out_loss.filter(|loss| loss.is_finite()) {
            record.last = Some(Best { version: round, loss });
        }
        let mut superseded = None;
        let task = if let Some(mut items) = items {
            let state = items.remove(&Item::State);
            superseded = std::mem::replace(&mut record.state, state);
            let gradients = items
                .into_iter()
                .filter_map(|(item, object)| match item {
                    Item::OuterGradient(module) => Some(ModuleGradient { module, object }),
                    Item::State => None,
                })
                .collect();
            record.contribution = Some(Contribution { round, gradients });
            Task::Train
        } else {
            Task::Measure
        };
        let mut obsolete: Vec<_> = superseded.into_iter().map(|object| object.name).collect();
        if task == Task::Measure {
            obsolete.extend(self.prune_versions(path)?);
        }
        self.save().await?;
        self.delete(&obsolete).await?;
        Ok(Completed::Accepted { task, best: best.is_some() })
    }

    /// Takes a module's outer step into the books: its new weights and momentum are in the store.
    pub(crate) async fn stepped(
        &mut self,
        module: ModuleId,
        weights: ObjectRef,
        momentum: ObjectRef,
    ) -> Result<u32, TrainError> {
        if self.closed {
            return Err(TrainError::Cancelled);
        }
        let version = self.rounds.stepped(module).ok_or_else(|| TrainError::ManifestLacks {
            what: format!("a complete set of contributions to module {module}"),
        })?;
        let mut obsolete = Vec::new();
        let training = Self::training_mut(&mut self.manifest)?;
        let record = module_record(training, module)?;
        let before = std::mem::replace(&mut record.weights, weights);
        record.kept.push(KeptVersion { version: record.version, weights: before });
        obsolete.extend(record.momentum.replace(momentum).map(|object| object.name));
        record.version = version;
        for path in self.rounds.topology().paths_through(module) {
            let Some(record) = training.paths.get_mut(path.index()) else { continue };
            if let Some(contribution) = &mut record.contribution {
                let (used, left): (Vec<_>, Vec<_>) =
                    std::mem::take(&mut contribution.gradients).into_iter().partition(|g| g.module == module);
                obsolete.extend(used.into_iter().map(|gradient| gradient.object.name));
                contribution.gradients = left;
                if contribution.gradients.is_empty() {
                    record.contribution = None;
                }
            }
        }
        obsolete.extend(prune_module(self.rounds.topology(), training, module)?);
        self.save().await?;
        self.delete(&obsolete).await?;
        Ok(version)
    }

    /// Begins the next phase with these shards. Paths keep their states; their early-stopping bests are forgotten, with
    /// the versions that only those needed, because they were measured on other documents.
    ///
    /// # Errors
    /// When the run is not at a boundary, or the shards are not those of its paths.
    pub(crate) async fn begin_phase(&mut self, shards: Vec<ShardRecord>) -> Result<(), TrainError> {
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
        let until = training.phase_end();
        let mut obsolete = Vec::new();
        for module in self.rounds.topology().module_ids() {
            obsolete.extend(prune_module(self.rounds.topology(), training, module)?);
        }
        self.save().await?;
        self.rounds.go_on(until);
        self.delete(&obsolete).await
    }

    /// Forgets the earlier versions of a path's modules that no early-stopping best needs any more.
    fn prune_versions(&mut self, path: PathId) -> Result<Vec<String>, TrainError> {
        let mut obsolete = Vec::new();
        for module in self.rounds.topology().modules_of(path) {
            let training = Self::training_mut(&mut self.manifest)?;
            obsolete.extend(prune_module(self.rounds.topology(), training, module)?);
        }
        Ok(obsolete)
    }

    async fn save(&mut self) -> Result<(), TrainError> {
        self.sequence = self.store.replace(&self.manifest, self.sequence).await?;
        Ok(())
    }

    async fn delete(&self, names: &[String]) -> Result<(), TrainError> {
        for name in names {
            self.store.delete(name).await?;
        }
        Ok(())
    }
}

/// The names of all objects of a training run that are in the store.
async fn stored(store: &RunStore) -> Result<Vec<String>, TrainError> {
    let mut stored = Vec::new();
    for prefix in [names::OUTER_GRADIENTS, names::PATHS, names::MODULES, names::MOMENTA] {
        stored.extend(store.list(prefix).await?.into_iter().map(|object| object.name));
    }
    Ok(stored)
}

fn module_record(training: &mut TrainingRecord, module: ModuleId) -> Result<&mut ModuleRecord, TrainError> {
    training
        .modules
        .iter_mut()
        .find(|record| record.module == module)
        .ok_or_else(|| TrainError::ManifestLacks { what: format!("module {module}") })
}

/// Drops the earlier versions of a module that are the best of no path through it, and returns their objects.
///
/// A path measures version v before it contributes to round v, and a module steps to v + 1 after all its paths have
/// contributed: when a version is superseded, every path has had its say on it.
fn prune_module(
    topology: &Topology,
    training: &mut TrainingRecord,
    module: ModuleId,
) -> Result<Vec<String>, TrainError> {
    let best: BTreeSet<u32> = topology
        .paths_through(module)
        .filter_map(|path| training.paths.get(path.index()).and_then(|record| record.best))
        .map(|best| best.version)
        .collect();
    let record = module_record(training, module)?;
    let (kept, dropped): (Vec<_>, Vec<_>) =
        std::mem::take(&mut record.kept).into_iter().partition(|kept| best.contains(&kept.version));
    record.kept = kept;
    Ok(dropped.into_iter().map(|kept| kept.weights.name).collect())
}
