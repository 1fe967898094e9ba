//! Which workers hold the states of which paths.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_topology::PathId;

/// Paths that only a worker that holds what they were trained to goes on with at once, and who holds what.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    bound: BTreeSet<PathId>,
    workers: BTreeMap<String, Around>,
}

/// A worker that has asked for work.
#[derive(Debug)]
struct Around {
    heard: Duration,
    held: BTreeSet<PathId>,
}

impl Holders {
    /// Says whether a path is bound to those that hold it: others would train it again.
    pub(crate) fn bind(&mut self, path: PathId, bound: bool) {
        if bound {
            self.bound.insert(path);
        } else {
            self.bound.remove(&path);
        }
    }

    /// A worker asks for work and says what it holds. Whoever was not heard of for `gone` is forgotten.
    pub(crate) fn asks(&mut self, now: Duration, worker: &str, held: &[PathId], gone: Duration) {
        self.workers.retain(|_, around| around.heard + gone > now);
        let around = Around { heard: now, held: held.iter().copied().collect() };
        self.workers.insert(worker.to_owned(), around);
    }

    /// A worker was heard of.
    pub(crate) fn heard(&mut self, now: Duration, worker: &str) {
        if let Some(around) = self.workers.get_mut(worker) {
            around.heard = now;
        }
    }

    /// A worker has trained a path: whoever else held it holds what it was before.
    pub(crate) fn trained(&mut self, worker: &str, path: PathId) {
        for (name, around) in &mut self.workers {
            if name == worker {
                around.held.insert(path);
            } else {
                around.held.remove(&path);
            }
        }
    }

    /// Another worker that a path has to wait for: one that holds it and was heard of within `gone`.
    pub(crate) fn other(&self, now: Duration, path: PathId, worker: &str, gone: Duration) -> Option<&str> {
        let holds = |around: &Around| around.held.contains(&path) && around.heard + gone > now;
        if !self.bound.contains(&path) || self.workers.get(worker).is_some_and(|own| own.held.contains(&path))
        {
            return None;
        }
        let mut others =
            self.workers.iter().filter(|(name, around)| name.as_str() != worker && holds(around));
        others.next().map(|(name, _)| name.as_str())
    }
}
