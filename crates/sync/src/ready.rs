//! What each path can do now, so that a worker that asks does not have to wait until all paths have been looked at.

use std::collections::BTreeSet;

use dipaco_topology::PathId;

use crate::{FragmentId, LeaseTask};

/// What each path can do, and which of those that can do something are free, and for whom.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    /// The task of each path, or the unit that it waits for.
    tasks: Vec<Result<LeaseTask, Option<FragmentId>>>,
    /// The inner steps under which each path is among the free ones.
    place: Vec<Option<u64>>,
    /// Paths that can go on and are not leased, the one that is furthest behind first.
    free: BTreeSet<(u64, PathId)>,
    /// Those of them that anyone can go on with: nobody is waited for who holds them.
    open: BTreeSet<(u64, PathId)>,
}

impl Ready {
    /// Notes what a path that has taken `steps` inner steps can do, whether somebody does it, and whether it is reserved for
    /// those who hold it.
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

    /// What a path can do, or what it waits for.
    pub(crate) fn task(&self, path: PathId) -> Result<LeaseTask, Option<FragmentId>> {
        self.tasks.get(path.index()).copied().unwrap_or(Err(None))
    }

    /// The paths that can go on and are not leased with the inner steps that they have taken, the one that is furthest
    /// behind first.
    pub(crate) fn free(&self) -> impl Iterator<Item = (u64, PathId)> + '_ {
        self.free.iter().copied()
    }

    /// Of the free paths that anyone can go on with the one that is furthest behind.
    pub(crate) fn first_open(&self) -> Option<(u64, PathId)> {
        self.open.first().copied()
    }

    /// Whether a path is free and anyone can go on with it.
    pub(crate) fn is_open(&self, path: PathId) -> bool {
        self.place(path).is_some_and(|steps| self.open.contains(&(steps, path)))
    }

    /// The inner steps that a path has taken, when it can go on and is not leased.
    pub(crate) fn place(&self, path: PathId) -> Option<u64> {
        self.place.get(path.index()).copied().flatten()
    }
}
