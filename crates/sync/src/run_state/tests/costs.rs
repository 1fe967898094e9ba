//! Tests of the cost of requests: how many paths they look at. No request looks at all paths.

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

/// Paths that a call looks at.
fn looks<T>(run: &mut RunState, call: impl FnOnce(&mut RunState) -> T) -> (T, u64) {
    let before = run.looks.get();
    let answer = call(run);
    let looks = run.looks.get() - before;
    (answer, looks)
}

/// Paths that each kind of request looks at in a run of K × K paths that are all in training.
fn costs(k: u32) -> Vec<(&'static str, u64)> {
    let mut run = grid_of(k);
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
        let (answer, cost) = looks(&mut run, |run| run.heartbeat(at(1), &lease.claim(), 1));
        answer.unwrap();
        costs.push(("heartbeat", cost));
        for send in lease.sends.iter().filter(|send| send.step < lease.to) {
            let (sent, cost) =
                looks(&mut run, |run| run.contribute_claimed(&lease.claim(), send.fragment, send.number, 1));
            assert!(matches!(sent, Commit::Accepted(_)));
            costs.push(("outer gradient", cost));
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
    let most = |k| {
        let mut most: BTreeMap<&str, u64> = BTreeMap::new();
        for (kind, cost) in costs(k) {
            let entry = most.entry(kind).or_default();
            *entry = cost.max(*entry);
        }
        most
    };
    let (small, large) = (most(16), most(20));
    assert_eq!(small, large, "256 paths and 400 paths");
    assert!(large.values().all(|&cost| cost <= 40), "{large:?}");
}
