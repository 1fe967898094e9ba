//! Tests of who holds a lease, and how long.

use super::*;

#[test]
fn a_worker_that_lost_its_lease_is_refused_and_a_retry_is_told_so() {
    let mut rounds = start(1);
    let zombie = lease(rounds.grant(at(0), &request(&ProcessId::local("slow"), &[])));
    assert!(rounds.expire(at(59)).is_empty());
    assert_eq!(rounds.expire(at(60)), vec![zombie.clone()]);
    let heir = lease(rounds.grant(at(61), &request(&ProcessId::local("fast"), &[])));
    assert_eq!(heir.path, zombie.path);
    assert!(heir.fence > zombie.fence);
    assert!(rounds.heartbeat(at(62), &zombie.claim(), 0, 0).is_err());
    assert!(matches!(commit(&mut rounds, &zombie), Commit::Refused(LeaseError::Lost { .. })));
    assert!(matches!(commit(&mut rounds, &heir), Commit::Accepted(_)));
    assert_eq!(commit(&mut rounds, &heir), Commit::Duplicate);
    assert_eq!(rounds.progress().paths[&PathId(0)].steps, STEPS);
}

#[test]
fn heartbeats_keep_a_lease_alive() {
    let mut rounds = start(1);
    let held = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
    assert_eq!(rounds.heartbeat(at(50), &held.claim(), 0, 0).unwrap(), at(110));
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
fn only_the_process_that_got_a_lease_uses_it() {
    let mut rounds = streaming();
    let owner = ProcessId { token: "token".into(), name: "owner".into(), instance: 1 };
    let secret = LeaseSecret::new([9; 16]);
    let granted =
        lease(rounds.grant(at(0), &LeaseRequest { worker: &owner, held: &[], secret, numerics: "" }));
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
        assert!(rounds.heartbeat(at(1), claim, 1, 0).is_err());
        assert!(rounds.follow(at(1), claim, secret).is_err());
        let contributed = rounds.contribute_claimed(claim, send.fragment, send.number, 0);
        assert!(matches!(contributed, Commit::Refused(LeaseError::Lost { .. })));
        let committed = rounds.commit(at(1), claim, &LeaseOutcome::default());
        assert!(matches!(committed, Commit::Refused(LeaseError::Lost { .. })));
    }
    assert_eq!(rounds.leases().next().unwrap().deadline, LEASE, "no other process renewed it");
    for send in &granted.sends {
        assert!(matches!(
            rounds.contribute_claimed(&own, send.fragment, send.number, 0),
            Commit::Accepted(Some(_))
        ));
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
        assert!(rounds.heartbeat(at(now), &hung.claim(), 3, 0).is_ok());
        assert!(rounds.heartbeat(at(now), &slow.claim(), now / 40, 0).is_ok());
    }
    for now in [120, 139] {
        assert!(rounds.heartbeat(at(now), &hung.claim(), 3, 0).is_ok());
        assert!(rounds.heartbeat(at(now), &slow.claim(), 2, 0).is_ok());
        assert!(rounds.expire(at(now)).is_empty());
    }
    assert_eq!(rounds.next_deadline(), Some(at(140)));
    let ended: Vec<_> = rounds.expire(at(140)).iter().map(|lease| lease.path).collect();
    assert_eq!(ended, [hung.path], "its last step was 100 seconds ago");
    assert!(rounds.heartbeat(at(141), &hung.claim(), 4, 0).is_err());
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

/// A run whose leases stand still after 100 seconds.
fn impatient(rounds: u64) -> RunState {
    let limits = LeaseLimits { standstill: at(100), ..LeaseLimits::of_silence(LEASE) };
    begin(RunPlan { limits, ..plan(&[rounds * STEPS]) })
}

fn of_token(token: &str, name: &str) -> ProcessId {
    ProcessId { token: token.into(), ..ProcessId::local(name) }
}

#[test]
fn a_worker_whose_lease_stood_still_gets_its_path_after_all_others() {
    let mut rounds = impatient(2);
    let [liar, twin] = ["liar", "twin"].map(|name| of_token("liar", name));
    let honest = of_token("honest", "worker");
    // Each worker holds the newest states of its paths.
    for (path, worker) in [&liar, &honest, &honest, &honest].into_iter().enumerate() {
        let first = lease(rounds.grant(at(0), &request(worker, &[])));
        assert_eq!(first.path.index(), path);
        assert!(matches!(commit(&mut rounds, &first), Commit::Accepted(_)));
        rounds.bind(first.path, true);
    }
    step_all(&mut rounds, at(0));
    let hung = lease(rounds.grant(at(0), &request(&liar, &[])));
    assert_eq!(hung.path, PathId(0));
    let own: Vec<_> = (0..3).map(|_| lease(rounds.grant(at(0), &request(&honest, &[])))).collect();
    for now in [40, 90] {
        assert!(rounds.expire(at(now)).is_empty());
        assert!(rounds.heartbeat(at(now), &hung.claim(), 0, 0).is_ok());
        assert!(own.iter().all(|lease| rounds.heartbeat(at(now), &lease.claim(), now, 0).is_ok()));
    }
    assert_eq!(rounds.expire(at(100)).len(), 1);
    for worker in [&liar, &twin] {
        let asked = rounds.grant(at(100), &request(worker, &[PathId(0)]));
        assert_eq!(asked, Grant::Wait(Reason::Failed { path: PathId(0) }), "other tokens come first");
    }
    // While the liar waits, the other token leaves it a path.
    assert!(matches!(commit(&mut rounds, &own[0]), Commit::Accepted(_)));
    assert_eq!(lease(rounds.grant(at(100), &request(&honest, &[]))).path, PathId(0));
    // Alone, the worker may try again.
    let mut rounds = impatient(2);
    let hung = lease(rounds.grant(at(0), &request(&liar, &[])));
    for now in [50, 99] {
        assert!(rounds.heartbeat(at(now), &hung.claim(), 0, 0).is_ok());
    }
    assert_eq!(rounds.expire(at(100)).len(), 1);
    assert_eq!(lease(rounds.grant(at(100), &request(&liar, &[]))).path, hung.path);
}

#[test]
fn a_worker_that_gives_a_path_back_again_and_again_gets_it_after_all_others() {
    let mut rounds = impatient(2);
    let [liar, twin] = ["liar", "twin"].map(|name| of_token("liar", name));
    let honest = of_token("honest", "worker");
    // Each worker holds the newest states of its paths.
    for (path, worker) in [&liar, &honest, &honest, &honest].into_iter().enumerate() {
        let first = lease(rounds.grant(at(0), &request(worker, &[])));
        assert_eq!(first.path.index(), path);
        assert!(matches!(commit(&mut rounds, &first), Commit::Accepted(_)));
        rounds.bind(first.path, true);
    }
    step_all(&mut rounds, at(0));
    let held = [1, 2, 3].map(PathId);
    let own: Vec<_> = (0..3).map(|_| lease(rounds.grant(at(0), &request(&honest, &held)))).collect();
    for _ in 0..2 {
        // The first time it gets the path again: it may have been restarted.
        let again = lease(rounds.grant(at(0), &request(&liar, &[PathId(0)])));
        assert_eq!(again.path, PathId(0));
        assert!(rounds.give_back(again.path, again.fence));
        assert!(!rounds.give_back(again.path, again.fence), "a lease ends once");
    }
    for worker in [&liar, &twin] {
        let asked = rounds.grant(at(0), &request(worker, &[PathId(0)]));
        assert_eq!(asked, Grant::Wait(Reason::Failed { path: PathId(0) }), "other tokens come first");
    }
    // While the liar waits, the other token leaves it a path.
    assert!(matches!(commit(&mut rounds, &own[0]), Commit::Accepted(_)));
    assert_eq!(lease(rounds.grant(at(0), &request(&honest, &held))).path, PathId(0));
}

#[test]
fn a_worker_whose_leases_are_silent_again_and_again_gets_their_path_after_all_others() {
    let mut rounds = start(1);
    let (silent, honest) = (of_token("silent", "worker"), of_token("honest", "worker"));
    for now in [0, 60] {
        assert_eq!(lease(rounds.grant(at(now), &request(&silent, &[]))).path, PathId(0));
        // Another worker may try, and trains another path.
        if now == 60 {
            assert_eq!(lease(rounds.grant(at(119), &request(&honest, &[]))).path, PathId(1));
        }
        assert_eq!(rounds.expire(at(now + 60)).len(), 1);
    }
    assert_eq!(lease(rounds.grant(at(120), &request(&silent, &[]))).path, PathId(2));
    assert_eq!(lease(rounds.grant(at(120), &request(&honest, &[]))).path, PathId(0));
}

#[test]
fn a_time_in_which_the_coordinator_did_not_run_ends_no_lease() {
    let mut rounds = impatient(2);
    let worker = ProcessId::local("w");
    let out = lease(rounds.grant(at(0), &request(&worker, &[])));
    assert!(rounds.heartbeat(at(40), &out.claim(), 1, 0).is_ok());
    // It did not run from second 50 on.
    rounds.postpone(at(350), at(300));
    assert!(rounds.expire(at(350)).is_empty());
    assert_eq!(rounds.next_deadline(), Some(at(400)), "a silence of 50 seconds is left");
    assert!(rounds.heartbeat(at(399), &out.claim(), 1, 0).is_ok());
    assert!(rounds.expire(at(439)).is_empty());
    // It did not run either, but nobody has more time than one that has just been heard.
    rounds.postpone(at(439), at(9_000));
    assert_eq!(rounds.next_deadline(), Some(at(499)));
    assert!(rounds.heartbeat(at(498), &out.claim(), 1, 0).is_ok());
    assert!(rounds.expire(at(538)).is_empty());
    assert_eq!(rounds.expire(at(539)).len(), 1, "it stands still for 100 seconds");
}

#[test]
fn the_longest_time_of_a_lease_counts_only_while_the_coordinator_runs() {
    let mut rounds = impatient(2);
    let usual = lease(rounds.grant(at(0), &request(&ProcessId::local("usual"), &[])));
    let done = LeaseOutcome { seconds: 5.0, ..LeaseOutcome::default() };
    assert!(matches!(rounds.commit(at(10), &usual.claim(), &done), Commit::Accepted(_)));
    // The longest time is 100 × 5 seconds and a standstill of 100.
    let slow = lease(rounds.grant(at(10), &request(&ProcessId::local("slow"), &[])));
    rounds.postpone(at(1_020), at(1_000));
    for (now, taken) in [(1_021, 1), (1_075, 2)] {
        assert!(rounds.heartbeat(at(now), &slow.claim(), taken, 0).is_ok());
        assert!(rounds.expire(at(now + 1)).is_empty());
    }
}

#[test]
fn a_lease_takes_at_most_a_hundred_times_the_usual_time() {
    let mut rounds = impatient(2);
    // A worker that takes half a second for each of its ten steps.
    let usual = lease(rounds.grant(at(0), &request(&ProcessId::local("usual"), &[])));
    let done = LeaseOutcome { seconds: 5.0, ..LeaseOutcome::default() };
    assert!(matches!(rounds.commit(at(10), &usual.claim(), &done), Commit::Accepted(_)));
    let crawls = lease(rounds.grant(at(10), &request(&ProcessId::local("crawls"), &[])));
    let mut now = 10;
    // Always a further step, in the last moment.
    while rounds.heartbeat(at(now), &crawls.claim(), now / 90, 0).is_ok() {
        now += 30;
        rounds.expire(at(now));
    }
    assert_eq!(now, 610, "10 seconds before it, 100 × 5 seconds, and a standstill of 100");
    let crawls = lease(rounds.grant(at(now), &request(&ProcessId::local("crawls"), &[])));
    // Steps that the lease can't have do not count.
    for later in [0, 50, 99] {
        assert!(rounds.heartbeat(at(now + later), &crawls.claim(), STEPS + later, 0).is_ok());
        rounds.expire(at(now + later));
    }
    assert_eq!(rounds.expire(at(now + 100)).len(), 1);
}

#[test]
fn the_first_token_that_completes_a_lease_does_not_end_the_leases_of_others() {
    let mut rounds = impatient(2);
    let (liar, honest) = (of_token("liar", "worker"), of_token("honest", "worker"));
    let lied = lease(rounds.grant(at(0), &request(&liar, &[])));
    let own = lease(rounds.grant(at(0), &request(&honest, &[])));
    let done = |seconds| LeaseOutcome { seconds, ..LeaseOutcome::default() };
    assert!(matches!(rounds.commit(at(0), &lied.claim(), &done(1e-300)), Commit::Accepted(_)));
    // Each step of the honest worker takes 50 seconds, and its lease longer than a standstill of 100.
    for step in 1..=STEPS {
        assert!(rounds.heartbeat(at(50 * step), &own.claim(), step, 0).is_ok());
        assert!(rounds.expire(at(50 * step + 1)).is_empty());
    }
    assert!(matches!(rounds.commit(at(501), &own.claim(), &done(500.0)), Commit::Accepted(_)));
}

#[test]
fn a_worker_whose_lease_was_silent_holds_nothing_until_it_asks_again() {
    let mut rounds = start(2);
    let liar = ProcessId::local("liar");
    let first = lease(rounds.grant(at(0), &request(&liar, &[])));
    assert!(matches!(commit(&mut rounds, &first), Commit::Accepted(_)));
    rounds.bind(first.path, true);
    for _ in 1..4 {
        let other = lease(rounds.grant(at(0), &request(&ProcessId::local("honest"), &[])));
        assert!(matches!(commit(&mut rounds, &other), Commit::Accepted(_)));
    }
    step_all(&mut rounds, at(0));
    let again = lease(rounds.grant(at(0), &request(&liar, &[])));
    assert_eq!(again.path, first.path);
    let leases = (0..3).map(|_| lease(rounds.grant(at(0), &request(&ProcessId::local("honest"), &[]))));
    assert_eq!(leases.collect::<Vec<_>>().len(), 3);
    // It asks for more, and trains nothing.
    assert!(matches!(rounds.grant(at(50), &request(&liar, &[])), Grant::Wait(_)));
    assert!(!rounds.has_work(&ProcessId::local("honest")));
    rounds.expire(at(60));
    assert!(rounds.has_work(&ProcessId::local("honest")), "who waits gets the path");
}

#[test]
fn a_worker_that_states_an_impossible_duration_slows_nobody_down() {
    let mut rounds = start(2);
    let lied = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
    let done = LeaseOutcome { seconds: 1e18, ..LeaseOutcome::default() };
    assert!(matches!(rounds.commit(at(10), &lied.claim(), &done), Commit::Accepted(_)));
    // The lease is 10 seconds old, and its training may have begun up to a lease earlier.
    assert_eq!(rounds.grace.fastest(STEPS as f64), at(10) + LEASE);
}
