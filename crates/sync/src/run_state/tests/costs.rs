//! Tests of the cost of requests: how many paths, fragments and contributions they look at. No request looks at all paths.

use super::*;

/// A run of K × K paths with four fragments a module.
fn grid_of(k: u32) -> RunState {
    let level = |blocks: &str, embedding, head| LevelConfig {
        modules: Modules::Count(k),
        blocks: blocks.into(),
        embedding,
        head,
        frozen: false,
    };
    let config = TopologyConfig::grid(1, vec![level("0", true, false), level("1", false, true)]);
    let topology = Topology::new(&config, 2).unwrap();
    let schedule = Schedule::new(STEPS, 4, 2, vec![3 * STEPS]).unwrap();
    let progress = TrainingProgress::start(&topology, 4);
    RunState::new(topology, RunPlan { schedule, ..plan(&[3 * STEPS]) }, progress, 1).unwrap()
}

/// Paths, fragments and contributions that a call looks at.
fn looks<T>(run: &mut RunState, call: impl FnOnce(&mut RunState) -> T) -> (T, u64) {
    let before = run.looks();
    let answer = call(run);
    let looks = run.looks() - before;
    (answer, looks)
}

/// How a worker's next path is chosen.
#[derive(Clone, Copy)]
enum Choice {
    /// The path that is furthest behind.
    FurthestBehind,
    /// Drawn by the sizes of the shards.
    Sampled,
}

/// Looks of each kind of request in a run of K × K paths that are all in training.
fn costs(k: u32, choice: Choice) -> Vec<(&'static str, u64)> {
    let mut run = grid_of(k);
    if let Choice::Sampled = choice {
        run.sample_shards(1, (0..u64::from(k * k)).map(|path| 1000 + path).collect());
    }
    let worker = |path: u32| ProcessId::local(&format!("worker {path:05}"));
    let mut costs = Vec::new();
    let mut leases = Vec::new();
    for path in 0..k * k {
        let (granted, cost) = looks(&mut run, |run| run.grant(at(0), &request(&worker(path), &[])));
        leases.push(lease(granted));
        costs.push(("grant", cost));
    }
    let idle = ProcessId::local("idle");
    let (granted, cost) = looks(&mut run, |run| run.grant(at(1), &request(&idle, &[])));
    assert_eq!(granted, Grant::Wait(Reason::AllLeased { leases: (k * k) as usize }));
    costs.push(("grant without a free path", cost));
    costs.push(("is there work", looks(&mut run, |run| run.has_work(&idle)).1));
    for lease in &leases {
        let (answer, cost) = looks(&mut run, |run| run.heartbeat(at(1), &lease.claim(), 1, 0));
        answer.unwrap();
        costs.push(("heartbeat", cost));
        for send in lease.sends.iter().filter(|send| send.step < lease.to) {
            let (sent, cost) =
                looks(&mut run, |run| run.contribute_claimed(&lease.claim(), send.fragment, send.number, 1));
            assert!(matches!(sent, Commit::Accepted(_)));
            costs.push(("outer gradient", cost));
            if let (due, cost) = looks(&mut run, |run| run.due(at(1)))
                && due.is_empty()
            {
                costs.push(("no outer step is due", cost));
            }
        }
    }
    let (followed, cost) =
        looks(&mut run, |run| run.follow(at(1), &leases[0].claim(), LeaseSecret::default()));
    followed.unwrap();
    costs.push(("follow", cost));
    // A lease ends, is granted again, and its fragments wait for outer steps.
    let (released, cost) = looks(&mut run, |run| run.release(leases[1].path, leases[1].fence));
    assert!(released);
    costs.push(("release", cost));
    leases[1] = lease(run.grant(at(1), &request(&worker(1), &[])));
    for lease in &leases {
        let outcome = LeaseOutcome { seconds: 1.0, ..LeaseOutcome::default() };
        let (done, cost) = looks(&mut run, |run| run.commit(at(2), &lease.claim(), &outcome));
        if lease.fence == leases[1].fence {
            // It has not sent its first outer gradients again.
            assert!(matches!(done, Commit::Accepted(_)), "{done:?}");
        }
        costs.push(("commit", cost));
        for fragment in run.fragment_ids_of(lease.path) {
            costs.push(("needed versions", looks(&mut run, |run| run.needs_version(fragment, 0)).1));
        }
    }
    let (granted, cost) = looks(&mut run, |run| run.grant(at(3), &request(&idle, &[])));
    assert!(
        matches!(granted, Grant::Wait(Reason::UnitWaits { .. } | Reason::OuterStep { .. })),
        "{granted:?}"
    );
    costs.push(("grant while all paths wait", cost));
    costs.push(("rounds", looks(&mut run, |run| (run.least_steps(), run.finished(), run.at_boundary())).1));
    costs
}

#[test]
fn no_request_looks_at_more_paths_in_a_run_of_more_paths() {
    for choice in [Choice::FurthestBehind, Choice::Sampled] {
        let most = |k| {
            let mut most: BTreeMap<&str, u64> = BTreeMap::new();
            for (kind, cost) in costs(k, choice) {
                let entry = most.entry(kind).or_default();
                *entry = cost.max(*entry);
            }
            most
        };
        let (small, large) = (most(16), most(20));
        assert_eq!(small, large, "256 paths and 400 paths");
        assert!(large.values().all(|&cost| cost <= 40), "{large:?}");
    }
}

/// Paths through one module with one fragment, all of whose outer gradients but the last count.
fn one_module(paths: u32) -> (RunState, Lease) {
    let config = TopologyConfig { replicas: paths, ..TopologyConfig::dense(1) };
    let topology = Topology::new(&config, 1).unwrap();
    let progress = TrainingProgress::start(&topology, 1);
    let mut run = RunState::new(topology, plan(&[3 * STEPS]), progress, 1).unwrap();
    let worker = |path: u32| ProcessId::local(&format!("worker {path:05}"));
    let mut leases: Vec<_> =
        (0..paths).map(|path| lease(run.grant(at(0), &request(&worker(path), &[])))).collect();
    let last = leases.pop().unwrap();
    for lease in leases {
        assert!(matches!(commit(&mut run, &lease), Commit::Accepted(_)));
    }
    (run, last)
}

#[test]
fn an_outer_step_looks_at_the_paths_of_its_module_when_it_is_first_due_and_when_it_is_taken() {
    for paths in [8, 16] {
        let (mut run, last) = one_module(paths);
        let (due, cost) = looks(&mut run, |run| run.due(at(1)));
        assert_eq!((due, cost), (Vec::new(), 0), "one path is missing");
        assert!(matches!(commit(&mut run, &last), Commit::Accepted(_)));
        let (due, first) = looks(&mut run, |run| run.due(at(1)));
        assert_eq!(due[0].contributions.len(), paths as usize);
        assert_eq!(looks(&mut run, |run| run.take_due(at(2))), (Vec::new(), 0), "it is told once");
        let (again, repeated) = looks(&mut run, |run| run.due_step(due[0].fragment));
        assert_eq!(
            (again.as_ref(), repeated),
            (due.first(), u64::from(paths)),
            "the synchronizer lost the answer"
        );
        let (stepped, taken) = looks(&mut run, |run| run.stepped(&due[0], Duration::ZERO));
        assert!(stepped && first > 0 && first <= 8 * u64::from(paths), "{first} looks");
        assert!(taken > 0 && taken <= 8 * u64::from(paths), "{taken} looks");
        assert_eq!(looks(&mut run, |run| run.due(at(3))), (Vec::new(), 0));
    }
}

#[test]
fn a_quorum_looks_at_the_paths_that_have_contributed() {
    let learners = |learners| {
        let (grace, grace_share, throttle) = (at(1000), 0.0, 0.0);
        Scheme::Quorum(Quorum { learners, grace, grace_share, throttle, dynamic_steps: false })
    };
    for (paths, missing) in [(8, 7), (16, 15), (16, 3)] {
        let topology = TopologyConfig { replicas: paths, ..TopologyConfig::dense(1) };
        let topology = Topology::new(&topology, 1).unwrap();
        let progress = TrainingProgress::start(&topology, 1);
        let plan = RunPlan { scheme: learners(paths), ..plan(&[3 * STEPS]) };
        let mut run = RunState::new(topology, plan, progress, 1).unwrap();
        for path in missing..paths {
            let worker = ProcessId::local(&format!("worker {path:05}"));
            let lease = lease(run.grant(at(0), &request(&worker, &[])));
            assert!(matches!(commit(&mut run, &lease), Commit::Accepted(_)));
        }
        let (due, cost) = looks(&mut run, |run| run.due(at(1)));
        assert_eq!((due, cost), (Vec::new(), u64::from(1 + paths - missing)), "{paths} paths");
        assert_eq!(looks(&mut run, |run| run.due(at(2))), (Vec::new(), 0), "nothing has changed");
    }
}

#[test]
fn paths_in_quarantine_are_looked_at_only_when_they_can_go_on() {
    let mut run = grid_of(4);
    for path in (0..8).map(PathId) {
        run.quarantine(path);
        run.pass_over_idle();
        assert_eq!(looks(&mut run, RunState::pass_over_idle), ((), 0), "after path {path}");
    }
    let idle: Vec<_> = (0..8).map(|path| run.progress.paths[&PathId(path)].steps).collect();
    assert!(idle.iter().all(|&steps| steps > 0), "{idle:?}");
}
