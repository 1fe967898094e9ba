//! Which workers hold the states of which paths.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_topology::PathId;

/// Paths that only a worker that holds what they were trained to goes on with at once, and who holds what.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    bound: BTreeSet<PathId>,
    /// When each worker that has asked for work was last heard of.
    heard: BTreeMap<String, Duration>,
    held: BTreeMap<PathId, BTreeSet<String>>,
    /// What each worker has said that it holds.
    said: BTreeMap<String, BTreeSet<PathId>>,
    /// When those that are gone are forgotten next.
    forget_at: Duration,
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
        self.heard.insert(worker.to_owned(), now);
        let held: BTreeSet<_> = held.iter().copied().collect();
        let before = self.said.insert(worker.to_owned(), held.clone()).unwrap_or_default();
        for path in before.difference(&held) {
            if let Some(holders) = self.held.get_mut(path) {
                holders.remove(worker);
            }
        }
        for path in held {
            self.held.entry(path).or_default().insert(worker.to_owned());
        }
        if now >= self.forget_at {
            self.forget_at = now + gone;
            self.heard.retain(|_, heard| *heard + gone > now);
            self.said.retain(|worker, _| self.heard.contains_key(worker));
            self.held
                .values_mut()
                .for_each(|holders| holders.retain(|holder| self.heard.contains_key(holder)));
            self.held.retain(|_, holders| !holders.is_empty());
        }
    }

    /// A worker was heard of.
    pub(crate) fn heard(&mut self, now: Duration, worker: &str) {
        if let Some(heard) = self.heard.get_mut(worker) {
            *heard = now;
        }
    }

    /// A worker has trained a path: whoever else held it holds what it was before.
    pub(crate) fn trained(&mut self, worker: &str, path: PathId) {
        self.held.insert(path, BTreeSet::from([worker.to_owned()]));
        self.said.entry(worker.to_owned()).or_default().insert(path);
    }

    /// Another worker that a path has to wait for: one that holds it and was heard of within `gone`.
    pub(crate) fn other(&self, now: Duration, path: PathId, worker: &str, gone: Duration) -> Option<&str> {
        let holders =
            self.held.get(&path).filter(|holders| self.bound.contains(&path) && !holders.contains(worker))?;
        let around = |holder: &&String| self.heard.get(*holder).is_some_and(|heard| *heard + gone > now);
        holders.iter().find(around).map(String::as_str)
    }
}
