//! Workers and the path states that they hold.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use dipaco_topology::PathId;

/// Paths that are bound to the workers with their newest state, and the held paths of each worker.
///
/// A silent worker is forgotten at the next question. Its paths are then free for others.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    bound: BTreeSet<PathId>,
    /// Time of each worker's last message.
    heard: BTreeMap<String, Duration>,
    /// The same, ordered by time.
    silent_since: BTreeSet<(Duration, String)>,
    held: BTreeMap<PathId, BTreeSet<String>>,
    /// Paths that each worker holds, as it reported.
    said: BTreeMap<String, BTreeSet<PathId>>,
    /// Last worker of each path. States of the path at other workers are older.
    trained: BTreeMap<PathId, String>,
}

impl Holders {
    /// Binds a path to its holders, or frees it. Other workers would have to train its last leases again.
    pub(crate) fn bind(&mut self, path: PathId, bound: bool) {
        if bound {
            self.bound.insert(path);
        } else {
            self.bound.remove(&path);
        }
    }

    /// Records the held paths of a worker that asks for a lease. Returns the paths whose holders changed.
    pub(crate) fn asks(&mut self, now: Duration, worker: &str, held: &[PathId]) -> Vec<PathId> {
        self.note(now, worker);
        let newest = |path: &PathId| self.trained.get(path).is_none_or(|last| last == worker);
        let held: BTreeSet<_> = held.iter().copied().filter(newest).collect();
        let before = self.said.insert(worker.to_owned(), held.clone()).unwrap_or_default();
        let mut changed: Vec<_> = before.difference(&held).copied().collect();
        self.drop_holder(worker, &changed);
        for path in held {
            if self.held.entry(path).or_default().insert(worker.to_owned()) {
                changed.push(path);
            }
        }
        changed
    }

    /// Records a message of a worker.
    pub(crate) fn heard(&mut self, now: Duration, worker: &str) {
        if self.heard.contains_key(worker) {
            self.note(now, worker);
        }
    }

    fn note(&mut self, now: Duration, worker: &str) {
        if let Some(before) = self.heard.insert(worker.to_owned(), now) {
            self.silent_since.remove(&(before, worker.to_owned()));
        }
        self.silent_since.insert((now, worker.to_owned()));
    }

    /// Forgets all workers that were silent for `gone`. Returns their held paths.
    pub(crate) fn forget(&mut self, now: Duration, gone: Duration) -> Vec<PathId> {
        let mut changed = Vec::new();
        while self.silent_since.first().is_some_and(|(heard, _)| *heard + gone <= now)
            && let Some((_, worker)) = self.silent_since.pop_first()
        {
            self.heard.remove(&worker);
            let held: Vec<_> = self.said.remove(&worker).into_iter().flatten().collect();
            self.drop_holder(&worker, &held);
            changed.extend(held);
        }
        changed
    }

    fn drop_holder(&mut self, worker: &str, paths: &[PathId]) {
        for path in paths {
            if let Some(holders) = self.held.get_mut(path) {
                holders.remove(worker);
                if holders.is_empty() {
                    self.held.remove(path);
                }
            }
        }
    }

    /// Records that a worker has trained a path. States of the path at other workers are old now.
    pub(crate) fn trained(&mut self, worker: &str, path: PathId) {
        self.held.remove(&path);
        self.trained.insert(path, worker.to_owned());
        // No path waits for a forgotten worker.
        if self.heard.contains_key(worker) {
            self.held.insert(path, BTreeSet::from([worker.to_owned()]));
            self.said.entry(worker.to_owned()).or_default().insert(path);
        }
    }

    /// True if a path is bound and a worker holds it.
    pub(crate) fn are_waited_for(&self, path: PathId) -> bool {
        self.bound.contains(&path) && self.held.contains_key(&path)
    }

    /// Another worker for which a bound path waits.
    pub(crate) fn other(&self, path: PathId, worker: &str) -> Option<&str> {
        let holders =
            self.held.get(&path).filter(|holders| self.bound.contains(&path) && !holders.contains(worker))?;
        holders.first().map(String::as_str)
    }

    /// At most `count` known workers by name: first the workers after `worker`, then from the first worker on.
    pub(crate) fn after(&self, worker: &str, most: usize) -> Vec<String> {
        let later = self.heard.range::<str, _>((Bound::Excluded(worker), Bound::Unbounded));
        let earlier = self.heard.range::<str, _>((Bound::Unbounded, Bound::Included(worker)));
        later.chain(earlier).take(most).map(|(worker, _)| worker.clone()).collect()
    }

    /// Paths that a worker holds, in order.
    pub(crate) fn of(&self, worker: &str) -> impl Iterator<Item = PathId> {
        let holds = |path: &PathId| self.held.get(path).is_some_and(|holders| holders.contains(worker));
        self.said.get(worker).into_iter().flatten().copied().filter(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_workers_are_named_in_turn() {
        let mut holders = Holders::default();
        for worker in ["c", "a", "d", "b", "e"] {
            holders.asks(Duration::ZERO, worker, &[]);
        }
        let mut last = String::new();
        let mut seen = Vec::new();
        for _ in 0..3 {
            let named = holders.after(&last, 2);
            last.clone_from(named.last().unwrap());
            seen.extend(named);
        }
        assert_eq!(seen, ["a", "b", "c", "d", "e", "a"]);
        // Each worker once, although some have left meanwhile.
        assert_eq!(holders.after("bb", 9), ["c", "d", "e", "a", "b"]);
    }

    #[test]
    fn what_a_worker_holds_is_old_once_another_has_trained_the_path() {
        let mut holders = Holders::default();
        let path = PathId(3);
        holders.bind(path, true);
        holders.asks(Duration::ZERO, "a", &[]);
        holders.trained("a", path);
        holders.asks(Duration::ZERO, "b", &[path]);
        assert_eq!(holders.other(path, "b"), Some("a"), "only who trained it last holds it");
        holders.trained("b", path);
        holders.asks(Duration::ZERO, "a", &[path]);
        assert_eq!(holders.other(path, "a"), Some("b"));
    }
}
