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
