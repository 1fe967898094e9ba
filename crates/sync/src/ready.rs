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
    /// The other free paths: each waits for its holders.
    reserved: BTreeSet<PathId>,
    /// Number of inner steps of each path in `waiting`.
    waits_at: Vec<Option<u64>>,
    /// Paths without a lease that wait for a fragment; the path that is furthest behind is first.
    waiting: BTreeSet<(u64, PathId)>,
}

/// Who can get a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// True if the path has a lease.
    pub(crate) leased: bool,
    /// True if nobody can get the path now, because of a lease or for another reason.
    pub(crate) taken: bool,
    /// True if the path is reserved for its holders.
    pub(crate) reserved: bool,
}

impl Ready {
    /// Records the possible task of a path after `steps` inner steps, and who can get it.
    pub(crate) fn set(
        &mut self,
        path: PathId,
        steps: u64,
        task: Result<LeaseTask, Option<FragmentId>>,
        standing: Standing,
    ) {
        let Standing { leased, taken, reserved } = standing;
        if self.tasks.len() <= path.index() {
            self.tasks.resize(path.index() + 1, Err(None));
            self.place.resize(path.index() + 1, None);
            self.waits_at.resize(path.index() + 1, None);
        }
        self.tasks[path.index()] = task;
        if let Some(before) = self.place[path.index()].take() {
            self.free.remove(&(before, path));
            self.open.remove(&(before, path));
            self.reserved.remove(&path);
        }
        if let Some(before) = self.waits_at[path.index()].take() {
            self.waiting.remove(&(before, path));
        }
        if let Err(Some(_)) = task
            && !leased
        {
            self.waits_at[path.index()] = Some(steps);
            self.waiting.insert((steps, path));
        }
        if task.is_ok() && !taken {
            self.place[path.index()] = Some(steps);
            self.free.insert((steps, path));
            if reserved {
                self.reserved.insert(path);
            } else {
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

    /// Free paths that wait for their holders, in order.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = PathId> + '_ {
        self.reserved.iter().copied()
    }

    /// The fragment for which the path waits that is furthest behind among the paths that wait for one without a lease.
    pub(crate) fn first_waiting(&self) -> Option<FragmentId> {
        self.waiting.first().and_then(|&(_, path)| self.task(path).err().flatten())
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
