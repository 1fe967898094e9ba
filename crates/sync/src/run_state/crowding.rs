//! Workers with more paths than they keep states of.

use dipaco_topology::PathId;

use super::RunState;
use crate::ProcessId;

impl RunState {
    /// True if a worker that trains `path` will probably drop the path's state before the path's next lease, because it
    /// has or will have more paths than it keeps states of. Without an upload, the worker would have to repeat the steps
    /// since the last uploaded state.
    ///
    /// A worker reports only the states that it keeps, so the equal share of all paths that train counts too.
    pub(super) fn is_crowded(&self, path: PathId, worker: &ProcessId) -> bool {
        let own = self.unfinished(worker).filter(|&other| other != path).count() + 1;
        let share = self.topology.trained_paths().len().div_ceil(self.holders.count().max(1));
        own.max(share) > self.plan.limits.held_paths
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dipaco_topology::{LevelConfig, Modules, Topology, TopologyConfig};

    use super::*;
    use crate::{
        Commit, Grant, LeaseLimits, LeaseOutcome, LeaseRequest, LeaseSecret, RunPlan, Schedule, Scheme,
        TrainingProgress,
    };

    const NOW: Duration = Duration::ZERO;

    /// A run of four paths whose workers keep this many states.
    fn run(held_paths: usize) -> RunState {
        run_of(Vec::new(), 0, held_paths)
    }

    /// A run of these paths, or of all combinations, of which the first are kept.
    fn run_of(paths: Vec<Vec<u32>>, kept_paths: u32, held_paths: usize) -> RunState {
        let level = LevelConfig {
            modules: Modules::Count(4),
            blocks: "0".into(),
            embedding: true,
            head: true,
            frozen: false,
        };
        let config = TopologyConfig { paths, kept_paths, ..TopologyConfig::grid(1, vec![level]) };
        let topology = Topology::new(&config, 1).unwrap();
        let schedule = Schedule::new(10, 1, 0, vec![1000]).unwrap();
        let limits = LeaseLimits { held_paths, ..LeaseLimits::of_silence(Duration::from_secs(60)) };
        let plan = RunPlan { schedule, scheme: Scheme::Synchronous, phase: 0, limits };
        let mut progress = TrainingProgress::start(&topology, 1);
        for kept in (0..kept_paths).map(PathId) {
            let kept = &mut progress.paths[&kept];
            (kept.steps, kept.measured) = (1000, true);
        }
        RunState::new(topology, plan, progress, 1).unwrap()
    }

    /// Trains the next path of a worker that keeps these states. Returns the path, and whether its lease was crowded.
    fn train(run: &mut RunState, worker: &str, kept: &mut Vec<PathId>, most: usize) -> bool {
        let worker = ProcessId::local(worker);
        let request =
            LeaseRequest { worker: &worker, held: kept, secret: LeaseSecret::default(), numerics: "" };
        let Grant::Lease(lease) = run.grant(NOW, &request) else { panic!("nothing to do") };
        let done = LeaseOutcome { seconds: 1.0, ..LeaseOutcome::default() };
        assert!(matches!(run.commit(NOW, &lease.claim(), &done), Commit::Accepted(_)));
        // As the ledger does: a path whose state is stored is free.
        run.bind(lease.path, !lease.crowded);
        kept.retain(|path| *path != lease.path);
        kept.push(lease.path);
        let excess = kept.len().saturating_sub(most);
        drop(kept.drain(..excess));
        for step in run.due(NOW) {
            assert!(run.stepped(&step, Duration::ZERO));
        }
        lease.crowded
    }

    #[test]
    fn a_worker_with_more_paths_than_states_uploads_each_and_one_with_fewer_none() {
        for (most, crowded) in [(1, true), (3, true), (4, false), (9, false)] {
            let (mut run, mut kept) = (run(most), Vec::new());
            for _ in 0..12 {
                assert_eq!(train(&mut run, "a", &mut kept, most), crowded, "{most} states");
            }
        }
    }

    #[test]
    fn kept_paths_crowd_nobody() {
        let mut run = run_of((0..4).map(|index| vec![index]).collect(), 3, 1);
        let mut kept = Vec::new();
        for _ in 0..3 {
            assert!(!train(&mut run, "a", &mut kept, 1), "one path trains, and its state is kept");
        }
    }

    #[test]
    fn two_workers_need_room_for_half_of_the_paths_each() {
        let (mut run, mut a, mut b) = (run(2), Vec::new(), Vec::new());
        // Alone, the first worker has all paths before it.
        assert!(train(&mut run, "a", &mut a, 2));
        for round in 0..6 {
            for (worker, kept) in [("b", &mut b), ("a", &mut a)] {
                assert!(!train(&mut run, worker, kept, 2), "lease {round} of {worker}");
            }
        }
    }
}
