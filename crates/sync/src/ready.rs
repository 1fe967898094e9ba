//! Index of the paths' possible tasks, so that a grant does not have to examine all paths.

use std::collections::BTreeSet;

use dipaco_topology::PathId;

use crate::{FragmentId, LeaseTask};

/// The possible task of each path, and the free paths.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    /// The task of each path, or the fragment for which it waits.
    tasks: Vec<Result<LeaseTask, Option<FragmentId>>>,
    /// Number of inner steps of each free path: its key in `free`.
    place: Vec<Option<u64>>,
    /// Paths that can continue and have no lease; the path that is furthest behind is first.
    free: BTreeSet<(u64, PathId)>,
    /// Free paths that are open to every worker, because no holder is waited for.
    open: BTreeSet<(u64, PathId)>,
}

impl Ready {
    /// Records the possible task of a path after `steps` inner steps, whether it has a lease, and whether it is
    /// reserved for its holders.
    pub(crate) fn set(
        &mut self,
        path: PathId,
        steps: u64,
        task: Result<LeaseTask, Option<FragmentId>>,
        leased: bool,
        reserved: bool,
    ) {
        if self.tasks.len() <= path.index() {
            self.tasks.resize(path.index() + 1, Err(None));
            self.place.resize(path.index() + 1, None);
        }
        self.tasks[path.index()] = task;
        if let Some(before) = self.place[path.index()].take() {
            self.free.remove(&(before, path));
            self.open.remove(&(before, path));
        }
        if task.is_ok() && !leased {
            self.place[path.index()] = Some(steps);
            self.free.insert((steps, path));
            if !reserved {
                self.open.insert((steps, path));
            }
        }
    }

    /// The task of a path, or the fragment for which it waits.
    pub(crate) fn task(&self, path: PathId) -> Result<LeaseTask, Option<FragmentId>> {
        self.tasks.get(path.index()).copied().unwrap_or(Err(None))
    }

    /// Paths that can continue and have no lease, with their number of inner steps; the path that is furthest behind
    /// is first.
    pub(crate) fn free(&self) -> impl Iterator<Item = (u64, PathId)> + '_ {
        self.free.iter().copied()
    }

    /// Free paths that are open to every worker; the path that is furthest behind is first.
    pub(crate) fn open(&self) -> impl Iterator<Item = (u64, PathId)> + '_ {
        self.open.iter().copied()
    }

    /// True if a path is free and open to every worker.
    pub(crate) fn is_open(&self, path: PathId) -> bool {
        self.place(path).is_some_and(|steps| self.open.contains(&(steps, path)))
    }

    /// Number of inner steps of a path that can continue and has no lease.
    pub(crate) fn place(&self, path: PathId) -> Option<u64> {
        self.place.get(path.index()).copied().flatten()
    }
}
