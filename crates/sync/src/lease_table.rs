//! The granted leases, with indexes: no question about them looks at all leases.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_topology::PathId;

use crate::tally::Tally;
use crate::{Lease, LeaseClaim, ProcessId};

/// All granted leases: the current ones, at most one per path, and those that follow a current lease on its path.
#[derive(Debug, Default)]
pub(crate) struct LeaseTable {
    current: BTreeMap<PathId, Lease>,
    following: BTreeMap<PathId, Lease>,
    /// Paths of the current leases of each process that has one.
    of_processes: BTreeMap<ProcessId, BTreeSet<PathId>>,
    /// Number of current leases of each token that has one.
    of_tokens: Tally<String>,
    /// Time at which each current lease ends without a message of its worker.
    ends: BTreeSet<(Duration, PathId)>,
    /// Number of granted leases that hand their path over.
    handing_over: usize,
}

impl LeaseTable {
    /// The current lease of a path.
    pub(crate) fn get(&self, path: PathId) -> Option<&Lease> {
        self.current.get(&path)
    }

    /// The lease that follows the current lease of a path.
    pub(crate) fn following(&self, path: PathId) -> Option<&Lease> {
        self.following.get(&path)
    }

    /// The current leases, by path.
    pub(crate) fn current(&self) -> impl Iterator<Item = &Lease> {
        self.current.values()
    }

    /// Number of current leases.
    pub(crate) fn len(&self) -> usize {
        self.current.len()
    }

    /// Number of granted leases of a process.
    pub(crate) fn of_process(&self, process: &ProcessId) -> usize {
        let paths = self.of_processes.get(process).into_iter().flatten();
        paths.map(|path| 1 + usize::from(self.following.contains_key(path))).sum()
    }

    /// The current leases of the processes with a token, and with a name if one is given; process by process.
    pub(crate) fn of_kin(&self, token: &str, name: Option<&str>) -> impl Iterator<Item = &Lease> {
        let first =
            ProcessId { token: token.to_owned(), name: name.unwrap_or_default().to_owned(), instance: 0 };
        let is_kin =
            move |process: &ProcessId| process.token == token && name.is_none_or(|name| process.name == name);
        let kin = self.of_processes.range(first..).take_while(move |(process, _)| is_kin(process));
        kin.flat_map(|(_, paths)| paths).filter_map(|path| self.current.get(path))
    }

    /// Number of paths on which processes with a token have current leases.
    pub(crate) fn of_token(&self, token: &str) -> usize {
        self.of_tokens.count(token)
    }

    /// The tokens with a current lease.
    pub(crate) fn each_token(&self) -> impl Iterator<Item = &String> {
        self.of_tokens.keys()
    }

    /// Number of tokens with a current lease.
    pub(crate) fn tokens(&self) -> usize {
        self.of_tokens.len()
    }

    /// True if a granted lease hands its path over: a current one, or one that follows it.
    pub(crate) fn hands_over(&self) -> bool {
        self.handing_over > 0
    }

    /// Time at which the first current lease ends without a message of its worker.
    pub(crate) fn first_end(&self) -> Option<Duration> {
        self.ends.first().map(|&(end, _)| end)
    }

    /// Makes a lease the current one of its path.
    pub(crate) fn insert(&mut self, lease: Lease) {
        self.take_current(lease.path);
        self.of_processes.entry(lease.worker.clone()).or_default().insert(lease.path);
        self.of_tokens.add(lease.worker.token.clone());
        self.ends.insert((end(&lease), lease.path));
        self.handing_over += usize::from(lease.hands_over.is_some());
        self.current.insert(lease.path, lease);
    }

    /// Adds a lease that follows the current lease of its path.
    pub(crate) fn follow(&mut self, lease: Lease) {
        self.take_following(lease.path);
        self.handing_over += usize::from(lease.hands_over.is_some());
        self.following.insert(lease.path, lease);
    }

    /// Removes the current lease of a path and the lease that follows it. Returns the current one.
    pub(crate) fn remove(&mut self, path: PathId) -> Option<Lease> {
        self.take_following(path);
        self.take_current(path)
    }

    /// Removes the completed current lease of a path. The lease that follows it becomes the current one at `since`, and
    /// ends at `stands_still` without a further inner step. Returns true if there is one.
    pub(crate) fn complete(&mut self, path: PathId, since: Duration, stands_still: Duration) -> bool {
        let Some(completed) = self.take_current(path) else { return false };
        let Some(following) = self.take_following(path) else { return false };
        // The worker's heartbeats named the completed lease, so the next one begins with the time they gave.
        self.insert(Lease { since, deadline: completed.deadline, stands_still, ..following });
        true
    }

    /// Renews the lease of a claim: sets the deadline of the path's current lease. If `taken` is more inner steps than
    /// the lease had, it stands still from now on, until `stands_still`, and at most `longest` after its beginning, without the
    /// time for which it was postponed. Returns false if the claim names no lease.
    pub(crate) fn renew(
        &mut self,
        claim: &LeaseClaim,
        taken: u64,
        deadline: Duration,
        stands_still: Duration,
        longest: Duration,
    ) -> bool {
        let path = claim.key.path;
        let of_path = [self.current.get_mut(&path), self.following.get_mut(&path)];
        let before = of_path[0].as_deref().map(end);
        let Some(lease) = of_path.into_iter().flatten().find(|lease| lease.admits(claim)) else {
            return false;
        };
        if taken > lease.taken {
            lease.taken = taken;
            let latest = lease.since.saturating_add(lease.postponed).saturating_add(longest);
            lease.stands_still = stands_still.min(latest);
        }
        // Also for a following lease: its worker is alive, and uploads the results of the current one.
        if let (Some(current), Some(before)) = (self.current.get_mut(&path), before) {
            current.deadline = deadline;
            self.ends.remove(&(before, path));
            self.ends.insert((end(current), path));
        }
        true
    }

    /// Removes the leases that end by `now`, with the leases that follow them. Returns the current ones, by path.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<Lease> {
        let ended: BTreeSet<PathId> =
            self.ends.iter().take_while(|&&(end, _)| end <= now).map(|&(_, path)| path).collect();
        ended.into_iter().filter_map(|path| self.remove(path)).collect()
    }

    /// Gives the current leases more time: each has at most this deadline, and stands still at most until `stands_still`.
    pub(crate) fn postpone(&mut self, by: Duration, deadline: Duration, stands_still: Duration) {
        for lease in self.current.values_mut() {
            lease.postponed = lease.postponed.saturating_add(by);
            lease.deadline = lease.deadline.saturating_add(by).min(deadline);
            lease.stands_still = lease.stands_still.saturating_add(by).min(stands_still);
        }
        self.ends = self.current.iter().map(|(&path, lease)| (end(lease), path)).collect();
    }

    fn take_following(&mut self, path: PathId) -> Option<Lease> {
        let lease = self.following.remove(&path)?;
        self.handing_over -= usize::from(lease.hands_over.is_some());
        Some(lease)
    }

    fn take_current(&mut self, path: PathId) -> Option<Lease> {
        let lease = self.current.remove(&path)?;
        self.ends.remove(&(end(&lease), path));
        self.handing_over -= usize::from(lease.hands_over.is_some());
        if let Some(paths) = self.of_processes.get_mut(&lease.worker) {
            paths.remove(&path);
            if paths.is_empty() {
                self.of_processes.remove(&lease.worker);
            }
        }
        self.of_tokens.take(&lease.worker.token);
        Some(lease)
    }
}

/// Time at which a lease ends without a message of its worker.
fn end(lease: &Lease) -> Duration {
    lease.deadline.min(lease.stands_still)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drops::hash;
    use crate::{Fence, LeaseSecret, LeaseTask};

    fn lease(path: u32, worker: usize, fence: u64, end: u64) -> Lease {
        let token = format!("token {}", worker % 2);
        Lease {
            path: PathId(path),
            from: 0,
            to: 1,
            fence: Fence(fence),
            task: LeaseTask::Train,
            receives: Vec::new(),
            sends: Vec::new(),
            secret: LeaseSecret::default(),
            worker: ProcessId { token, ..ProcessId::local(&format!("worker {worker}")) },
            numerics: String::new(),
            hands_over: fence.is_multiple_of(3).then(|| ProcessId::local("another")),
            crowded: false,
            granted: Duration::ZERO,
            since: Duration::ZERO,
            postponed: Duration::ZERO,
            deadline: Duration::from_secs(end),
            taken: 0,
            stands_still: Duration::from_secs(end + fence % 5),
        }
    }

    /// The indexes say what a look at all leases says.
    fn check(table: &LeaseTable) {
        for worker in 0..4 {
            let ProcessId { token, .. } = lease(0, worker, 0, 0).worker;
            let process = lease(0, worker, 0, 0).worker;
            let all = table.current.values().chain(table.following.values());
            assert_eq!(table.of_process(&process), all.filter(|l| l.worker == process).count());
            let of_kin = |name| table.of_kin(&token, name).map(|lease| lease.path).collect::<BTreeSet<_>>();
            let scan = |is: &dyn Fn(&ProcessId) -> bool| {
                table.current().filter(|l| is(&l.worker)).map(|lease| lease.path).collect::<BTreeSet<_>>()
            };
            assert_eq!(of_kin(None), scan(&|worker| worker.token == token));
            assert_eq!(of_kin(Some(&process.name)), scan(&|worker| worker.is_kin_of(&process)));
            assert_eq!(table.of_token(&token), table.current().filter(|l| l.worker.token == token).count());
        }
        let tokens: BTreeSet<_> = table.current().map(|lease| &lease.worker.token).collect();
        assert_eq!(table.tokens(), tokens.len());
        let granted = table.current.values().chain(table.following.values());
        assert_eq!(table.handing_over, granted.filter(|lease| lease.hands_over.is_some()).count());
        assert_eq!(table.first_end(), table.current().map(end).min());
        assert_eq!(table.ends.len(), table.len());
        assert!(table.following.keys().all(|path| table.current.contains_key(path)));
    }

    #[test]
    fn the_indexes_agree_with_the_leases_after_any_changes() {
        let mut table = LeaseTable::default();
        let mut draws = 0;
        let mut random = |most: u64| {
            draws += 1;
            hash([7, draws]) % most
        };
        let mut seen = [0; 7];
        for step in 0..4_000 {
            let path = PathId(random(8) as u32);
            let (second, next) = (Duration::from_secs(step / 10), step / 10 + 5);
            let current = table.get(path).cloned();
            let kind = random(7) as usize;
            match (kind, current) {
                (0, None) => table.insert(lease(path.0, random(4) as usize, step, next)),
                (1, Some(current)) => {
                    table.follow(Lease { worker: current.worker, ..lease(path.0, 0, step, next) });
                }
                (2, Some(current)) => {
                    let follows = table.following(path).is_some();
                    assert_eq!(table.complete(path, second, second + Duration::from_secs(9)), follows);
                    assert!(table.get(path).is_none_or(|lease| lease.deadline == current.deadline));
                }
                (3, Some(current)) => {
                    let of =
                        table.following(path).cloned().filter(|_| step.is_multiple_of(2)).unwrap_or(current);
                    assert!(table.renew(
                        &of.claim(),
                        of.taken + step % 2,
                        second * 2,
                        second * 3,
                        second * 4
                    ));
                    let other = ProcessId::local("stranger");
                    let foreign = LeaseClaim { worker: other, ..of.claim() };
                    assert!(!table.renew(&foreign, 99, Duration::MAX, Duration::MAX, Duration::MAX));
                }
                (4, current) => assert_eq!(table.remove(path), current),
                (6, _) => table.postpone(Duration::from_secs(random(3)), second * 2, second * 3),
                (5, _) if step.is_multiple_of(7) => {
                    let expected: Vec<_> =
                        table.current().filter(|lease| end(lease) <= second).cloned().collect();
                    assert_eq!(table.expire(second), expected);
                }
                _ => continue,
            }
            seen[kind] += 1;
            check(&table);
        }
        assert!(seen.iter().all(|&times| times > 30), "{seen:?}");
    }
}
