//! Tests of paths that wait for the workers with their states.

use super::*;

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
fn held_paths_that_do_not_exist_are_left_out() {
    let mut rounds = start(1);
    let held = [PathId(99), PathId(2), PathId(u32::MAX)];
    assert_eq!(lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &held))).path, PathId(2));
}

#[test]
fn a_path_that_fails_for_its_holder_is_open_to_others() {
    let mut rounds = start(3);
    let (a, b) = (ProcessId::local("a"), ProcessId::local("b"));
    let first = lease(rounds.grant(at(0), &request(&a, &[])));
    commit(&mut rounds, &first);
    rounds.bind(first.path, true);
    let others: Vec<_> = (1..4).map(|_| lease(rounds.grant(at(0), &request(&b, &[])))).collect();
    for other in &others {
        commit(&mut rounds, other);
    }
    step_all(&mut rounds, at(0));
    let second = lease(rounds.grant(at(0), &request(&a, &[first.path])));
    assert_eq!((second.path, second.from), (first.path, STEPS));
    rounds.fail(&second.claim()).unwrap();
    rounds.end_leases(second.path);
    let asked = rounds.grant(at(0), &request(&a, &[first.path]));
    assert_ne!(lease(asked).path, first.path, "the worker leaves the path to others");
    assert_eq!(lease(rounds.grant(at(0), &request(&b, &[]))).path, first.path);
}
