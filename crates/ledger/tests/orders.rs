//! The orders of one answer, and the changes of one fragment, have a bounded number.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_ledger::{
    LeaseCompletion, LeaseReport, LeaseResult, Ledger, OuterStepDone, OuterStepOrder, Recording,
    StepRecording, StoredResult,
};
use dipaco_sync::{Lease, ProcessId, Quorum, Schedule, ScheduledSend, Scheme};
use support::{FRAGMENT, NOW, lease, object, start_of, take_over, take_over_from, take_over_with, written};

/// Uploads all results of a lease, and completes it.
fn train(ledger: &mut Ledger, lease: &Lease) {
    let gradients = lease.sends.iter().map(|send| {
        let &ScheduledSend { fragment, number, .. } = send;
        LeaseResult::OuterGradient { fragment, number, tokens: 1 }
    });
    for item in gradients.chain([LeaseResult::State]) {
        let object = object(&format!("{}-{}-{}", lease.path, lease.to, item.name()));
        let stored = StoredResult { object, norm: 1.0 };
        let recording = ledger.check_and_record(&lease.claim(), item, lease.to, stored).unwrap();
        assert!(matches!(recording, Recording::Recorded), "{recording:?}");
    }
    let completed = ledger.complete_lease(NOW, &lease.claim(), &LeaseReport::default()).unwrap();
    assert!(matches!(completed, LeaseCompletion::Accepted { .. }), "{completed:?}");
}

/// Records an outer step, whose change has far fewer bytes than its weights.
fn take(ledger: &mut Ledger, order: &OuterStepOrder) {
    let OuterStepOrder { fragment, version, fence, .. } = *order;
    let done = OuterStepDone {
        fragment,
        version,
        fence,
        weights: object(&format!("weights {fragment} {version} {}", "-".repeat(400))),
        momentum: object(&format!("momentum {fragment} {version}")),
        change: Some(object(&format!("c{version}"))),
        norm: 1.0,
        cosine: None,
        seconds: 0.0,
    };
    assert!(matches!(ledger.record_step(&done).unwrap(), StepRecording::Counts { .. }));
}

#[test]
fn orders_that_do_not_fit_an_answer_come_with_the_next() {
    let mut ledger = take_over(start_of(900, 3));
    let fence = ledger.own_fence();
    for _ in 0..900 {
        let lease = lease(&mut ledger, "a");
        train(&mut ledger, &lease);
    }
    // At most 2,000 contributions.
    for due in [2, 1] {
        let answer = ledger.orders(NOW, fence).unwrap().orders;
        assert_eq!(answer.len(), due);
        assert_eq!(ledger.orders(NOW, fence).unwrap().orders, answer, "a lost answer is repeated");
        answer.iter().for_each(|order| take(&mut ledger, order));
    }
    assert!(ledger.orders(NOW, fence).unwrap().orders.is_empty());
}

#[test]
fn early_orders_that_do_not_fit_an_answer_come_with_the_next() {
    let mut ledger = take_over(start_of(1_500, 2));
    let fence = ledger.own_fence();
    let first = lease(&mut ledger, "a");
    train(&mut ledger, &first);
    // Each names all paths through its module, and two name more than 2,000 contributions.
    for level in [0, 1] {
        let answer = ledger.orders(NOW, fence).unwrap().orders;
        let named = answer.iter().map(|order| (order.fragment.module.level, order.due, order.shares.len()));
        assert_eq!(named.collect::<Vec<_>>(), [(level, false, 1_500)]);
    }
    assert!(ledger.orders(NOW, fence).unwrap().orders.is_empty());
}

#[test]
fn a_fragment_keeps_its_last_changes() {
    let mut ledger = take_over_with(start_of(1, 1), Schedule::new(3, 1, 0, vec![90]).unwrap());
    let fence = ledger.own_fence();
    for _ in 0..30 {
        let lease = lease(&mut ledger, "a");
        train(&mut ledger, &lease);
        let orders = ledger.orders(NOW, fence).unwrap().orders;
        let [order] = orders.as_slice() else { panic!("{orders:?}") };
        assert_eq!(order.fragment, FRAGMENT);
        take(&mut ledger, order);
    }
    let training = written(&mut ledger).training.unwrap();
    let changes = training.modules[0].fragments[0].changes.iter();
    assert_eq!(changes.map(|change| change.version).collect::<Vec<_>>(), (15..=30).collect::<Vec<_>>());
}

#[test]
fn an_order_stays_the_same_for_the_process_that_has_it() {
    let quorum = Quorum { learners: 1, grace: NOW, grace_share: 0.0, throttle: 0.0, dynamic_steps: false };
    let mut ledger = take_over_from(start_of(3, 1), |plan| plan.scheme = Scheme::Quorum(quorum));
    let own = ledger.own_fence();
    let synchronizer = ProcessId::local("synchronizer");
    let [first, second] = ["a", "b"].map(|worker| lease(&mut ledger, worker));
    train(&mut ledger, &first);
    let told = ledger.orders(NOW, own).unwrap().orders;
    assert_eq!(told[0].shares.len(), 1);
    // The coordinator may be carrying it out, and its report names no contributions.
    train(&mut ledger, &second);
    assert_eq!(ledger.orders(NOW, own).unwrap().orders, told);
    let claimed = ledger.claim_modules(NOW, &synchronizer, "there:1", &[FRAGMENT.module]).unwrap();
    assert_eq!(ledger.orders(NOW, claimed.fence).unwrap().orders[0].shares.len(), 2);
    ledger.release_modules(NOW, &synchronizer);
    assert_eq!(ledger.orders(NOW, own).unwrap().orders, told);
    take(&mut ledger, &told[0]);
    let rest = ledger.orders(NOW, own).unwrap().orders;
    assert_eq!(rest[0].shares.len(), 1, "the second contribution is not lost");
    assert_ne!(rest[0].shares, told[0].shares);
}
