//! Tests of outer steps that wait for a quorum.

use super::*;

fn quorum(learners: u32, grace: u64, dynamic_steps: bool) -> RunState {
    run_of(Quorum { learners, grace: at(grace), grace_share: 0.5, throttle: 0.0, dynamic_steps })
}

/// A run whose fragments step at most once in the time of nine of ten steps.
fn throttled() -> RunState {
    run_of(Quorum {
        learners: 1,
        grace: Duration::ZERO,
        grace_share: 0.0,
        throttle: 0.9,
        dynamic_steps: false,
    })
}

fn run_of(quorum: Quorum) -> RunState {
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
fn a_grace_period_that_has_ended_wakes_nobody_again() {
    let (worker, both) = (ProcessId::local("w"), [fragment(0, 0, 0), fragment(1, 0, 0)]);
    let other_lease = Some(at(1000));
    // Without a grace period a step is due at once, and stays under way until it is recorded.
    let mut rounds = quorum(1, 0, false);
    let [a, _other] = [(); 2].map(|()| lease(rounds.grant(at(0), &request(&worker, &[]))));
    assert!(matches!(commit(&mut rounds, &a), Commit::Accepted(_)));
    assert_eq!(rounds.take_due(at(10)), both);
    assert_eq!(rounds.next_deadline(), other_lease);
    // The time comes while nobody takes due steps.
    let mut rounds = quorum(1, 30, false);
    let [a, _other] = [(); 2].map(|()| lease(rounds.grant(at(0), &request(&worker, &[]))));
    assert!(matches!(commit(&mut rounds, &a), Commit::Accepted(_)));
    assert!(rounds.take_due(at(10)).is_empty());
    assert!(rounds.expire(at(39)).is_empty());
    assert_eq!(rounds.next_deadline(), Some(at(40)));
    assert!(rounds.expire(at(40)).is_empty());
    assert_eq!(rounds.next_deadline(), other_lease);
    assert_eq!(rounds.take_due(at(50)), both, "the steps are due all the same");
    assert_eq!(rounds.next_deadline(), other_lease);
}

#[test]
fn a_stop_of_the_coordinator_is_no_part_of_a_grace_period() {
    let mut rounds = quorum(1, 10, false);
    let first = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
    assert!(matches!(commit(&mut rounds, &first), Commit::Accepted(_)));
    assert!(rounds.take_due(at(0)).is_empty());
    rounds.postpone(at(605), at(600));
    assert!(rounds.expire(at(605)).is_empty());
    assert!(rounds.take_due(at(605)).is_empty(), "nobody could contribute meanwhile");
    assert_eq!(rounds.next_deadline(), Some(at(610)));
    assert_eq!(rounds.take_due(at(610)), [fragment(0, 0, 0), fragment(1, 0, 0)]);
    // A time that has come is no deadline again.
    rounds.postpone(at(1210), at(600));
    assert_eq!(rounds.next_deadline(), None);
}

#[test]
fn a_stop_of_the_coordinator_shortens_no_later_grace_period() {
    let window = |stop: u64| {
        let mut rounds = quorum(2, 30, false);
        rounds.grace = Grace::new(at(30), 0.5, 20);
        rounds.grace.inner_step(PathId(0), 2.0);
        let [a, b] = [(); 2].map(|()| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[]))));
        assert!(matches!(commit(&mut rounds, &a), Commit::Accepted(_)));
        assert!(rounds.take_due(at(0)).is_empty());
        rounds.postpone(at(stop + 5), at(stop));
        assert!(matches!(commit(&mut rounds, &b), Commit::Accepted(_)));
        assert_eq!(rounds.take_due(at(stop + 9)), [fragment(0, 0, 0)]);
        rounds.grace.window()
    };
    // Half of the 40 s of the overlap without the nine of the quorum.
    assert_eq!(window(0), Duration::from_millis(15_500));
    assert_eq!(window(600), window(0));
}

#[test]
fn an_outer_step_in_which_the_coordinator_stops_shortens_no_later_grace_period() {
    let window = |stop: Option<u64>| {
        let mut rounds = quorum(2, 30, false);
        rounds.grace = Grace::new(at(30), 0.5, 20);
        rounds.grace.inner_step(PathId(0), 2.0);
        let leases = [(); 2].map(|()| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[]))));
        for lease in &leases {
            assert!(matches!(commit(&mut rounds, lease), Commit::Accepted(_)));
        }
        let [step] = <[OuterStep; 1]>::try_from(rounds.due(at(0))).unwrap();
        if let Some(stop) = stop {
            rounds.postpone(at(stop), at(stop));
        }
        assert!(rounds.stepped(&step, at(5 + stop.unwrap_or(0))));
        rounds.grace.window()
    };
    // Half of the 40 s of the overlap, without the five of the step if they are known.
    assert_eq!(window(None), Duration::from_millis(17_500));
    assert_eq!(window(Some(600)), at(20));
}

#[test]
fn a_stop_of_the_coordinator_is_no_part_of_a_throttle() {
    let mut rounds = throttled();
    let shared = fragment(0, 0, 0);
    let [a, b] = [(); 2].map(|()| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[]))));
    let done = LeaseOutcome { seconds: 10.0, ..LeaseOutcome::default() };
    rounds.commit(at(10), &a.claim(), &done);
    assert!(step_all(&mut rounds, at(10)).iter().any(|step| step.fragment == shared));
    rounds.postpone(at(611), at(600));
    rounds.commit(at(611), &b.claim(), &done);
    // Nine steps take nine seconds, and one has passed before the stop.
    assert!(!rounds.take_due(at(618)).contains(&shared));
    assert!(rounds.take_due(at(619)).contains(&shared));
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
fn an_outer_gradient_of_a_short_lease_has_at_most_the_tokens_of_its_steps() {
    let mut rounds = quorum(1, 0, true);
    rounds.plan.limits.step_tokens = 64;
    let [fast, slow] = ["fast", "slow"].map(ProcessId::local);
    let first = [&fast, &slow].map(|worker| lease(rounds.grant(at(0), &request(worker, &[]))));
    for (lease, seconds) in first.iter().zip([1.0, 4.0]) {
        rounds.commit(at(0), &lease.claim(), &LeaseOutcome { seconds, ..LeaseOutcome::default() });
    }
    step_all(&mut rounds, at(0));
    // The fast worker has the other path at the start.
    lease(rounds.grant(at(0), &request(&fast, &[])));
    for (from, to) in [(0, 2), (2, 4)] {
        let short = lease(rounds.grant(at(0), &request(&slow, &[])));
        assert_eq!((short.from, short.to), (from, to));
        let (claim, send) = (short.claim(), short.sends[0]);
        let refused = rounds.expects(&claim, send.fragment, send.number, 2 * 64 + 1);
        assert!(matches!(refused, Err(LeaseError::Tokens { most: 128, .. })), "{refused:?}");
        assert_eq!(rounds.expects(&claim, send.fragment, send.number, 128).unwrap().steps, 2);
        assert!(matches!(commit(&mut rounds, &short), Commit::Accepted(_)));
        step_all(&mut rounds, at(0));
    }
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
fn a_worker_that_states_an_impossible_speed_does_not_end_the_throttle() {
    let mut rounds = throttled();
    let shared = fragment(0, 0, 0);
    let workers = ["honest", "liar"].map(|token| ProcessId { token: token.into(), ..ProcessId::local("w") });
    let [honest, lied] = workers.each_ref().map(|worker| lease(rounds.grant(at(0), &request(worker, &[]))));
    let done = |seconds| LeaseOutcome { seconds, ..LeaseOutcome::default() };
    rounds.commit(at(160), &honest.claim(), &done(160.0));
    assert!(step_all(&mut rounds, at(160)).iter().any(|step| step.fragment == shared));
    rounds.commit(at(161), &lied.claim(), &done(1e-300));
    // Nine steps at 16 times the honest speed take nine seconds.
    for (now, is_due) in [(161, false), (168, false), (169, true)] {
        let due = step_all(&mut rounds, at(now));
        assert_eq!(due.iter().any(|step| step.fragment == shared), is_due, "{now}");
    }
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
    assert!(rounds.speeds.fastest() <= 16.0 * 10.0, "{}", rounds.speeds.fastest());
    let lies = LeaseOutcome { seconds: f64::INFINITY, ..LeaseOutcome::default() };
    let next = lease(rounds.grant(at(0), &request(&workers[1], &[])));
    rounds.commit(at(0), &next.claim(), &lies);
    assert!(rounds.speeds.fastest().is_finite() && rounds.speeds.fastest() > 0.0);
}

#[test]
fn a_step_merges_no_more_contributions_than_its_order_can_name() {
    let most = outer_steps::MOST_MERGED;
    let quorum = Quorum { learners: 2, grace: at(0), grace_share: 0.0, throttle: 0.0, dynamic_steps: false };
    let schedule = Schedule::new(1, 1, 0, vec![most as u64 + 9]).unwrap();
    let limits = LeaseLimits::of_silence(LEASE);
    let mut rounds = begin(RunPlan { schedule, scheme: Scheme::Quorum(quorum), phase: 0, limits });
    let (worker, other) = (ProcessId::local("w"), ProcessId::local("other"));
    // One path of a module contributes again and again, while the other path has not contributed yet.
    let mut of_path = lease(rounds.grant(at(0), &request(&worker, &[])));
    let others: Vec<_> = (1..4).map(|_| lease(rounds.grant(at(0), &request(&other, &[])))).collect();
    for _ in 0..most {
        assert!(matches!(commit(&mut rounds, &of_path), Commit::Accepted(_)));
        of_path = lease(rounds.grant(at(0), &request(&worker, &[])));
        assert_eq!(of_path.path, PathId(0));
    }
    assert!(matches!(commit(&mut rounds, &others[0]), Commit::Accepted(_)));
    let shared = fragment(0, 0, 0);
    assert_eq!(rounds.take_due(at(0)), [shared]);
    let step = rounds.due_step(shared).unwrap();
    assert_eq!(step.contributions.len(), most);
    assert!(step.contributions.is_sorted());
    let of_other = step.contributions.iter().filter(|contribution| contribution.path == others[0].path);
    assert_eq!(of_other.count(), 1, "the first contributions of all paths count first");
    assert!(rounds.stepped(&step, Duration::ZERO));
    let left: Vec<_> = rounds.progress().pending[&shared].iter().map(|c| (c.path, c.number)).collect();
    assert_eq!(left, [(PathId(0), u32::try_from(most).unwrap())]);
}
