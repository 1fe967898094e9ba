//! A path whose training fails for several workers goes into quarantine, and the others go on without it.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_ledger::{
    FailureDecision, LeaseCompletion, LeaseReport, LeaseResult, Ledger, OuterStepDone, Recording,
    StepRecording, StoredResult, TrainingFailure,
};
use dipaco_sync::{Grant, Lease, Reason};
use dipaco_topology::PathId;
use support::{FRAGMENT, NOW, ask, ask_as, lease, object, start, take_over, written};

fn diverges(ledger: &mut Ledger, lease: &Lease) -> FailureDecision {
    ledger.training_failed(&lease.claim(), &TrainingFailure::Diverged { step: lease.from }).unwrap()
}

/// Uploads an outer gradient of this norm.
fn upload(ledger: &mut Ledger, lease: &Lease, norm: f64) -> Recording {
    let send = lease.sends[0];
    let item = LeaseResult::OuterGradient { fragment: FRAGMENT, number: send.number, tokens: 1 };
    let object = object(&format!("{}-{}-{norm}", lease.path, lease.from));
    ledger.check_and_record(&lease.claim(), item, send.step, StoredResult { object, norm }).unwrap()
}

fn complete(ledger: &mut Ledger, lease: &Lease) {
    assert!(matches!(upload(ledger, lease, 1.0), Recording::Recorded));
    let completed = ledger.complete_lease(NOW, &lease.claim(), &LeaseReport::default()).unwrap();
    assert!(matches!(completed, LeaseCompletion::Accepted { .. }), "{completed:?}");
}

/// Takes the outer step that is due; returns the paths that contribute.
fn step(ledger: &mut Ledger) -> Vec<u32> {
    let fence = ledger.own_fence();
    let orders = ledger.orders(NOW, fence).unwrap().orders;
    let [order] = orders.as_slice() else { panic!("{orders:?}") };
    assert!(order.due);
    let version = order.version;
    let done = OuterStepDone {
        fragment: FRAGMENT,
        version,
        fence,
        weights: object(&format!("modules/{version}")),
        momentum: object(&format!("momenta/{version}")),
        change: None,
        norm: 1.0,
        cosine: None,
        seconds: 0.0,
    };
    assert!(matches!(ledger.record_step(&done).unwrap(), StepRecording::Counts { .. }));
    let weights: f32 = order.shares.iter().map(|share| share.weight).sum();
    assert!((weights - 1.0).abs() < 1e-6, "the others have the whole weight");
    order.shares.iter().map(|share| share.path.0).collect()
}

#[test]
fn a_path_that_diverges_for_two_workers_is_left_out_and_a_restart_remembers_it() {
    let mut ledger = take_over(start());
    let (of_a, of_b) = (lease(&mut ledger, "a"), lease(&mut ledger, "b"));
    assert_eq!((of_a.path, of_b.path), (PathId(0), PathId(1)));
    assert_eq!(diverges(&mut ledger, &of_a), FailureDecision::Retried);
    assert!(matches!(diverges(&mut ledger, &of_a), FailureDecision::Lost(_)), "the lease has ended");
    // The worker gets another path, and this one no more.
    let of_a = lease(&mut ledger, "a");
    assert_eq!(of_a.path, PathId(2));
    complete(&mut ledger, &of_a);
    let Grant::Wait(reason) = ask(&mut ledger, "a") else { panic!("a lease") };
    assert_eq!(reason, Reason::Failed { path: PathId(0) });
    complete(&mut ledger, &of_b);
    let of_b = lease(&mut ledger, "b");
    assert_eq!(of_b.path, PathId(0));
    let FailureDecision::Quarantined(record) = diverges(&mut ledger, &of_b) else { panic!("no quarantine") };
    assert_eq!((record.step, record.workers.as_slice()), (0, &["a".to_owned(), "b".to_owned()][..]));
    assert_eq!(record.reason, "its training diverged after inner step 0");
    assert_eq!(step(&mut ledger), [1, 2], "the step does not wait for the path");

    let mut ledger = take_over(written(&mut ledger));
    for path in [PathId(1), PathId(2)] {
        let next = lease(&mut ledger, "a");
        assert_eq!((next.path, next.from), (path, 3));
        complete(&mut ledger, &next);
    }
    assert_eq!(step(&mut ledger), [1, 2]);
    // The other paths measure their final weights.
    for path in [PathId(1), PathId(2)] {
        let last = lease(&mut ledger, "a");
        assert_eq!((last.path, last.from, last.to), (path, 6, 6));
        let completed = ledger.complete_lease(NOW, &last.claim(), &LeaseReport::default()).unwrap();
        assert!(matches!(completed, LeaseCompletion::Accepted { .. }), "{completed:?}");
    }
    assert!(ledger.state().finished());
    let training = written(&mut ledger).training.unwrap();
    assert_eq!(training.paths[0].quarantine, Some(record));
    let counted = training.paths.iter().map(|path| path.counted[0].steps).collect::<Vec<_>>();
    assert_eq!(counted, [0, 6, 6]);
}

#[test]
fn a_completed_lease_shows_that_the_workers_were_to_blame() {
    let mut ledger = take_over(start());
    let of_a = lease(&mut ledger, "a");
    assert_eq!(diverges(&mut ledger, &of_a), FailureDecision::Alone, "nobody else is known");
    let of_b = lease(&mut ledger, "b");
    assert_eq!(of_b.path, PathId(0));
    complete(&mut ledger, &of_b);
    for path in [PathId(1), PathId(2)] {
        let of_b = lease(&mut ledger, "b");
        assert_eq!(of_b.path, path);
        complete(&mut ledger, &of_b);
    }
    assert_eq!(step(&mut ledger), [0, 1, 2]);
    let of_b = lease(&mut ledger, "b");
    assert_eq!((of_b.path, diverges(&mut ledger, &of_b)), (PathId(0), FailureDecision::Retried));
    assert_eq!(lease(&mut ledger, "a").path, PathId(0), "the first worker may try it again");
}

#[test]
fn gradients_that_the_guard_refuses_count_as_failures() {
    let mut ledger = take_over(start());
    for path in 0..3 {
        let of_a = lease(&mut ledger, "a");
        assert_eq!(of_a.path, PathId(path));
        complete(&mut ledger, &of_a);
    }
    step(&mut ledger);
    let of_a = lease(&mut ledger, "a");
    complete(&mut ledger, &of_a);
    for (worker, quarantined) in [("b", false), ("c", true)] {
        let lease = lease(&mut ledger, worker);
        assert_eq!(lease.path, PathId(1));
        let Recording::Failed(_, decision) = upload(&mut ledger, &lease, 1e6) else { panic!("not refused") };
        assert_eq!(matches!(decision, FailureDecision::Quarantined(_)), quarantined, "{decision:?}");
        if !quarantined {
            // Another worker can try at once.
            assert!(!ledger.is_out(&lease.claim()));
        }
    }
    let training = written(&mut ledger).training.unwrap();
    assert!(training.paths[1].quarantine.as_ref().unwrap().reason.contains("outer.guard"));
}

#[test]
fn the_last_path_never_goes_into_quarantine() {
    let mut ledger = take_over(start());
    for path in 0..3 {
        let of_a = lease(&mut ledger, "a");
        assert_eq!(of_a.path, PathId(path));
        diverges(&mut ledger, &of_a);
        let of_b = lease(&mut ledger, "b");
        assert_eq!(of_b.path, PathId(path));
        let quarantined = matches!(diverges(&mut ledger, &of_b), FailureDecision::Quarantined(_));
        assert_eq!(quarantined, path < 2);
    }
}

#[test]
fn one_token_puts_no_path_into_quarantine_while_another_has_contributed() {
    let mut ledger = take_over(start());
    let honest = ask_as(&mut ledger, "honest", "a");
    complete(&mut ledger, &honest);
    let manifest = written(&mut ledger);
    // The liar connects first after a restart, under one name after the other.
    let mut ledger = take_over(manifest);
    for name in ["b", "c", "d", "e"] {
        let lied = ask_as(&mut ledger, "liar", name);
        let decision = diverges(&mut ledger, &lied);
        assert!(!matches!(decision, FailureDecision::Quarantined(_)), "{name}: {decision:?}");
    }
    let first = ask_as(&mut ledger, "honest", "a");
    assert_eq!(first.path, PathId(1), "the honest workers try it");
    let FailureDecision::Quarantined(record) = diverges(&mut ledger, &first) else {
        panic!("two tokens say so")
    };
    assert!(record.workers.contains(&"a".to_owned()), "{record:?}");
}
