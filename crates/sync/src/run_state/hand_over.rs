//! Change of hands: paths that move between workers that keep their states.

use dipaco_topology::PathId;

use super::RunState;
use crate::ProcessId;

/// A worker gives away a path if it has this many times the work that the other worker would have with one path more.
const UNEVEN: f64 = 2.0;

/// Number of workers compared with a lease. The next lease is compared with the workers after them, so the cost of a
/// lease does not grow with the number of workers.
const COMPARED: usize = 16;

impl RunState {
    /// The worker to which a path changes hands with a lease from `from`. It is more than a round ahead with its own
    /// paths and would not have more work than the holder has now, or it would have at most half of the holder's work.
    /// The holder uploads the state with this lease, and the path is free afterwards.
    ///
    /// Workers that keep states share the paths by the order of their first requests. If paths do not wait for each
    /// other, the paths of a worker with few paths run ahead, and the contributions of the others are rounds behind
    /// the weights that they change. A worker that joins later would have no path at all.
    pub(super) fn hand_over(&mut self, path: PathId, from: u64, worker: &ProcessId) -> Option<ProcessId> {
        let own = self.unfinished(worker).filter(|&other| other != path).count() + 1;
        let open = self.ready.open().next().map(|(steps, _)| steps);
        // One path at a time: the other worker must ask for this path before the next one changes hands.
        if own < 2 || open.is_some_and(|steps| steps <= from) || self.leases.hands_over() {
            return None;
        }
        let others = self.holders.after(&self.compared, COMPARED);
        let fastest = self.speeds.fastest();
        // Work of a worker with this many paths: seconds for one inner step of each.
        let busy = |worker: &ProcessId, paths: usize| seconds(paths, self.speed(worker, fastest));
        let to_do = busy(worker, own);
        let gains = |other: &&ProcessId| {
            let (paths, first) = self.unfinished(other).fold((0, None), |(paths, first), path| {
                let steps = self.path(path).steps;
                (paths + 1, Some(first.map_or(steps, |first: u64| first.min(steps))))
            });
            let takes_another = open.is_some_and(|open| first.is_none_or(|first| open < first));
            let ahead = first.is_some_and(|first| first > from + self.plan.schedule.inner_steps());
            let with_one_more = busy(other, paths + 1);
            // Between workers with equal work a lead persists.
            *other != worker
                && !takes_another
                && (to_do >= UNEVEN * with_one_more || ahead && to_do >= with_one_more)
        };
        let gaining = others.iter().find(gains).cloned();
        if let Some(last) = others.into_iter().last() {
            self.compared = last;
        }
        gaining
    }

    /// Held paths of a worker that still have inner steps in this phase.
    pub(super) fn unfinished<'a>(&'a self, worker: &'a ProcessId) -> impl Iterator<Item = PathId> + 'a {
        self.holders.of(worker).filter(|&path| self.path(path).steps < self.end())
    }
}

/// Seconds for one inner step of each of this many paths.
fn seconds(paths: usize, speed: f64) -> f64 {
    let paths = paths as f64;
    paths / speed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use dipaco_topology::{Modules, Topology, TopologyConfig};

    use super::*;
    use crate::{
        Commit, Grant, Lease, LeaseLimits, LeaseOutcome, LeaseRequest, LeaseSecret, Quorum, Reason, RunPlan,
        Schedule, Scheme, TrainingProgress,
    };

    const STEPS: u64 = 10;
    const NOW: Duration = Duration::ZERO;

    /// Eight paths and their workers. The workers keep and report the states of all paths that they trained.
    struct Run {
        rounds: RunState,
        kept: BTreeMap<&'static str, Vec<PathId>>,
    }

    impl Run {
        fn new(scheme: Scheme) -> Self {
            Self::overlapping(scheme, 0)
        }

        /// A run with an overlap of so many steps.
        fn overlapping(scheme: Scheme, overlap: u64) -> Self {
            let mut config = TopologyConfig::dense(1);
            config.levels[0].modules = Modules::Count(8);
            let topology = Topology::new(&config, 1).unwrap();
            let schedule = Schedule::new(STEPS, 1, overlap, vec![100 * STEPS]).unwrap();
            let plan = RunPlan {
                schedule,
                scheme,
                phase: 0,
                limits: LeaseLimits::of_silence(Duration::from_secs(60)),
            };
            let progress = TrainingProgress::start(&topology, 1);
            Self { rounds: RunState::new(topology, plan, progress, 1).unwrap(), kept: BTreeMap::new() }
        }

        fn ask(&mut self, worker: &'static str) -> Grant {
            let kept = self.kept.entry(worker).or_default();
            let request = LeaseRequest {
                worker: &ProcessId::local(worker),
                held: kept,
                secret: LeaseSecret::default(),
                numerics: "",
            };
            self.rounds.grant(NOW, &request)
        }

        /// Trains the worker's next path.
        fn train(&mut self, worker: &'static str) -> Lease {
            let Grant::Lease(lease) = self.ask(worker) else { panic!("{worker} has nothing to do") };
            self.send(&lease);
            let done = LeaseOutcome { seconds: 1.0, ..LeaseOutcome::default() };
            assert!(matches!(self.rounds.commit(NOW, &lease.claim(), &done), Commit::Accepted(_)));
            self.rounds.bind(lease.path, lease.hands_over.is_none());
            self.kept.entry(worker).or_default().push(lease.path);
            for step in self.rounds.due(NOW) {
                assert!(self.rounds.stepped(&step, Duration::ZERO));
            }
            *lease
        }

        /// Sends the outer gradients of a lease, and takes the outer steps that are due.
        fn send(&mut self, lease: &Lease) {
            for send in &lease.sends {
                let expected = self.rounds.expects(&lease.claim(), send.fragment, send.number, 1).unwrap();
                assert!(matches!(self.rounds.contribute(&expected), Commit::Accepted(_)));
            }
            for step in self.rounds.due(NOW) {
                assert!(self.rounds.stepped(&step, Duration::ZERO));
            }
        }

        fn steps(&self) -> Vec<u64> {
            self.rounds.progress().paths.values().map(|path| path.steps / STEPS).collect()
        }
    }

    fn quorum() -> Scheme {
        let (grace, grace_share, throttle) = (Duration::ZERO, 0.0, 0.0);
        Scheme::Quorum(Quorum { learners: 1, grace, grace_share, throttle, dynamic_steps: false })
    }

    #[test]
    fn no_path_runs_ahead_of_those_of_a_worker_that_has_more() {
        let mut run = Run::new(quorum());
        // Five paths for one worker and three for another of the same speed.
        for worker in ["a", "b", "a", "b", "a", "b", "a", "a"] {
            run.train(worker);
        }
        let mut handed = Vec::new();
        for _ in 0..60 {
            for worker in ["b", "a"] {
                let lease = run.train(worker);
                handed.extend(lease.hands_over.map(|to| (worker, to.name, lease.path)));
            }
            let steps = run.steps();
            let (most, least) = (steps.iter().max().unwrap(), steps.iter().min().unwrap());
            assert!(most - least <= 3, "{steps:?}");
        }
        // One change suffices: the path continued with the second worker, although the first reports that it holds it.
        let [(from, to, path)] = &handed[..] else { panic!("{handed:?}") };
        assert_eq!((*from, to.as_str()), ("a", "b"));
        assert_eq!(run.rounds.holders.other(*path, &ProcessId::local("a")), Some(&ProcessId::local("b")));
    }

    #[test]
    fn a_worker_that_joins_gets_paths_of_those_that_have_many() {
        for scheme in [Scheme::Synchronous, quorum()] {
            let mut run = Run::new(scheme);
            (0..8).for_each(|_| drop(run.train("a")));
            assert!(matches!(run.ask("b"), Grant::Wait(Reason::Held { .. })), "{scheme:?}");
            assert_eq!(run.train("a").hands_over, Some(ProcessId::local("b")));
            // The next path stays, because the second worker has not taken the uploaded one yet.
            assert_eq!(run.train("a").hands_over, None);
            run.train("b");
            assert_eq!(run.train("a").hands_over, Some(ProcessId::local("b")));
        }
    }

    #[test]
    fn one_path_changes_hands_at_a_time_with_leases_that_follow_others() {
        let mut run = Run::overlapping(Scheme::Synchronous, 2);
        let workers = ["a", "b", "a", "b", "a", "b", "a", "b"];
        for worker in workers {
            run.train(worker);
        }
        let leases = workers.map(|worker| {
            let Grant::Lease(lease) = run.ask(worker) else { panic!("{worker} has nothing to do") };
            assert_eq!(lease.hands_over, None);
            lease
        });
        assert!(matches!(run.ask("c"), Grant::Wait(_)));
        let mut handed = Vec::new();
        for lease in leases {
            run.send(&lease);
            let followed = run.rounds.follow(NOW, &lease.claim(), LeaseSecret::default());
            let Ok(Grant::Lease(next)) = followed else { panic!("{followed:?}") };
            handed.extend(next.hands_over);
        }
        assert_eq!(handed, [ProcessId::local("c")]);
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
