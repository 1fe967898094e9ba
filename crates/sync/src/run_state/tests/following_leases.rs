//! Tests of leases that follow a current lease.

use super::*;

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
                rounds.contribute_claimed(&l.claim(), send.fragment, send.number, 1),
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
    let granted = |path, fence| rounds.is_granted(path, fence);
    assert!(granted(next.path, next.fence) && granted(next.path, leases[0].fence));
    assert!(!granted(next.path, leases[1].fence) && !granted(PathId(99), next.fence));
    // The worker is alive, and the lease does not count yet.
    assert!(rounds.heartbeat(at(50), &next.claim(), 0, 0).is_ok());
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
            rounds.contribute_claimed(&next.claim(), send.fragment, send.number, 1),
            Commit::Accepted(_)
        ));
    }
    assert!(matches!(commit(&mut rounds, &next), Commit::Accepted(_)));
    assert_eq!(rounds.progress().paths[&PathId(0)].steps, 20);
    // A following lease is lost with the lease before it.
    let other = lease(rounds.follow(at(1), &leases[1].claim(), LeaseSecret::default()).unwrap());
    assert!(rounds.release(PathId(1), leases[1].fence));
    assert!(rounds.heartbeat(at(51), &other.claim(), 0, 0).is_err());
    assert_eq!(rounds.progress().paths[&PathId(1)].steps, 0);
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
                rounds.contribute_claimed(&lease.claim(), send.fragment, send.number, 1),
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
