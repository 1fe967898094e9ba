//! Tests of the limits on the leases of all processes with one token.

use super::*;
use crate::Rests;

/// The process of a worker with a token.
fn with_token(token: &str, name: &str) -> ProcessId {
    ProcessId { token: token.into(), ..ProcessId::local(name) }
}

/// Asks for a lease, at second `now`.
fn ask(rounds: &mut RunState, now: u64, worker: &ProcessId) -> Grant {
    rounds.grant(at(now), &request(worker, &[]))
}

/// Leases for as many workers of a token as get one.
fn take_all(rounds: &mut RunState, token: &str) -> Vec<Lease> {
    let granted = (0..).map(|worker| ask(rounds, 0, &with_token(token, &worker.to_string())));
    granted.map_while(|grant| if let Grant::Lease(lease) = grant { Some(*lease) } else { None }).collect()
}

#[test]
fn a_token_has_as_many_leases_as_the_plan_allows_under_any_number_of_names() {
    let limits = LeaseLimits { per_token: 3, ..LeaseLimits::of_silence(LEASE) };
    let mut rounds = begin(RunPlan { limits, ..plan(&[STEPS]) });
    let greedy = take_all(&mut rounds, "greedy");
    assert_eq!(greedy.len(), 3);
    let Grant::Wait(reason) = ask(&mut rounds, 0, &with_token("greedy", "another")) else { panic!() };
    assert_eq!(reason, Reason::TokenEnough { leases: 3, most: 3 });
    // Another token gets the fourth path, and the first token a path again when it has finished one.
    let other = lease(ask(&mut rounds, 0, &with_token("other", "w")));
    assert!(matches!(commit(&mut rounds, &other), Commit::Accepted(_)));
    assert!(matches!(commit(&mut rounds, &greedy[0]), Commit::Accepted(_)));
    assert_eq!(rounds.leases.of_token("greedy"), 2);
    assert!(rounds.token_has_enough("greedy").is_none());
}

#[test]
fn a_token_leaves_a_path_to_another_token_whose_workers_ask() {
    let mut rounds = start(2);
    let leases = take_all(&mut rounds, "greedy");
    assert_eq!(leases.len(), 4, "alone it trains all paths");
    let other = with_token("other", "w");
    assert!(matches!(ask(&mut rounds, 0, &other), Grant::Wait(Reason::AllLeased { leases: 4 })));
    // The first token finishes a lease of a path that needs nobody else, and is first to ask for it again.
    rounds.release(leases[2].path, leases[2].fence);
    let Grant::Wait(reason) = ask(&mut rounds, 1, &with_token("greedy", "2")) else { panic!() };
    assert_eq!(reason, Reason::TokenEnough { leases: 3, most: 3 });
    assert_eq!(lease(ask(&mut rounds, 1, &other)).path, leases[2].path);
}

#[test]
fn a_token_leaves_one_of_the_paths_that_train_in_a_round() {
    let plan = plan(&[40 * STEPS]);
    let schedule = plan.schedule.resting(Rests::new(5, 0..4, 2)).unwrap();
    let mut rounds = begin(RunPlan { schedule, ..plan });
    rounds.pass_over_idle();
    let other = with_token("other", "w");
    lease(ask(&mut rounds, 0, &with_token("greedy", "first")));
    let released = lease(ask(&mut rounds, 0, &other));
    rounds.release(released.path, released.fence);
    let Grant::Wait(reason) = ask(&mut rounds, 0, &with_token("greedy", "second")) else { panic!() };
    assert_eq!(reason, Reason::TokenEnough { leases: 1, most: 1 });
    assert_eq!(lease(ask(&mut rounds, 0, &other)).path, released.path);
}

#[test]
fn a_token_leaves_one_of_the_paths_that_are_not_in_quarantine() {
    let mut rounds = start(3);
    for path in [PathId(0), PathId(1)] {
        rounds.quarantine(path);
        rounds.pass_over_idle();
    }
    let leases = take_all(&mut rounds, "greedy");
    assert_eq!(leases.len(), 2, "alone it trains all paths that anybody trains");
    let other = with_token("other", "w");
    assert!(matches!(ask(&mut rounds, 0, &other), Grant::Wait(_)));
    for done in &leases {
        assert!(matches!(commit(&mut rounds, done), Commit::Accepted(_)));
        rounds.bind(done.path, true);
    }
    while !step_all(&mut rounds, at(0)).is_empty() {
        rounds.pass_over_idle();
    }
    assert_eq!(lease(ask(&mut rounds, 1, &with_token("greedy", "0"))).path, leases[0].path);
    let Grant::Wait(reason) = ask(&mut rounds, 1, &with_token("greedy", "1")) else { panic!() };
    assert_eq!(reason, Reason::TokenEnough { leases: 1, most: 1 });
    let before = rounds.looks();
    assert!(rounds.token_has_enough("greedy").is_some());
    assert_eq!(rounds.looks() - before, 2, "the paths in quarantine");
    assert_eq!(lease(ask(&mut rounds, 1, &other)).path, leases[1].path);
}

#[test]
fn a_path_that_waits_for_a_worker_of_a_full_token_is_open_to_a_token_without_a_lease() {
    let mut rounds = start(2);
    let leases = take_all(&mut rounds, "greedy");
    for done in &leases {
        assert!(matches!(commit(&mut rounds, done), Commit::Accepted(_)));
        rounds.bind(done.path, true);
    }
    step_all(&mut rounds, at(0));
    let other = with_token("other", "w");
    assert!(matches!(ask(&mut rounds, 0, &other), Grant::Wait(Reason::Held { .. })));
    assert!(!rounds.has_work(&other));
    let again: Vec<_> =
        (0..3).map(|worker| lease(ask(&mut rounds, 1, &with_token("greedy", &worker.to_string())))).collect();
    let last = with_token("greedy", "3");
    assert!(matches!(ask(&mut rounds, 1, &last), Grant::Wait(Reason::TokenEnough { .. })));
    assert!(rounds.has_work(&other), "the fourth path waits for a worker that gets no lease");
    let taken = lease(ask(&mut rounds, 1, &other));
    assert_eq!(taken.path, leases[3].path);
    // The other token has a path now, so the first one may have all others.
    assert!(matches!(commit(&mut rounds, &again[0]), Commit::Accepted(_)));
    assert!(rounds.token_has_enough("greedy").is_none());
}

#[test]
fn nobody_leaves_a_path_to_a_token_whose_workers_are_gone() {
    let mut rounds = start(1);
    assert_eq!(take_all(&mut rounds, "greedy").len(), 4);
    assert!(matches!(ask(&mut rounds, 0, &with_token("other", "w")), Grant::Wait(_)));
    assert!(rounds.token_has_too_many("greedy"));
    // After a silence as long as a lease.
    assert!(matches!(ask(&mut rounds, 60, &with_token("greedy", "0")), Grant::Wait(_)));
    assert!(!rounds.token_has_too_many("greedy"));
}

#[test]
fn a_run_of_few_paths_leaves_each_token_one() {
    let mut rounds = start(1);
    for token in 0..9 {
        let grant = ask(&mut rounds, 0, &with_token(&token.to_string(), "w"));
        assert_eq!(matches!(grant, Grant::Lease(_)), token < 4, "{token}: {grant:?}");
    }
    let Grant::Wait(reason) = ask(&mut rounds, 0, &with_token("0", "second")) else { panic!() };
    assert_eq!(reason, Reason::TokenEnough { leases: 1, most: 1 });
}

#[test]
fn no_lease_follows_for_a_token_with_too_many() {
    let schedule = Schedule::new(STEPS, 1, 2, vec![3 * STEPS]).unwrap();
    let mut rounds = begin(RunPlan { schedule, ..plan(&[3 * STEPS]) });
    let leases = take_all(&mut rounds, "greedy");
    for lease in &leases {
        for send in &lease.sends {
            let sent = rounds.contribute_claimed(&lease.claim(), send.fragment, send.number, 1);
            assert!(matches!(sent, Commit::Accepted(_)));
        }
    }
    step_all(&mut rounds, at(0));
    assert!(matches!(rounds.follow(at(0), &leases[0].claim(), LeaseSecret::default()), Ok(Grant::Lease(_))));
    assert!(matches!(ask(&mut rounds, 0, &with_token("other", "w")), Grant::Wait(_)));
    let followed = rounds.follow(at(0), &leases[1].claim(), LeaseSecret::default());
    assert_eq!(followed, Ok(Grant::Finished));
}
