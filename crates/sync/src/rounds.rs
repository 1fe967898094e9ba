//! The state machine of a training run: leases, contributions and module versions.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use dipaco_topology::{ModuleId, PathId, Topology};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Fence, Lease, LeaseError, Task};

/// What a run is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Outer steps that each module takes in all.
    pub rounds: u32,
    /// Rounds after which every path waits, at most `rounds`: the end of the phase. [`Rounds::go_on`] moves it.
    pub until: u32,
    /// How long a lease lasts without a heartbeat.
    pub lease: Duration,
}

/// How far a path is: everything of it that outlives the coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathProgress {
    /// Rounds that the path has contributed to.
    pub rounds: u32,
    /// Whether its final weights have been measured.
    pub measured: bool,
}

/// How far a run is: the part of [`Rounds`] that the manifest keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Version of each module: the outer steps that it has taken.
    pub modules: BTreeMap<ModuleId, u32>,
    /// Progress of each path.
    pub paths: Vec<PathProgress>,
}

impl Progress {
    /// The start of a run.
    #[must_use]
    pub fn start(topology: &Topology) -> Self {
        Self {
            modules: topology.module_ids().map(|module| (module, 0)).collect(),
            paths: vec![PathProgress::default(); topology.paths() as usize],
        }
    }
}

/// Why saved progress can't be continued.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressError {
    /// It belongs to another topology.
    #[error(
        "the saved run has {saved_paths} paths and {saved_modules} modules, the configuration {paths} and {modules}: continue it with its own configuration"
    )]
    Topology {
        /// Paths of the saved run.
        saved_paths: usize,
        /// Modules of the saved run.
        saved_modules: usize,
        /// Paths of the configuration.
        paths: usize,
        /// Modules of the configuration.
        modules: usize,
    },
    /// A module is ahead of one of its paths by more than its own step.
    #[error(
        "module {module} is at version {version}, but path {path} has contributed to {rounds} rounds: the manifest is inconsistent; go back to an earlier one"
    )]
    Inconsistent {
        /// The module at fault.
        module: ModuleId,
        /// Its version.
        version: u32,
        /// The path at fault.
        path: PathId,
        /// The rounds that the path has contributed to.
        rounds: u32,
    },
}

/// Why no lease can be given now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// Every path that could run is being trained.
    AllLeased {
        /// Leases that are out.
        leases: usize,
    },
    /// A module waits for contributions before the next round of its paths can start.
    ModuleWaits {
        /// The module.
        module: ModuleId,
        /// The first paths that it waits for, with the holder of their lease.
        paths: Vec<(PathId, Option<String>)>,
    },
    /// Every path has done the last round of its phase, and the next phase has not begun.
    PhaseEnds {
        /// The rounds done.
        rounds: u32,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllLeased { leases } => {
                write!(f, "all paths that can run are being trained ({leases} leases)")
            }
            Self::ModuleWaits { module, paths } => {
                write!(f, "module {module} waits for ")?;
                for (i, (path, worker)) in paths.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    match worker {
                        Some(worker) => write!(f, "{comma}path {path} (leased to {worker})")?,
                        None => write!(f, "{comma}path {path}")?,
                    }
                }
                Ok(())
            }
            Self::PhaseEnds { rounds } => {
                write!(f, "{rounds} rounds are done, and the text is being divided among the paths anew")
            }
        }
    }
}

/// The answer to a worker that asks for work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Work on this.
    Lease(Lease),
    /// Nothing can run now.
    Wait(Reason),
    /// The run is complete.
    Finished,
}

/// The answer to a finished lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The contribution counts from now on.
    Accepted,
    /// This very contribution had been accepted before: a retry whose first answer was lost.
    Duplicate,
    /// It does not count.
    Refused(LeaseError),
}

/// Who may train what, what has been contributed, and which module may step.
#[derive(Debug)]
pub struct Rounds {
    topology: Topology,
    plan: Plan,
    progress: Progress,
    /// The leases that are out, by path: at most one per path.
    leases: BTreeMap<PathId, Lease>,
    /// The fence of each path's last accepted commit, to tell a retry from a zombie.
    committed: BTreeMap<PathId, Fence>,
    next_fence: u64,
}

impl Rounds {
    /// Continues from `progress`; `incarnation` must be larger than that of every coordinator before.
    ///
    /// # Errors
    /// When the progress belongs to another topology or contradicts itself.
    pub fn new(
        topology: Topology,
        plan: Plan,
        progress: Progress,
        incarnation: u32,
    ) -> Result<Self, ProgressError> {
        let expected = Progress::start(&topology);
        if progress.paths.len() != expected.paths.len()
            || !progress.modules.keys().eq(expected.modules.keys())
        {
            return Err(ProgressError::Topology {
                saved_paths: progress.paths.len(),
                saved_modules: progress.modules.len(),
                paths: expected.paths.len(),
                modules: expected.modules.len(),
            });
        }
        for (path, done) in topology.path_ids().zip(&progress.paths) {
            for module in topology.modules_of(path) {
                let version = progress.modules[&module];
                if version != done.rounds && version + 1 != done.rounds {
                    return Err(ProgressError::Inconsistent { module, version, path, rounds: done.rounds });
                }
            }
        }
        let next_fence = u64::from(incarnation) << 32;
        Ok(Self { topology, plan, progress, leases: BTreeMap::new(), committed: BTreeMap::new(), next_fence })
    }

    /// What the manifest keeps.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The topology of the run.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The leases that are out.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values()
    }

    /// Whether every path has finished its last round and its final weights are measured.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.progress.paths.iter().all(|path| path.rounds == self.plan.rounds && path.measured)
    }

    /// Whether every path and module has done the last round of a phase that is not the run's last.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        let until = self.plan.until;
        until < self.plan.rounds && self.progress.modules.values().all(|&version| version == until)
    }

    /// Lets the paths train up to `until` rounds, at most those of the run: the next phase has begun.
    pub fn go_on(&mut self, until: u32) {
        self.plan.until = until.min(self.plan.rounds);
    }

    /// Gives a worker a path to work on: of those that can run the one that is furthest behind, and among equals one
    /// of `held` (paths whose state the worker still has) before the lowest number.
    pub fn grant(&mut self, now: Duration, worker: &str, held: &[PathId]) -> Grant {
        if self.finished() {
            return Grant::Finished;
        }
        let best = self
            .topology
            .path_ids()
            .filter(|path| !self.leases.contains_key(path))
            .filter_map(|path| self.task(path).map(|task| (path, task)))
            .min_by_key(|&(path, _)| (self.progress.paths[path.index()].rounds, !held.contains(&path), path));
        let Some((path, task)) = best else {
            return Grant::Wait(self.reason());
        };
        let lease = Lease {
            path,
            round: self.progress.paths[path.index()].rounds,
            fence: Fence(self.next_fence),
            task,
            worker: worker.to_owned(),
            deadline: now + self.plan.lease,
        };
        self.next_fence += 1;
        self.leases.insert(path, lease.clone());
        Grant::Lease(lease)
    }

    /// What a path can do now: its modules must have taken the outer step of the round before.
    fn task(&self, path: PathId) -> Option<Task> {
        let done = self.progress.paths[path.index()];
        let current =
            self.topology.modules_of(path).iter().all(|module| self.progress.modules[module] == done.rounds);
        if !current {
            None
        } else if done.rounds < self.plan.until {
            Some(Task::Train)
        } else if done.rounds == self.plan.rounds && !done.measured {
            Some(Task::Measure)
        } else {
            None
        }
    }

    fn reason(&self) -> Reason {
        if self.at_boundary() {
            return Reason::PhaseEnds { rounds: self.plan.until };
        }
        let behind = self
            .progress
            .modules
            .iter()
            .filter(|&(_, &version)| version < self.plan.rounds)
            .min_by_key(|&(_, v)| v);
        let Some((&module, &version)) = behind else {
            return Reason::AllLeased { leases: self.leases.len() };
        };
        let missing = self
            .topology
            .paths_through(module)
            .filter(|path| self.progress.paths[path.index()].rounds <= version);
        let paths: Vec<_> =
            missing.take(4).map(|path| (path, self.leases.get(&path).map(|l| l.worker.clone()))).collect();
        if paths.is_empty()
            || paths.iter().all(|(_, worker)| worker.is_some()) && self.leases.len() == paths.len()
        {
            Reason::AllLeased { leases: self.leases.len() }
        } else {
            Reason::ModuleWaits { module, paths }
        }
    }

    /// Renews a lease and returns its new deadline.
    ///
    /// # Errors
    /// When the lease is no longer valid: the holder must drop its work.
    pub fn heartbeat(&mut self, now: Duration, path: PathId, fence: Fence) -> Result<Duration, LeaseError> {
        let deadline = now + self.plan.lease;
        match self.leases.get_mut(&path) {
            Some(lease) if lease.fence == fence => {
                lease.deadline = deadline;
                Ok(deadline)
            }
            _ => Err(self.lost(path, fence)),
        }
    }

    /// Checks that `(path, round, fence)` is the lease that is out, as before anything of it is stored.
    ///
    /// # Errors
    /// When it is not.
    pub fn check(&self, path: PathId, round: u32, fence: Fence) -> Result<&Lease, LeaseError> {
        match self.leases.get(&path) {
            Some(lease) if lease.fence == fence && lease.round == round => Ok(lease),
            _ => Err(self.lost(path, fence)),
        }
    }

    fn lost(&self, path: PathId, fence: Fence) -> LeaseError {
        match self.progress.paths.get(path.index()) {
            Some(done) => LeaseError::Lost { path, round: done.rounds, fence },
            None => LeaseError::NoSuchPath { path, paths: self.topology.paths() },
        }
    }

    /// Takes the contribution of a lease. The caller has made it durable or does so before it answers.
    pub fn commit(&mut self, path: PathId, round: u32, fence: Fence) -> Commit {
        let task = match self.check(path, round, fence) {
            Ok(lease) => lease.task,
            Err(_) if self.committed.get(&path) == Some(&fence) => return Commit::Duplicate,
            Err(error) => return Commit::Refused(error),
        };
        let done = &mut self.progress.paths[path.index()];
        match task {
            Task::Train => done.rounds += 1,
            Task::Measure => done.measured = true,
        }
        self.leases.remove(&path);
        self.committed.insert(path, fence);
        Commit::Accepted
    }

    /// Gives a lease back, as when its worker says good-bye or its connection is gone for good.
    pub fn release(&mut self, path: PathId, fence: Fence) -> bool {
        let held = self.leases.get(&path).is_some_and(|lease| lease.fence == fence);
        if held {
            self.leases.remove(&path);
        }
        held
    }

    /// Ends the leases whose deadline has passed and returns them.
    pub fn expire(&mut self, now: Duration) -> Vec<Lease> {
        let (gone, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.leases).into_iter().partition(|(_, lease)| lease.deadline <= now);
        self.leases = kept;
        gone.into_values().collect()
    }

    /// When the next lease ends if no heartbeat comes.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.leases.values().map(|lease| lease.deadline).min()
    }

    /// The modules whose paths have all contributed to the current round, in order.
    #[must_use]
    pub fn ready(&self) -> Vec<ModuleId> {
        let complete = |module: ModuleId, version: u32| {
            self.topology
                .paths_through(module)
                .all(|path| self.progress.paths[path.index()].rounds == version + 1)
        };
        self.progress
            .modules
            .iter()
            .filter(|&(&m, &v)| v < self.plan.rounds && complete(m, v))
            .map(|(&m, _)| m)
            .collect()
    }

    /// Records that a module that was [`ready`](Self::ready) took its outer step, and returns its new version.
    /// Nothing happens for a module that was not ready.
    pub fn stepped(&mut self, module: ModuleId) -> Option<u32> {
        if !self.ready().contains(&module) {
            return None;
        }
        self.progress.modules.get_mut(&module).map(|version| {
            *version += 1;
            *version
        })
    }
}

#[cfg(test)]
mod tests;
