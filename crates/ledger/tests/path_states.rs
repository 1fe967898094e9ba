//! Where the states of paths are: with the workers that trained them, and every few leases in the store.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use dipaco_ledger::{
    LeaseCompletion, LeaseReport, LeaseResult, Ledger, OuterStepDone, OuterStepOrder, Recording,
    StepRecording, StoredResult,
};
use dipaco_sync::{Grant, Lease, LeaseRequest, LeaseSecret, ProcessId, Reason, Schedule, ScheduledSend};
use dipaco_topology::PathId;
use support::{NOW, object, start, start_of, take_over, take_over_from, take_over_with, written};

/// The answer to a worker that says it holds the states of these paths.
fn ask(ledger: &mut Ledger, worker: &ProcessId, held: &[PathId]) -> Grant {
    ledger.grant(NOW, &LeaseRequest { worker, held, secret: LeaseSecret::default(), numerics: "" })
}

fn granted(grant: Grant) -> Lease {
    match grant {
        Grant::Lease(lease) => *lease,
        other => panic!("no lease but {other:?}"),
    }
}

fn upload(ledger: &mut Ledger, lease: &Lease, item: LeaseResult, step: u64) {
    let object = object(&format!("{}-{step}-{}", lease.path, item.name()));
    let stored = StoredResult { object, norm: 1.0 };
    let recorded = ledger.check_and_record(&lease.claim(), item, step, stored).unwrap();
    assert!(matches!(recorded, Recording::Recorded), "{recorded:?}");
}

/// Uploads the outer gradients of a lease.
fn send(ledger: &mut Ledger, lease: &Lease) {
    for &ScheduledSend { fragment, number, step } in &lease.sends {
        upload(ledger, lease, LeaseResult::OuterGradient { fragment, number, tokens: 1 }, step);
    }
}

fn complete(ledger: &mut Ledger, lease: &Lease) {
    let completed = ledger.complete_lease(NOW, &lease.claim(), &LeaseReport::default()).unwrap();
    assert!(matches!(completed, LeaseCompletion::Accepted { .. }), "{completed:?}");
}

/// Takes the outer steps that are due.
fn step(ledger: &mut Ledger) {
    let fence = ledger.own_fence();
    let orders = ledger.orders(NOW, fence).unwrap().orders;
    for OuterStepOrder { fragment, version, .. } in orders.into_iter().filter(|order| order.due) {
        let done = OuterStepDone {
            fragment,
            version,
            fence,
            weights: object(&format!("weights {version}")),
            momentum: object(&format!("momentum {version}")),
            change: None,
            norm: 1.0,
            cosine: None,
            seconds: 0.0,
        };
        assert!(matches!(ledger.record_step(&done).unwrap(), StepRecording::Counts { .. }));
    }
}

#[test]
fn after_a_restart_no_path_waits_for_a_token_that_has_not_trained_it() {
    let [honest, liar, new] = ["honest", "liar", "new"]
        .map(|token| ProcessId { token: token.to_owned(), ..ProcessId::local(&format!("{token} worker")) });
    let all = [0, 1, 2].map(PathId);
    let mut ledger = take_over(start());
    for _ in all {
        let lease = granted(ask(&mut ledger, &honest, &[]));
        send(&mut ledger, &lease);
        complete(&mut ledger, &lease);
    }
    step(&mut ledger);
    let manifest = written(&mut ledger);
    let mut ledger = take_over(manifest.clone());
    assert_eq!(granted(ask(&mut ledger, &liar, &all)).path, PathId(0));
    assert_eq!(granted(ask(&mut ledger, &new, &[])).path, PathId(1), "it holds no state of this path");
    // The paths wait for the worker that trained them, as before.
    let mut ledger = take_over(manifest);
    assert_eq!(granted(ask(&mut ledger, &honest, &all)).path, PathId(0));
    let held = Reason::Held { path: PathId(1), worker: honest.name.clone() };
    assert_eq!(ask(&mut ledger, &liar, &all), Grant::Wait(held));
    assert_eq!(granted(ask(&mut ledger, &honest, &all)).path, PathId(1));
}

#[test]
fn after_a_restart_amid_a_lease_a_path_waits_for_the_worker_that_trains_it() {
    let [honest, other] =
        ["honest", "other"].map(|token| ProcessId { token: token.to_owned(), ..ProcessId::local(token) });
    let all = [0, 1, 2].map(PathId);
    let schedule = || Schedule::new(3, 1, 1, vec![36]).unwrap();
    let mut ledger = take_over_with(start_of(3, 1), schedule());
    for completes in [true, false] {
        let leases = all.map(|_| granted(ask(&mut ledger, &honest, &all)));
        leases.iter().for_each(|lease| send(&mut ledger, lease));
        step(&mut ledger);
        leases.iter().filter(|_| completes).for_each(|lease| complete(&mut ledger, lease));
    }
    let mut ledger = take_over_with(written(&mut ledger), schedule());
    assert_eq!(granted(ask(&mut ledger, &honest, &all)).path, PathId(0));
    let held = Reason::Held { path: PathId(1), worker: honest.name.clone() };
    assert_eq!(ask(&mut ledger, &other, &[]), Grant::Wait(held));
}

#[test]
fn after_a_restart_a_path_waits_for_the_token_that_completed_its_lease_with_nothing_new() {
    let [honest, lost, new] = ["honest", "lost", "new"]
        .map(|token| ProcessId { token: token.to_owned(), ..ProcessId::local(token) });
    let all = [0, 1, 2].map(PathId);
    let schedule = || Schedule::new(3, 1, 1, vec![36]).unwrap();
    let mut ledger = take_over_with(start_of(3, 1), schedule());
    // The lease is lost after it has contributed. Its successor completes the path's steps with a duplicate.
    let first = granted(ask(&mut ledger, &lost, &[]));
    send(&mut ledger, &first);
    ledger.expire(Duration::from_secs(9));
    let leases = all.map(|_| granted(ask(&mut ledger, &honest, &all)));
    assert_eq!(leases[0].path, first.path);
    leases.iter().for_each(|lease| send(&mut ledger, lease));
    step(&mut ledger);
    leases.iter().for_each(|lease| complete(&mut ledger, lease));
    let mut ledger = take_over_with(written(&mut ledger), schedule());
    // Of paths that are as far as each other a worker gets the first one that it holds.
    assert_eq!(granted(ask(&mut ledger, &honest, &all)).path, first.path);
    let held = Reason::Held { path: PathId(1), worker: honest.name.clone() };
    assert_eq!(ask(&mut ledger, &new, &[]), Grant::Wait(held));
}

#[test]
fn a_path_whose_leases_follow_each_other_uploads_its_state_as_often_as_the_plan_says() {
    let schedule = Schedule::new(3, 1, 1, vec![36]).unwrap();
    let mut ledger = take_over_from(start_of(1, 1), |plan| (plan.schedule, plan.state_every) = (schedule, 5));
    let mut lease = granted(ask(&mut ledger, &ProcessId::local("w"), &[]));
    let mut uploads_state = ledger.granted_lease(&lease).unwrap().uploads_state;
    let mut uploads = Vec::new();
    // All leases but the last one, after which the state is useless.
    for number in 1..12 {
        send(&mut ledger, &lease);
        step(&mut ledger);
        // The next lease is granted while this one is out.
        let next = granted(ledger.follow(NOW, &lease.claim(), LeaseSecret::default()).unwrap());
        let next_uploads = ledger.granted_lease(&next).unwrap().uploads_state;
        if uploads_state {
            upload(&mut ledger, &lease, LeaseResult::State, lease.to);
            uploads.push(number);
        }
        complete(&mut ledger, &lease);
        (lease, uploads_state) = (next, next_uploads);
    }
    assert_eq!(uploads, [5, 10]);
}
