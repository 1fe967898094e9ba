//! Workers for which the training of a path has not come to an end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_topology::PathId;

use crate::ProcessId;
use crate::holders::Holders;

/// Number of workers with one token that a path's record names. Who holds a token may invent names.
const MOST_NAMES: usize = 64;

/// A path has had enough of a token when its workers have left this many leases of the path unfinished since the path's last
/// completed lease. The first may be a restart.
const ENOUGH_UNFINISHED: u32 = 2;

/// The workers of which each path has had enough since its last completed lease: their training of it failed or stood still, or
/// they left leases of it unfinished again and again. Other workers get the path first.
///
/// Whoever holds a token may work under any number of names. So workers with other tokens go first, and workers with other
/// names only when no other token is left.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    of: BTreeMap<PathId, PathTroubles>,
    /// Number of unfinished leases of each path since its last completed lease, by token.
    unfinished: BTreeMap<PathId, BTreeMap<String, u32>>,
    /// Tokens whose workers have completed leases of the run.
    contributors: BTreeSet<String>,
}

/// The workers of which a path has had enough.
#[derive(Debug, Default)]
struct PathTroubles {
    failed: Workers,
    stood_still: Workers,
    /// Workers that left leases unfinished again and again. They may be killed by others, so this says nothing of the training: they
    /// leave the path to others, and can try it none the less.
    left: Workers,
    /// Time of the first failure.
    since: Option<Duration>,
}

/// Workers by token and name. A new process of a worker is the same machine.
#[derive(Debug, Default)]
struct Workers(BTreeSet<(String, String)>);

impl Workers {
    fn add(&mut self, worker: &ProcessId) {
        if self.of_token(&worker.token).count() < MOST_NAMES {
            self.0.insert(key(worker));
        }
    }

    fn of_token<'a>(&'a self, token: &'a str) -> impl Iterator<Item = &'a (String, String)> {
        let first = (token.to_owned(), String::new());
        self.0.range(first..).take_while(move |(other, _)| other == token)
    }

    fn tokens(&self) -> usize {
        self.0.iter().map(|(token, _)| token).collect::<BTreeSet<_>>().len()
    }
}

fn key(worker: &ProcessId) -> (String, String) {
    (worker.token.clone(), worker.name.clone())
}

impl Troubles {
    /// Notes that a worker's training of a path failed.
    pub(crate) fn fails(&mut self, now: Duration, path: PathId, worker: &ProcessId) {
        let troubles = self.of.entry(path).or_default();
        troubles.failed.add(worker);
        troubles.since.get_or_insert(now);
    }

    /// Notes that a worker's training of a path stood still.
    pub(crate) fn stands_still(&mut self, path: PathId, worker: &ProcessId) {
        self.of.entry(path).or_default().stood_still.add(worker);
    }

    /// Notes that a worker's lease of a path has ended unfinished, because its worker gave it back or was silent. Returns true if
    /// the path has had enough of its token.
    pub(crate) fn ends_unfinished(&mut self, path: PathId, worker: &ProcessId) -> bool {
        let of_tokens = self.unfinished.entry(path).or_default();
        let times = of_tokens.entry(worker.token.clone()).or_default();
        *times = times.saturating_add(1);
        let enough = *times >= ENOUGH_UNFINISHED;
        if enough {
            self.of.entry(path).or_default().left.add(worker);
        }
        enough
    }

    /// Notes that workers with a token have contributed to the run.
    pub(crate) fn contributes(&mut self, token: &str) {
        if !self.contributors.contains(token) {
            self.contributors.insert(token.to_owned());
        }
    }

    /// Forgets a path's workers: a lease of it is complete, or nobody trains it any more.
    pub(crate) fn forget(&mut self, path: PathId) {
        self.of.remove(&path);
        self.unfinished.remove(&path);
    }

    /// The paths that have had enough of a worker.
    pub(crate) fn paths(&self) -> impl Iterator<Item = PathId> + '_ {
        self.of.keys().copied()
    }

    /// Names of the workers for which the training of a path failed.
    pub(crate) fn failed(&self, path: PathId) -> Vec<String> {
        let workers = self.of.get(&path).into_iter().flat_map(|troubles| &troubles.failed.0);
        workers.map(|(_, name)| name.clone()).collect()
    }

    /// How many accounts say that a path's training fails. While another token can try, all workers with one token are one
    /// account. A token that has contributed and is not connected has `patience` for it, from the first failure on: its
    /// workers may have lost the coordinator, and a liar may have found it first.
    pub(crate) fn accounts(&self, now: Duration, patience: Duration, path: PathId, known: &Holders) -> usize {
        let Some(troubles) = self.of.get(&path) else { return 0 };
        let patient = troubles.since.is_some_and(|since| now < since.saturating_add(patience));
        let tried = troubles.tried();
        let may_come = patient && self.contributors.iter().any(|token| !tried.have_token(token));
        let failed = &troubles.failed;
        if may_come || tried.lack_a_token(known) { failed.tokens() } else { failed.0.len() }
    }

    /// True if a worker is known that can still try a path.
    pub(crate) fn others_can_try(&self, path: PathId, known: &Holders) -> bool {
        match self.of.get(&path) {
            Some(troubles) => {
                let tried = troubles.tried();
                tried.lack_a_token(known) || tried.lack_a_worker(known)
            }
            None => known.known().next().is_some(),
        }
    }

    /// True if a worker leaves a path to others: the path has had enough of it, and others can try.
    pub(crate) fn leaves_to_others(&self, path: PathId, worker: &ProcessId, known: &Holders) -> bool {
        self.of.get(&path).is_some_and(|troubles| {
            let all = troubles.all();
            all.have_token(&worker.token)
                && (all.lack_a_token(known) || all.have_worker(worker) && all.lack_a_worker(known))
        })
    }
}

impl PathTroubles {
    /// The workers that have tried to train the path.
    fn tried(&self) -> AnyOf<'_, 2> {
        AnyOf([&self.failed, &self.stood_still])
    }

    /// The workers of which the path has had enough.
    fn all(&self) -> AnyOf<'_, 3> {
        AnyOf([&self.failed, &self.stood_still, &self.left])
    }
}

/// The workers of several sets.
struct AnyOf<'a, const N: usize>([&'a Workers; N]);

impl<const N: usize> AnyOf<'_, N> {
    fn have_token(&self, token: &str) -> bool {
        self.0.iter().any(|workers| workers.of_token(token).next().is_some())
    }

    fn have_worker(&self, worker: &ProcessId) -> bool {
        self.0.iter().any(|workers| workers.0.contains(&key(worker)))
    }

    /// True if a known token has no worker among them.
    fn lack_a_token(&self, known: &Holders) -> bool {
        known.each_token().any(|token| !self.have_token(token))
    }

    /// True if a known worker is not among them.
    fn lack_a_worker(&self, known: &Holders) -> bool {
        known.known().any(|worker| !self.have_worker(worker))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PATH: PathId = PathId(3);

    fn worker(token: &str, name: &str) -> ProcessId {
        ProcessId { token: token.into(), ..ProcessId::local(name) }
    }

    fn known(workers: &[ProcessId]) -> Holders {
        let mut holders = Holders::default();
        for worker in workers {
            holders.asks(Duration::ZERO, worker, &[]);
        }
        holders
    }

    const NOW: Duration = Duration::ZERO;
    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn workers_with_one_token_are_one_account_while_another_token_can_try() {
        let (liar, twin) = (worker("liar", "a"), worker("liar", "b"));
        let honest = worker("honest", "a");
        let all = known(&[liar.clone(), twin.clone(), honest.clone()]);
        let mut troubles = Troubles::default();
        for name in 0..1000 {
            troubles.fails(NOW, PATH, &worker("liar", &name.to_string()));
        }
        assert_eq!(troubles.accounts(NOW, PATIENCE, PATH, &all), 1);
        assert!(troubles.leaves_to_others(PATH, &liar, &all) && troubles.leaves_to_others(PATH, &twin, &all));
        assert!(!troubles.leaves_to_others(PATH, &honest, &all));
        assert_eq!(troubles.failed(PATH).len(), MOST_NAMES, "a token's names take bounded room");
        troubles.fails(NOW, PATH, &honest);
        let accounts = troubles.accounts(NOW, PATIENCE, PATH, &all);
        assert_eq!(accounts, MOST_NAMES + 1, "no other token is left");
        troubles.forget(PATH);
        assert!(!troubles.leaves_to_others(PATH, &liar, &all));
        assert_eq!(troubles.accounts(NOW, PATIENCE, PATH, &all), 0);
    }

    #[test]
    fn a_path_has_had_enough_of_a_token_at_its_second_unfinished_lease_in_a_row() {
        let (liar, twin) = (worker("liar", "a"), worker("liar", "b"));
        let honest = worker("honest", "a");
        let all = known(&[liar.clone(), twin.clone(), honest.clone()]);
        let mut troubles = Troubles::default();
        for _ in 0..3 {
            // Each token may leave a lease unfinished between two completed ones.
            assert!(!troubles.ends_unfinished(PATH, &honest) && !troubles.ends_unfinished(PATH, &liar));
            assert!(!troubles.leaves_to_others(PATH, &liar, &all));
            troubles.forget(PATH);
        }
        assert!(!troubles.ends_unfinished(PATH, &liar) && !troubles.ends_unfinished(PATH, &honest));
        assert!(troubles.ends_unfinished(PATH, &twin), "the names of a token count together");
        assert!(troubles.ends_unfinished(PATH, &liar));
        assert!(troubles.leaves_to_others(PATH, &liar, &all) && troubles.leaves_to_others(PATH, &twin, &all));
        assert!(!troubles.leaves_to_others(PATH, &honest, &all));
        // Whoever kills the workers of others does not make each of its own names an account.
        assert!(troubles.ends_unfinished(PATH, &honest));
        for name in ["a", "b", "c"] {
            troubles.fails(NOW, PATH, &worker("liar", name));
        }
        assert_eq!(troubles.accounts(NOW, PATIENCE, PATH, &all), 1, "the other token can still try");
        assert!(troubles.others_can_try(PATH, &all));
        troubles.forget(PATH);
        assert!(!troubles.leaves_to_others(PATH, &liar, &all));
    }

    #[test]
    fn a_contributor_that_is_away_has_time_to_try() {
        let liars = ["a", "b"].map(|name| worker("liar", name));
        let all = known(&liars);
        let mut troubles = Troubles::default();
        troubles.contributes("honest");
        let begin = Duration::from_secs(5);
        liars.iter().for_each(|liar| troubles.fails(begin, PATH, liar));
        for (seconds, accounts) in [(5, 1), (14, 1), (15, 2)] {
            assert_eq!(troubles.accounts(Duration::from_secs(seconds), PATIENCE, PATH, &all), accounts);
        }
    }

    #[test]
    fn workers_with_the_only_token_are_accounts_of_their_own() {
        let workers = [worker("t", "a"), worker("t", "b"), worker("t", "c")];
        let all = known(&workers);
        let mut troubles = Troubles::default();
        troubles.contributes("t");
        troubles.fails(NOW, PATH, &workers[0]);
        troubles.stands_still(PATH, &workers[1]);
        let accounts = troubles.accounts(NOW, PATIENCE, PATH, &all);
        assert_eq!(accounts, 1, "a worker that stands still says nothing of the training");
        let leaves = |troubles: &Troubles| {
            workers.each_ref().map(|worker| troubles.leaves_to_others(PATH, worker, &all))
        };
        assert_eq!(leaves(&troubles), [true, true, false]);
        troubles.fails(NOW, PATH, &workers[2]);
        assert_eq!(troubles.accounts(NOW, PATIENCE, PATH, &all), 2);
        assert_eq!(leaves(&troubles), [false; 3], "nobody is left, so everybody may try again");
    }
}
