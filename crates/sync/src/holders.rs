//! Workers and the path states that they hold.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use dipaco_topology::PathId;

use crate::ProcessId;
use crate::tally::Tally;

/// Paths that are bound to the workers with their newest state, and the held paths of each worker.
///
/// A silent worker is forgotten at the next question. Its paths are then free for others.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    bound: BTreeSet<PathId>,
    /// Time of each worker's last message.
    heard: BTreeMap<ProcessId, Duration>,
    /// The same, ordered by time.
    silent_since: BTreeSet<(Duration, ProcessId)>,
    /// Number of workers of each token in `heard`.
    tokens: Tally<String>,
    held: BTreeMap<PathId, BTreeSet<ProcessId>>,
    /// Paths that each worker holds, as it reported.
    said: BTreeMap<ProcessId, BTreeSet<PathId>>,
    /// Last worker of each path. States of the path at other workers are older.
    trained: BTreeMap<PathId, ProcessId>,
    /// Tokens of the last workers of each path that nobody has trained under this coordinator.
    left_by: BTreeMap<PathId, BTreeSet<String>>,
    /// Workers that have been forgotten since the last [`Holders::take_forgotten`].
    forgotten: Vec<ProcessId>,
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

    /// Notes that a worker with this token trained a path last, under an earlier coordinator. Workers with other tokens can't hold
    /// the path's newest state.
    pub(crate) fn note_left_by(&mut self, path: PathId, token: &str) {
        self.left_by.entry(path).or_default().insert(token.to_owned());
    }

    /// Records the held paths of a worker that asks for a lease. Returns the paths whose holders changed.
    pub(crate) fn asks(&mut self, now: Duration, worker: &ProcessId, held: &[PathId]) -> Vec<PathId> {
        let mut changed = Vec::new();
        self.note(now, worker);
        let newest = |path: &PathId| match self.trained.get(path) {
            Some(last) => last == worker,
            // Nobody waits for the holders of a path that is not bound.
            None => {
                let left_by = self.left_by.get(path);
                !self.bound.contains(path) || left_by.is_some_and(|tokens| tokens.contains(&worker.token))
            }
        };
        let held: BTreeSet<_> = held.iter().copied().filter(newest).collect();
        let before = self.said.insert(worker.clone(), held.clone()).unwrap_or_default();
        let dropped: Vec<_> = before.difference(&held).copied().collect();
        self.drop_holder(worker, &dropped);
        changed.extend(dropped);
        for path in held {
            if self.held.entry(path).or_default().insert(worker.clone()) {
                changed.push(path);
            }
        }
        changed
    }

    /// Records a message of a worker.
    pub(crate) fn heard(&mut self, now: Duration, worker: &ProcessId) {
        if self.heard.contains_key(worker) {
            self.note(now, worker);
        }
    }

    fn note(&mut self, now: Duration, worker: &ProcessId) {
        if let Some(before) = self.heard.insert(worker.clone(), now) {
            self.silent_since.remove(&(before, worker.clone()));
        } else {
            self.tokens.add(worker.token.clone());
        }
        self.silent_since.insert((now, worker.clone()));
    }

    /// Takes a time in which nobody listened, and which has just ended, for no silence of a worker.
    pub(crate) fn postpone(&mut self, now: Duration, by: Duration) {
        for heard in self.heard.values_mut() {
            *heard = heard.saturating_add(by).min(now);
        }
        self.silent_since = self.heard.iter().map(|(worker, &heard)| (heard, worker.clone())).collect();
    }

    /// Forgets all workers that were silent for `gone`. Returns their held paths.
    pub(crate) fn forget(&mut self, now: Duration, gone: Duration) -> Vec<PathId> {
        let mut changed = Vec::new();
        while self.silent_since.first().is_some_and(|(heard, _)| *heard + gone <= now)
            && let Some((_, worker)) = self.silent_since.pop_first()
        {
            changed.extend(self.forget_worker(&worker));
        }
        changed
    }

    /// Forgets a worker until it asks again. Returns its held paths.
    pub(crate) fn forget_worker(&mut self, worker: &ProcessId) -> Vec<PathId> {
        if let Some(heard) = self.heard.remove(worker) {
            self.silent_since.remove(&(heard, worker.clone()));
            self.tokens.take(&worker.token);
            // Only of a worker that was known is there anything else to forget. Others may come and go without end.
            self.forgotten.push(worker.clone());
        }
        let held: Vec<_> = self.said.remove(worker).into_iter().flatten().collect();
        self.drop_holder(worker, &held);
        held
    }

    /// True if a worker has not been forgotten.
    pub(crate) fn knows(&self, worker: &ProcessId) -> bool {
        self.heard.contains_key(worker)
    }

    /// Number of tokens with a worker that has not been forgotten.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens with a worker that has not been forgotten.
    pub(crate) fn each_token(&self) -> impl Iterator<Item = &String> {
        self.tokens.keys()
    }

    /// True if a worker with this token has not been forgotten.
    pub(crate) fn knows_token(&self, token: &str) -> bool {
        self.tokens.count(token) > 0
    }

    /// Number of workers that have not been forgotten.
    pub(crate) fn count(&self) -> usize {
        self.heard.len()
    }

    /// The workers that have not been forgotten.
    pub(crate) fn known(&self) -> impl Iterator<Item = &ProcessId> {
        self.heard.keys()
    }

    /// The workers that have been forgotten since the last call.
    pub(crate) fn take_forgotten(&mut self) -> Vec<ProcessId> {
        std::mem::take(&mut self.forgotten)
    }

    fn drop_holder(&mut self, worker: &ProcessId, paths: &[PathId]) {
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
    pub(crate) fn trained(&mut self, worker: &ProcessId, path: PathId) {
        self.held.remove(&path);
        self.left_by.remove(&path);
        self.trained.insert(path, worker.clone());
        // No path waits for a forgotten worker.
        if self.heard.contains_key(worker) {
            self.held.insert(path, BTreeSet::from([worker.clone()]));
            self.said.entry(worker.clone()).or_default().insert(path);
        }
    }

    /// True if a path is bound and a worker holds it.
    pub(crate) fn are_waited_for(&self, path: PathId) -> bool {
        self.bound.contains(&path) && self.held.contains_key(&path)
    }

    /// Another worker for which a bound path waits.
    pub(crate) fn other(&self, path: PathId, worker: &ProcessId) -> Option<&ProcessId> {
        let holders =
            self.held.get(&path).filter(|holders| self.bound.contains(&path) && !holders.contains(worker))?;
        holders.first()
    }

    /// At most `count` known workers by name: first the workers after `worker`, then from the first worker on.
    pub(crate) fn after(&self, worker: &ProcessId, most: usize) -> Vec<ProcessId> {
        let later = self.heard.range::<ProcessId, _>((Bound::Excluded(worker), Bound::Unbounded));
        let earlier = self.heard.range::<ProcessId, _>((Bound::Unbounded, Bound::Included(worker)));
        later.chain(earlier).take(most).map(|(worker, _)| worker.clone()).collect()
    }

    /// Paths that a worker holds, in order.
    pub(crate) fn of(&self, worker: &ProcessId) -> impl Iterator<Item = PathId> {
        let holds = |path: &PathId| self.held.get(path).is_some_and(|holders| holders.contains(worker));
        self.said.get(worker).into_iter().flatten().copied().filter(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> ProcessId {
        ProcessId::local(name)
    }

    #[test]
    fn all_workers_are_named_in_turn() {
        let mut holders = Holders::default();
        for worker in ["c", "a", "d", "b", "e"] {
            holders.asks(Duration::ZERO, &named(worker), &[]);
        }
        let mut last = named("");
        let mut seen = Vec::new();
        for _ in 0..3 {
            let named = holders.after(&last, 2);
            last.clone_from(named.last().unwrap());
            seen.extend(named);
        }
        assert_eq!(seen, ["a", "b", "c", "d", "e", "a"].map(named));
        // Each worker once, although some have left meanwhile.
        assert_eq!(holders.after(&named("bb"), 9), ["c", "d", "e", "a", "b"].map(named));
    }

    #[test]
    fn what_a_worker_holds_is_old_once_another_has_trained_the_path() {
        let mut holders = Holders::default();
        let path = PathId(3);
        holders.bind(path, true);
        holders.asks(Duration::ZERO, &named("a"), &[]);
        holders.trained(&named("a"), path);
        holders.asks(Duration::ZERO, &named("b"), &[path]);
        assert_eq!(holders.other(path, &named("b")), Some(&named("a")), "only who trained it last holds it");
        holders.trained(&named("b"), path);
        holders.asks(Duration::ZERO, &named("a"), &[path]);
        assert_eq!(holders.other(path, &named("a")), Some(&named("b")));
    }

    #[test]
    fn only_the_token_that_trained_a_path_last_holds_it_after_a_restart() {
        let mut holders = Holders::default();
        let (path, free) = (PathId(3), PathId(4));
        holders.bind(path, true);
        holders.note_left_by(path, "honest");
        let [liar, honest] = ["liar", "honest"].map(|token| ProcessId { token: token.into(), ..named("a") });
        holders.asks(Duration::ZERO, &liar, &[path, free]);
        assert!(!holders.are_waited_for(path));
        assert_eq!(holders.of(&liar).collect::<Vec<_>>(), [free], "a path that waits for nobody");
        holders.asks(Duration::ZERO, &honest, &[path]);
        assert_eq!(holders.other(path, &liar), Some(&honest));
        // Once a worker has trained the path, only that one holds it.
        holders.trained(&liar, path);
        holders.asks(Duration::ZERO, &honest, &[path]);
        assert_eq!(holders.other(path, &honest), Some(&liar));
    }

    #[test]
    fn nobody_is_silent_while_nobody_listens() {
        let mut holders = Holders::default();
        let at = Duration::from_secs;
        holders.asks(at(0), &named("a"), &[]);
        holders.postpone(at(120), at(100));
        holders.forget(at(159), at(60));
        assert!(holders.knows(&named("a")), "it was heard 20 seconds before");
        // Whoever is heard while others catch up is not heard in the future.
        holders.heard(at(159), &named("a"));
        holders.postpone(at(160), at(100));
        holders.forget(at(220), at(60));
        assert!(!holders.knows(&named("a")));
    }

    #[test]
    fn only_a_worker_that_was_known_is_noted_as_forgotten() {
        let mut holders = Holders::default();
        holders.asks(Duration::ZERO, &named("a"), &[PathId(3)]);
        for instance in 1..4 {
            // It joins and leaves, and asks for nothing.
            holders.forget_worker(&ProcessId { instance, ..named("a") });
            holders.forget_worker(&named("a"));
        }
        assert_eq!(holders.take_forgotten(), [named("a")]);
    }

    #[test]
    fn a_new_process_of_a_worker_takes_nothing_from_the_old_one_until_that_is_forgotten() {
        let mut holders = Holders::default();
        let path = PathId(3);
        holders.bind(path, true);
        holders.note_left_by(path, "");
        let old = ProcessId { instance: 7, ..named("a") };
        holders.asks(Duration::ZERO, &old, &[path]);
        assert_eq!(holders.other(path, &named("b")), Some(&old));
        // Whoever has the token may give the name.
        assert!(holders.asks(Duration::ZERO, &ProcessId { instance: 8, ..named("a") }, &[]).is_empty());
        assert_eq!(holders.other(path, &named("b")), Some(&old));
        assert_eq!(holders.forget_worker(&old), [path]);
        assert_eq!(holders.other(path, &named("b")), None);
        assert!(!holders.knows(&old));
    }
}
