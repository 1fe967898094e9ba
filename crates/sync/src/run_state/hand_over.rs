//! Which paths change hands between workers that keep their states.

use dipaco_topology::PathId;

use super::RunState;

/// A worker that has so many times as much to do as another one would have with a path more gives one away.
const UNEVEN: f64 = 2.0;

/// Workers that a lease is compared with; the next lease is compared with those after them, so that a lease of a run with
/// thousands of workers costs no more than one of a small run.
const COMPARED: usize = 16;

impl RunState {
    /// For whom the holder of a path brings its state with a lease from `from` on, so that the path is free afterwards: a
    /// worker that is more than a round ahead with its own paths and would not have more to do than this one has now, or
    /// that would have half as much at most.
    ///
    /// Workers that keep states divide the paths among them as they happen to ask for their first leases. Where paths do
    /// not wait for each other, those of the worker that got fewer run ahead, and what the others contribute is rounds
    /// behind the weights that it changes; and one that joins later has nothing to go on with.
    pub(super) fn hand_over(&mut self, path: PathId, from: u64, worker: &str) -> Option<String> {
        let own = self.unfinished(worker).filter(|&other| other != path).count() + 1;
        let open = self.ready.first_open().map(|(steps, _)| steps);
        // One after the other: whoever is to take a path asks before another one is brought.
        if own < 2
            || open.is_some_and(|steps| steps <= from)
            || self.leases.values().any(|lease| lease.hands_over.is_some())
        {
            return None;
        }
        let others = self.holders.after(&self.compared, COMPARED);
        let fastest = self.fastest();
        // How long so many paths keep a worker busy, in seconds for an inner step of each.
        let busy = |worker: &str, paths: usize| seconds(paths, self.speed(worker, fastest));
        let to_do = busy(worker, own);
        let gains = |other: &&String| {
            let (paths, first) = self.unfinished(other).fold((0, None), |(paths, first), path| {
                let steps = self.path(path).steps;
                (paths + 1, Some(first.map_or(steps, |first: u64| first.min(steps))))
            });
            let takes_another = open.is_some_and(|open| first.is_none_or(|first| open < first));
            let ahead = first.is_some_and(|first| first > from + self.plan.schedule.inner_steps());
            let with_one_more = busy(other, paths + 1);
            // What is ahead by now stays ahead between workers that have as much to do.
            *other != worker
                && !takes_another
                && (to_do >= UNEVEN * with_one_more || ahead && to_do >= with_one_more)
        };
        let gaining = others.iter().find(gains).cloned();
        self.compared = others.into_iter().last().unwrap_or_default();
        gaining
    }

    /// The paths that a worker holds and that are to be trained further in this phase.
    fn unfinished<'a>(&'a self, worker: &'a str) -> impl Iterator<Item = PathId> + 'a {
        self.holders.of(worker).filter(|&path| self.path(path).steps < self.end())
    }
}

/// The seconds of an inner step of each of so many paths.
fn seconds(paths: usize, speed: f64) -> f64 {
    // There are at most 2^20 paths, which f64 holds exactly.
    #[allow(clippy::cast_precision_loss)]
    let paths = paths as f64;
    paths / speed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use dipaco_topology::{LevelConfig, Modules, Topology, TopologyConfig};

    use super::*;
    use crate::{
        Commit, Grant, Lease, LeaseOutcome, Quorum, Reason, RunPlan, Schedule, Scheme, TrainingProgress,
    };

    const STEPS: u64 = 10;
    const NOW: Duration = Duration::ZERO;

    /// Eight paths and their workers, which keep the states of all paths that they have trained and say so.
    struct Run {
        rounds: RunState,
        kept: BTreeMap<&'static str, Vec<PathId>>,
    }

    impl Run {
        fn new(scheme: Scheme) -> Self {
            let level =
                LevelConfig { modules: Modules::Count(8), blocks: "0".into(), embedding: true, head: true };
            let topology = Topology::new(&TopologyConfig { replicas: 1, levels: vec![level] }, 1).unwrap();
            let schedule = Schedule::new(STEPS, 1, 0, vec![100 * STEPS]).unwrap();
            let plan = RunPlan { schedule, scheme, phase: 0, lease: Duration::from_secs(60) };
            let progress = TrainingProgress::start(&topology, 1);
            Self { rounds: RunState::new(topology, plan, progress, 1).unwrap(), kept: BTreeMap::new() }
        }

        fn ask(&mut self, worker: &'static str) -> Grant {
            let kept = self.kept.entry(worker).or_default();
            self.rounds.grant(NOW, worker, kept)
        }

        /// Trains the worker's next path.
        fn train(&mut self, worker: &'static str) -> Lease {
            let Grant::Lease(lease) = self.ask(worker) else { panic!("{worker} has nothing to do") };
            let done = LeaseOutcome { seconds: 1.0, ..LeaseOutcome::default() };
            assert!(matches!(self.rounds.commit(lease.path, lease.fence, &done), Commit::Accepted(_)));
            self.rounds.bind(lease.path, lease.hands_over.is_none());
            self.kept.entry(worker).or_default().push(lease.path);
            for step in self.rounds.due(NOW) {
                assert!(self.rounds.stepped(&step, Duration::ZERO));
            }
            lease
        }

        fn steps(&self) -> Vec<u64> {
            self.rounds.progress().paths.iter().map(|path| path.steps / STEPS).collect()
        }
    }

    fn quorum() -> Scheme {
        let (grace, grace_share, throttle) = (Duration::ZERO, 0.0, 0.0);
        Scheme::Quorum(Quorum { learners: 1, grace, grace_share, throttle, dynamic_steps: false })
    }

    #[test]
    fn no_path_runs_ahead_of_those_of_a_worker_that_has_more() {
        let mut run = Run::new(quorum());
        // Five paths for one worker and three for the other, which are equally fast.
        for worker in ["a", "b", "a", "b", "a", "b", "a", "a"] {
            run.train(worker);
        }
        let mut handed = Vec::new();
        for _ in 0..60 {
            for worker in ["b", "a"] {
                let lease = run.train(worker);
                handed.extend(lease.hands_over.map(|to| (worker, to, lease.path)));
            }
            let steps = run.steps();
            let (most, least) = (steps.iter().max().unwrap(), steps.iter().min().unwrap());
            assert!(most - least <= 3, "{steps:?}");
        }
        // Once is enough, and the path has gone on with the other one although the first says that it holds it.
        let [(from, to, path)] = &handed[..] else { panic!("{handed:?}") };
        assert_eq!((*from, to.as_str()), ("a", "b"));
        assert_eq!(run.rounds.holders.other(*path, "a"), Some("b"));
    }

    #[test]
    fn a_worker_that_joins_gets_paths_of_those_that_have_many() {
        for scheme in [Scheme::Synchronous, quorum()] {
            let mut run = Run::new(scheme);
            (0..8).for_each(|_| drop(run.train("a")));
            assert!(matches!(run.ask("b"), Grant::Wait(Reason::Held { .. })), "{scheme:?}");
            assert_eq!(run.train("a").hands_over.as_deref(), Some("b"));
            // The next one stays, for the one that was brought is not taken up yet.
            assert_eq!(run.train("a").hands_over, None);
            run.train("b");
            assert_eq!(run.train("a").hands_over.as_deref(), Some("b"));
        }
    }

    #[test]
    fn the_only_path_of_a_worker_stays_with_it() {
        let mut run = Run::new(Scheme::Synchronous);
        for worker in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            run.train(worker);
        }
        assert!(matches!(run.ask("idle"), Grant::Wait(_)));
        for worker in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            assert_eq!(run.train(worker).hands_over, None);
        }
    }
}
