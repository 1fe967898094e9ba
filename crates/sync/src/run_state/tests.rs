use dipaco_topology::{LevelConfig, ModuleId, Modules, TopologyConfig};

use super::*;
use crate::LeaseKey;

const LEASE: Duration = Duration::from_secs(60);
/// H.
const STEPS: u64 = 10;

fn grid() -> Topology {
    let level = |blocks: &str, embedding, head| LevelConfig {
        modules: Modules::Count(2),
        blocks: blocks.into(),
        embedding,
        head,
    };
    let config =
        TopologyConfig { replicas: 1, levels: vec![level("0", true, false), level("1", false, true)] };
    Topology::new(&config, 2).unwrap()
}

fn plan(ends: &[u64]) -> RunPlan {
    let schedule = Schedule::new(STEPS, 1, 0, ends.to_vec()).unwrap();
    RunPlan { schedule, scheme: Scheme::Synchronous, phase: 0, limits: LeaseLimits::of_silence(LEASE) }
}

fn begin(plan: RunPlan) -> RunState {
    let topology = grid();
    let progress = TrainingProgress::start(&topology, plan.schedule.fragments());
    RunState::new(topology, plan, progress, 1).unwrap()
}

fn start(rounds: u64) -> RunState {
    begin(plan(&[rounds * STEPS]))
}

fn request<'a>(worker: &'a ProcessId, held: &'a [PathId]) -> LeaseRequest<'a> {
    LeaseRequest { worker, held, secret: LeaseSecret::default() }
}

fn lease(grant: Grant) -> Lease {
    match grant {
        Grant::Lease(lease) => *lease,
        other => panic!("expected a lease, got {other:?}"),
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn commit(rounds: &mut RunState, lease: &Lease) -> Commit<BTreeMap<FragmentId, Contribution>> {
    rounds.commit(at(0), &lease.claim(), &LeaseOutcome::default())
}

fn step_all(rounds: &mut RunState, now: Duration) -> Vec<OuterStep> {
    let due = rounds.due(now);
    for step in &due {
        assert!(rounds.stepped(step, Duration::ZERO));
        assert!(!rounds.stepped(step, Duration::ZERO), "a step is taken once");
    }
    due
}

fn fragment(level: u16, index: u32, fragment: u32) -> FragmentId {
    FragmentId { module: ModuleId { level, index }, index: fragment }
}

#[test]
fn a_path_goes_on_when_its_own_modules_have_stepped() {
    let mut rounds = start(2);
    let leases: Vec<_> =
        (0..4).map(|_| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])))).collect();
    assert_eq!((leases[0].from, leases[0].to), (0, STEPS));
    for l in &leases[..3] {
        assert!(matches!(commit(&mut rounds, l), Commit::Accepted(_)));
    }
    // Paths 0 and 1 share 0/0, paths 0 and 2 share 1/0; the other two modules wait for path 3.
    let stepped: Vec<_> =
        step_all(&mut rounds, at(0)).iter().map(|step| (step.fragment, step.version)).collect();
    assert_eq!(stepped, [(fragment(0, 0, 0), 1), (fragment(1, 0, 0), 1)]);
    let next = lease(rounds.grant(at(1), &request(&ProcessId::local("w"), &[])));
    assert_eq!((next.path, next.from), (PathId(0), STEPS));
    assert!(next.receives.iter().all(|receive| receive.version == 1));
    let Grant::Wait(reason) = rounds.grant(at(1), &request(&ProcessId::local("w"), &[])) else { panic!() };
    assert_eq!(reason.to_string(), "module 1/1 waits for path 3 (leased to w)");
}

#[test]
fn a_worker_that_lost_its_lease_is_refused_and_a_retry_is_told_so() {
    let mut rounds = start(1);
    let zombie = lease(rounds.grant(at(0), &request(&ProcessId::local("slow"), &[])));
    assert!(rounds.expire(at(59)).is_empty());
    assert_eq!(rounds.expire(at(60)), vec![zombie.clone()]);
    let heir = lease(rounds.grant(at(61), &request(&ProcessId::local("fast"), &[])));
    assert_eq!(heir.path, zombie.path);
    assert!(heir.fence > zombie.fence);
    assert!(rounds.heartbeat(at(62), &zombie.claim(), 0).is_err());
    assert!(matches!(commit(&mut rounds, &zombie), Commit::Refused(LeaseError::Lost { .. })));
    assert!(matches!(commit(&mut rounds, &heir), Commit::Accepted(_)));
    assert_eq!(commit(&mut rounds, &heir), Commit::Duplicate);
    assert_eq!(rounds.progress().paths[0].steps, STEPS);
}

#[test]
fn heartbeats_keep_a_lease_alive() {
    let mut rounds = start(1);
    let held = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
    assert_eq!(rounds.heartbeat(at(50), &held.claim(), 0).unwrap(), at(110));
    assert!(rounds.expire(at(109)).is_empty());
    assert_eq!(rounds.next_deadline(), Some(at(110)));
}

#[test]
fn a_restarted_coordinator_never_reuses_a_fence() {
    let mut before = start(1);
    let old = lease(before.grant(at(0), &request(&ProcessId::local("w"), &[])));
    let mut after = RunState::new(grid(), plan(&[STEPS]), before.progress().clone(), 2).unwrap();
    let new = lease(after.grant(at(0), &request(&ProcessId::local("w"), &[])));
    assert!(new.fence > old.fence);
    assert!(matches!(commit(&mut after, &old), Commit::Refused(_)));
}

#[test]
fn a_worker_gets_the_path_whose_state_it_holds() {
    let mut rounds = start(1);
    assert_eq!(lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[PathId(2)]))).path, PathId(2));
    assert_eq!(lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[PathId(2)]))).path, PathId(0));
}

#[test]
fn a_bound_path_waits_for_its_holder_as_long_as_that_is_around() {
    let mut rounds = start(2);
    let leases: Vec<_> =
        (0..4).map(|_| lease(rounds.grant(at(0), &request(&ProcessId::local("holder"), &[])))).collect();
    for l in &leases {
        assert!(matches!(commit(&mut rounds, l), Commit::Accepted(_)));
        rounds.bind(l.path, true);
    }
    step_all(&mut rounds, at(0));
    let Grant::Wait(reason) = rounds.grant(at(1), &request(&ProcessId::local("other"), &[])) else {
        panic!()
    };
    assert_eq!(reason.to_string(), "path 0 waits for holder, which holds what it was trained to");
    // An uploaded path is open to every worker; the holder reports its held paths; and it may be gone.
    rounds.bind(PathId(3), false);
    assert_eq!(lease(rounds.grant(at(1), &request(&ProcessId::local("other"), &[]))).path, PathId(3));
    assert_eq!(
        lease(rounds.grant(at(2), &request(&ProcessId::local("holder"), &[PathId(2), PathId(1)]))).path,
        PathId(1)
    );
    assert_eq!(lease(rounds.grant(at(2), &request(&ProcessId::local("other"), &[]))).path, PathId(0));
    assert!(matches!(
        rounds.grant(at(3), &request(&ProcessId::local("other"), &[])),
        Grant::Wait(Reason::Held { path: PathId(2), .. })
    ));
    let [holder, other] = ["holder", "other"].map(ProcessId::local);
    assert!(rounds.has_work(&holder) && !rounds.has_work(&other));
    assert_eq!(lease(rounds.grant(at(62), &request(&ProcessId::local("other"), &[]))).path, PathId(2));
}

#[test]
fn nobody_waits_for_a_holder_that_has_been_forgotten_when_it_commits() {
    let mut rounds = start(2);
    let l = lease(rounds.grant(at(0), &request(&ProcessId::local("late"), &[])));
    // Another worker asks after a silence as long as a lease, before any deadline is checked.
    let others: Vec<_> =
        (0..3).map(|_| lease(rounds.grant(at(61), &request(&ProcessId::local("other"), &[])))).collect();
    assert!(matches!(commit(&mut rounds, &l), Commit::Accepted(_)));
    rounds.bind(l.path, true);
    others.iter().for_each(|l| assert!(matches!(commit(&mut rounds, l), Commit::Accepted(_))));
    step_all(&mut rounds, at(61));
    assert_eq!(lease(rounds.grant(at(62), &request(&ProcessId::local("other"), &[]))).path, l.path);
}

#[test]
fn at_the_end_of_a_phase_every_path_waits_and_goes_on_when_the_next_begins() {
    let mut rounds = begin(plan(&[STEPS, 2 * STEPS]));
    for _ in 0..4 {
        let lease = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
        commit(&mut rounds, &lease);
    }
    assert!(!rounds.at_boundary(), "no module has stepped");
    let Grant::Wait(Reason::AllLeased { leases: 0 }) =
        rounds.grant(at(0), &request(&ProcessId::local("w"), &[]))
    else {
        panic!()
    };
    step_all(&mut rounds, at(0));
    assert!(rounds.at_boundary() && !rounds.finished());
    let Grant::Wait(reason) = rounds.grant(at(0), &request(&ProcessId::local("w"), &[])) else { panic!() };
    assert_eq!(reason, Reason::PhaseEnds { steps: STEPS });
    rounds.go_on(1);
    assert!(!rounds.at_boundary());
    assert_eq!(lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[]))).from, STEPS);
}

#[test]
fn progress_of_another_run_is_refused() {
    let dense = Topology::new(&TopologyConfig::dense(2), 2).unwrap();
    let error = RunState::new(grid(), plan(&[STEPS]), TrainingProgress::start(&dense, 1), 1).unwrap_err();
    assert!(matches!(error, ProgressError::Topology { saved_paths: 1, paths: 4, .. }));
    let mut torn = TrainingProgress::start(&grid(), 1);
    torn.versions.insert(fragment(0, 0, 0), 2);
    assert!(matches!(
        RunState::new(grid(), plan(&[STEPS]), torn, 1).unwrap_err(),
        ProgressError::Inconsistent { .. }
    ));
}

/// Two fragments, H = 10, τ = 2: fragment 0 is sent at 3 and taken over at 5.
fn streaming() -> RunState {
    let schedule = Schedule::new(STEPS, 2, 2, vec![20]).unwrap();
    begin(RunPlan { schedule, scheme: Scheme::Synchronous, phase: 0, limits: LeaseLimits::of_silence(LEASE) })
}

#[test]
fn what_is_sent_early_counts_before_its_lease_is_complete() {
    let mut rounds = streaming();
    let leases: Vec<_> =
        (0..4).map(|_| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])))).collect();
    for l in &leases {
        assert_eq!((l.from, l.to), (0, 5));
        let sends: Vec<_> = l.sends.iter().map(|s| (s.fragment.index, s.step, s.number)).collect();
        assert_eq!(sends, [(0, 3, 1), (0, 3, 1)]);
    }
    let owed = commit(&mut rounds, &leases[0]);
    assert!(matches!(owed, Commit::Refused(LeaseError::Owes { number: 1, .. })));
    for l in &leases {
        for send in &l.sends {
            let accepted = Contribution { path: l.path, number: 1, base: 0, steps: 3, tokens: 7 };
            let contributed = rounds.contribute(&l.claim(), send.fragment, 1, 7);
            assert_eq!(contributed, Commit::Accepted(Some(accepted)));
            assert_eq!(rounds.contribute(&l.claim(), send.fragment, 1, 7), Commit::Duplicate);
        }
        let other = rounds.contribute(&l.claim(), l.sends[0].fragment, 2, 7);
        assert!(matches!(other, Commit::Refused(LeaseError::NotAsked { .. })));
    }
    let due = step_all(&mut rounds, at(0));
    assert_eq!(due.len(), 4, "the first fragment of every module");
    let contribution = due[0].contributions[0];
    assert_eq!((contribution.base, contribution.steps, contribution.tokens), (0, 3, 7));
    assert_eq!(
        commit(&mut rounds, &leases[0]),
        Commit::Accepted(BTreeMap::new()),
        "nothing is due at its end"
    );
    let next = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
    assert_eq!((next.from, next.to), (5, 10));
    assert!(
        next.receives.iter().all(|r| (r.fragment.index, r.version) == (0, 1)) && next.receives.len() == 2
    );
}

#[test]
fn the_successor_of_a_lost_lease_brings_what_counts_already_once_more() {
    let mut rounds = streaming();
    let lost = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
    assert!(matches!(rounds.contribute(&lost.claim(), lost.sends[0].fragment, 1, 0), Commit::Accepted(_)));
    rounds.expire(at(100));
    let heir = lease(rounds.grant(at(100), &request(&ProcessId::local("v"), &[])));
    assert_eq!((heir.path, &heir.sends), (lost.path, &lost.sends));
    assert_eq!(rounds.contribute(&heir.claim(), heir.sends[0].fragment, 1, 0), Commit::Duplicate);
    assert!(matches!(rounds.contribute(&heir.claim(), heir.sends[1].fragment, 1, 0), Commit::Accepted(_)));
    assert!(matches!(commit(&mut rounds, &heir), Commit::Accepted(_)));
}

#[test]
fn versions_are_kept_while_a_path_trains_on_them() {
    let mut rounds = streaming();
    let leases: Vec<_> =
        (0..4).map(|_| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])))).collect();
    for l in &leases {
        for s in &l.sends {
            assert!(matches!(rounds.contribute(&l.claim(), s.fragment, s.number, 0), Commit::Accepted(_)));
        }
    }
    step_all(&mut rounds, at(0));
    // The leases train from version 0 of both fragments; for fragment 1 it is the newest version.
    assert_eq!(rounds.needed_versions(fragment(0, 0, 0)), BTreeSet::from([0]));
    assert_eq!(rounds.needed_versions(fragment(0, 0, 1)), BTreeSet::new());
    for l in &leases {
        assert!(matches!(commit(&mut rounds, l), Commit::Accepted(_)));
    }
    assert_eq!(rounds.needed_versions(fragment(0, 0, 0)), BTreeSet::new());
}

fn quorum(learners: u32, grace: u64, dynamic_steps: bool) -> RunState {
    let quorum = Quorum { learners, grace: at(grace), grace_share: 0.5, throttle: 0.0, dynamic_steps };
    let schedule = Schedule::new(STEPS, 1, 0, vec![20]).unwrap();
    begin(RunPlan {
        schedule,
        scheme: Scheme::Quorum(quorum),
        phase: 0,
        limits: LeaseLimits::of_silence(at(1000)),
    })
}

#[test]
fn a_quorum_waits_for_its_grace_and_no_longer() {
    let mut rounds = quorum(1, 30, false);
    let [a, b] = [(); 2].map(|()| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[]))));
    assert!(matches!(commit(&mut rounds, &a), Commit::Accepted(_)));
    assert!(rounds.due(at(10)).is_empty());
    assert_eq!(rounds.next_deadline(), Some(at(40)));
    // Only paths 0 and 1 go through module 0/0; modules 1/0 and 1/1 wait for other paths.
    assert!(matches!(commit(&mut rounds, &b), Commit::Accepted(_)));
    let due = step_all(&mut rounds, at(20));
    assert_eq!(
        due.iter().map(|s| (s.fragment, s.contributions.len())).collect::<Vec<_>>(),
        [(fragment(0, 0, 0), 2)]
    );
    let due = step_all(&mut rounds, at(50));
    assert_eq!(due.iter().map(|s| s.contributions.len()).collect::<Vec<_>>(), [1, 1]);
    // The path does not wait: it continues with the newest version.
    let next = lease(rounds.grant(at(50), &request(&ProcessId::local("w"), &[PathId(2)])));
    assert_eq!((next.path, next.from), (PathId(2), 0));
}

#[test]
fn a_quorum_is_smaller_when_fewer_are_left() {
    let mut rounds = quorum(2, 0, false);
    let dead = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[PathId(0)])));
    assert_eq!(dead.path, PathId(0));
    // Path 0 is held back to the end: only it makes the last contributions to its modules.
    let mut largest = Vec::new();
    for now in 1..40 {
        if now == 20 {
            assert!(rounds.release(dead.path, dead.fence));
        }
        if let Grant::Lease(l) = rounds.grant(at(now), &request(&ProcessId::local("w"), &[])) {
            assert!(matches!(commit(&mut rounds, &l), Commit::Accepted(_)));
        }
        largest.extend(step_all(&mut rounds, at(now)).iter().map(|step| step.contributions.len()));
    }
    assert!(rounds.finished(), "{:?}", rounds.progress());
    assert!(largest.contains(&1) && largest.contains(&2), "{largest:?}");
}

#[test]
fn slower_workers_take_fewer_steps() {
    let mut rounds = quorum(1, 0, true);
    let [fast, slow] =
        ["fast", "slow"].map(|worker| lease(rounds.grant(at(0), &request(&ProcessId::local(worker), &[]))));
    assert_eq!((fast.to, slow.to), (10, 10), "nothing is known yet");
    rounds.commit(at(0), &fast.claim(), &LeaseOutcome { seconds: 1.0, ..LeaseOutcome::default() });
    rounds.commit(at(0), &slow.claim(), &LeaseOutcome { seconds: 4.0, ..LeaseOutcome::default() });
    step_all(&mut rounds, at(0));
    let [fast, slow] =
        ["fast", "slow"].map(|worker| lease(rounds.grant(at(0), &request(&ProcessId::local(worker), &[]))));
    assert_eq!((fast.to, slow.to), (10, 2));
    assert_eq!((slow.path, slow.sends[0].step, slow.sends[0].number), (PathId(3), 2, 1));
}

#[test]
fn a_throttle_lets_an_outer_step_gather_whom_the_quorum_does_not_wait_for() {
    let schedule = Schedule::new(STEPS, 1, 0, vec![30]).unwrap();
    let quorum = |throttle| Quorum {
        learners: 1,
        grace: Duration::ZERO,
        grace_share: 0.0,
        throttle,
        dynamic_steps: false,
    };
    for (throttle, merged) in [(0.0, vec![1, 1, 1, 1]), (0.9, vec![1, 1, 2])] {
        let scheme = Scheme::Quorum(quorum(throttle));
        let mut rounds = begin(RunPlan {
            schedule: schedule.clone(),
            scheme,
            phase: 0,
            limits: LeaseLimits::of_silence(LEASE),
        });
        let shared = fragment(0, 0, 0);
        let mut found = Vec::new();
        // Paths 0 and 1 take ten seconds for their ten steps, one second apart.
        let done = LeaseOutcome { seconds: 10.0, ..LeaseOutcome::default() };
        let first: Vec<_> =
            (0..2).map(|_| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])))).collect();
        let mut look = |rounds: &mut RunState, now| {
            found.extend(
                step_all(rounds, now).iter().filter(|s| s.fragment == shared).map(|s| s.contributions.len()),
            );
        };
        rounds.commit(at(0), &first[0].claim(), &done);
        look(&mut rounds, at(10));
        rounds.commit(at(0), &first[1].claim(), &done);
        // With the throttle it waits until nine seconds after the first.
        look(&mut rounds, at(11));
        look(&mut rounds, at(19));
        let again: Vec<_> =
            (0..4).map(|_| lease(rounds.grant(at(19), &request(&ProcessId::local("w"), &[])))).collect();
        let of = |path: u32| again.iter().find(|lease| lease.path == PathId(path)).unwrap();
        rounds.commit(at(0), &of(0).claim(), &done);
        look(&mut rounds, at(21));
        rounds.commit(at(0), &of(1).claim(), &done);
        look(&mut rounds, at(22));
        look(&mut rounds, at(28));
        assert_eq!(found, merged, "{throttle}");
    }
}

#[test]
fn what_follows_a_lease_is_known_while_it_is_out() {
    // H = 10, two steps on the way: sent after 8, taken over after 10.
    let schedule = Schedule::new(STEPS, 1, 2, vec![30]).unwrap();
    let mut rounds = begin(RunPlan {
        schedule,
        scheme: Scheme::Synchronous,
        phase: 0,
        limits: LeaseLimits::of_silence(LEASE),
    });
    let leases: Vec<_> =
        (0..4).map(|_| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])))).collect();
    let Grant::Wait(reason) = rounds.follow(at(1), &leases[0].claim(), LeaseSecret::default()).unwrap()
    else {
        panic!()
    };
    assert_eq!(reason.to_string(), "module 0/0 waits for path 0 (leased to w), path 1 (leased to w)");
    for l in &leases {
        for send in &l.sends {
            assert!(matches!(
                rounds.contribute(&l.claim(), send.fragment, send.number, 1),
                Commit::Accepted(_)
            ));
        }
    }
    step_all(&mut rounds, at(1));
    let next = lease(rounds.follow(at(1), &leases[0].claim(), LeaseSecret::default()).unwrap());
    assert_eq!((next.from, next.to), (10, 20));
    assert!(next.receives.iter().all(|receive| receive.version == 1));
    assert_eq!(
        lease(rounds.follow(at(1), &leases[0].claim(), LeaseSecret::default()).unwrap()),
        next,
        "a retry gets the same"
    );
    // The worker is alive, and the lease does not count yet.
    assert!(rounds.heartbeat(at(50), &next.claim(), 0).is_ok());
    assert!(matches!(commit(&mut rounds, &next), Commit::Refused(_)));
    // The worker that trains it asks at once for the lease after it, and is not refused.
    let Grant::Wait(reason) = rounds.follow(at(1), &next.claim(), LeaseSecret::default()).unwrap() else {
        panic!()
    };
    assert_eq!(reason.to_string(), "the lease of path 0 before this one is not complete");
    assert!(matches!(commit(&mut rounds, &leases[0]), Commit::Accepted(_)));
    let Grant::Wait(reason) = rounds.follow(at(1), &next.claim(), LeaseSecret::default()).unwrap() else {
        panic!()
    };
    assert!(matches!(reason, Reason::UnitWaits { .. }), "{reason}");
    let again = lease(rounds.follow(at(1), &leases[0].claim(), LeaseSecret::default()).unwrap());
    assert_eq!(again.fence, next.fence, "a late retry too");
    for send in &next.sends {
        assert!(matches!(
            rounds.contribute(&next.claim(), send.fragment, send.number, 1),
            Commit::Accepted(_)
        ));
    }
    assert!(matches!(commit(&mut rounds, &next), Commit::Accepted(_)));
    assert_eq!(rounds.progress().paths[0].steps, 20);
    // A following lease is lost with the lease before it.
    let other = lease(rounds.follow(at(1), &leases[1].claim(), LeaseSecret::default()).unwrap());
    assert!(rounds.release(PathId(1), leases[1].fence));
    assert!(rounds.heartbeat(at(51), &other.claim(), 0).is_err());
    assert_eq!(rounds.progress().paths[1].steps, 0);
}

#[test]
fn what_a_following_lease_begins_with_is_kept() {
    let schedule = Schedule::new(STEPS, 1, 2, vec![30]).unwrap();
    let quorum =
        Quorum { learners: 1, grace: Duration::ZERO, grace_share: 0.0, throttle: 0.0, dynamic_steps: false };
    let mut rounds = begin(RunPlan {
        schedule,
        scheme: Scheme::Quorum(quorum),
        phase: 0,
        limits: LeaseLimits::of_silence(LEASE),
    });
    let leases: Vec<_> =
        (0..4).map(|_| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])))).collect();
    let shared = fragment(0, 0, 0);
    let sends = |rounds: &mut RunState, lease: &Lease| {
        for send in &lease.sends {
            assert!(matches!(
                rounds.contribute(&lease.claim(), send.fragment, send.number, 1),
                Commit::Accepted(_)
            ));
        }
        step_all(rounds, at(1));
    };
    sends(&mut rounds, &leases[1]);
    let next = lease(rounds.follow(at(1), &leases[0].claim(), LeaseSecret::default()).unwrap());
    assert_eq!(next.receives[0], crate::ScheduledReceive { fragment: shared, version: 1 });
    assert!(matches!(commit(&mut rounds, &leases[1]), Commit::Accepted(_)));
    let again = lease(rounds.grant(at(2), &request(&ProcessId::local("w"), &[PathId(1)])));
    assert_eq!((again.path, again.from), (PathId(1), 10));
    sends(&mut rounds, &again);
    assert!(matches!(commit(&mut rounds, &again), Commit::Accepted(_)));
    assert_eq!(rounds.progress().versions[&shared], 2);
    assert!(rounds.needed_versions(shared).contains(&1));
}

#[test]
fn only_the_process_that_got_a_lease_uses_it() {
    let mut rounds = streaming();
    let owner = ProcessId { token: "token".into(), name: "owner".into(), instance: 1 };
    let secret = LeaseSecret::new([9; 16]);
    let granted = lease(rounds.grant(at(0), &LeaseRequest { worker: &owner, held: &[], secret }));
    let own = granted.claim();
    let forged = LeaseKey { secret: LeaseSecret::new([8; 16]), ..granted.key() };
    let claims = [
        LeaseClaim { worker: ProcessId { instance: 2, ..owner.clone() }, ..own.clone() },
        LeaseClaim { worker: ProcessId { token: "other".into(), ..owner.clone() }, ..own.clone() },
        LeaseClaim { key: forged, ..own.clone() },
    ];
    let send = granted.sends[0];
    for claim in &claims {
        assert!(rounds.check(claim).is_err());
        assert!(rounds.heartbeat(at(1), claim, 1).is_err());
        assert!(rounds.follow(at(1), claim, secret).is_err());
        let contributed = rounds.contribute(claim, send.fragment, send.number, 0);
        assert!(matches!(contributed, Commit::Refused(LeaseError::Lost { .. })));
        let committed = rounds.commit(at(1), claim, &LeaseOutcome::default());
        assert!(matches!(committed, Commit::Refused(LeaseError::Lost { .. })));
    }
    assert_eq!(rounds.leases().next().unwrap().deadline, LEASE, "no other process renewed it");
    for send in &granted.sends {
        assert!(matches!(rounds.contribute(&own, send.fragment, send.number, 0), Commit::Accepted(Some(_))));
    }
    assert!(matches!(commit(&mut rounds, &granted), Commit::Accepted(_)));
    // The retry of another process is no duplicate.
    for claim in &claims {
        let again = rounds.commit(at(1), claim, &LeaseOutcome::default());
        assert!(matches!(again, Commit::Refused(LeaseError::Lost { .. })));
    }
    assert_eq!(commit(&mut rounds, &granted), Commit::Duplicate);
}

#[test]
fn a_lease_whose_worker_only_says_that_it_lives_ends() {
    let limits = LeaseLimits { standstill: at(100), ..LeaseLimits::of_silence(LEASE) };
    let mut rounds = begin(RunPlan { limits, ..plan(&[STEPS]) });
    let hung = lease(rounds.grant(at(0), &request(&ProcessId::local("hung"), &[])));
    let slow = lease(rounds.grant(at(0), &request(&ProcessId::local("slow"), &[])));
    for now in [40, 80] {
        assert!(rounds.heartbeat(at(now), &hung.claim(), 3).is_ok());
        assert!(rounds.heartbeat(at(now), &slow.claim(), now / 40).is_ok());
    }
    for now in [120, 139] {
        assert!(rounds.heartbeat(at(now), &hung.claim(), 3).is_ok());
        assert!(rounds.heartbeat(at(now), &slow.claim(), 2).is_ok());
        assert!(rounds.expire(at(now)).is_empty());
    }
    assert_eq!(rounds.next_deadline(), Some(at(140)));
    let ended: Vec<_> = rounds.expire(at(140)).iter().map(|lease| lease.path).collect();
    assert_eq!(ended, [hung.path], "its last step was 100 seconds ago");
    assert!(rounds.heartbeat(at(141), &hung.claim(), 4).is_err());
    assert_eq!(rounds.expire(at(180)).len(), 1, "80 seconds and 100");
}

#[test]
fn a_process_has_as_many_leases_as_the_plan_allows() {
    let limits = LeaseLimits { per_worker: 2, ..LeaseLimits::of_silence(LEASE) };
    let mut rounds = begin(RunPlan { limits, ..plan(&[STEPS]) });
    let greedy = ProcessId::local("greedy");
    let first = lease(rounds.grant(at(0), &request(&greedy, &[])));
    lease(rounds.grant(at(0), &request(&greedy, &[])));
    let Grant::Wait(reason) = rounds.grant(at(0), &request(&greedy, &[])) else { panic!() };
    assert_eq!(reason, Reason::Enough { leases: 2 });
    lease(rounds.grant(at(0), &request(&ProcessId::local("other"), &[])));
    assert!(matches!(commit(&mut rounds, &first), Commit::Accepted(_)));
    lease(rounds.grant(at(0), &request(&greedy, &[])));
}

#[test]
fn held_paths_that_do_not_exist_are_left_out() {
    let mut rounds = start(1);
    let held = [PathId(99), PathId(2), PathId(u32::MAX)];
    assert_eq!(lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &held))).path, PathId(2));
}

#[test]
fn an_outer_gradient_has_at_most_the_tokens_of_its_steps() {
    let limits = LeaseLimits { step_tokens: 64, ..LeaseLimits::of_silence(LEASE) };
    let schedule = Schedule::new(STEPS, 2, 2, vec![20]).unwrap();
    let mut rounds = begin(RunPlan { schedule, limits, ..plan(&[20]) });
    let granted = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
    let (claim, send) = (granted.claim(), granted.sends[0]);
    assert_eq!(send.step, 3);
    for tokens in [3 * 64 + 1, u64::MAX] {
        let refused = rounds.contribute(&claim, send.fragment, send.number, tokens);
        assert!(matches!(refused, Commit::Refused(LeaseError::Tokens { most: 192, .. })), "{refused:?}");
    }
    assert!(matches!(rounds.contribute(&claim, send.fragment, send.number, 192), Commit::Accepted(Some(_))));
}

#[test]
fn a_worker_that_states_an_impossible_speed_does_not_shorten_the_leases_of_others() {
    let mut rounds = quorum(1, 0, true);
    let workers = ["honest", "liar", "other"].map(ProcessId::local);
    let leases = workers.each_ref().map(|worker| lease(rounds.grant(at(0), &request(worker, &[]))));
    for (lease, seconds) in leases.iter().zip([1.0, 1e-300, 1.0]) {
        rounds.commit(at(0), &lease.claim(), &LeaseOutcome { seconds, ..LeaseOutcome::default() });
    }
    step_all(&mut rounds, at(0));
    assert!(rounds.fastest() <= 16.0 * 10.0, "{}", rounds.fastest());
    let lies = LeaseOutcome { seconds: f64::INFINITY, ..LeaseOutcome::default() };
    let next = lease(rounds.grant(at(0), &request(&workers[1], &[])));
    rounds.commit(at(0), &next.claim(), &lies);
    assert!(rounds.fastest().is_finite() && rounds.fastest() > 0.0);
}
