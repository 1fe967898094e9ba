//! The orders of one answer, and the changes of one fragment, have a bounded number.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_ledger::{
    FailureDecision, LeaseCompletion, LeaseReport, LeaseResult, Ledger, Orders, OuterStepDone,
    OuterStepOrder, Recording, StepRecording, StoredResult, TrainingFailure,
};
use dipaco_sync::{Drops, Lease, ProcessId, Quorum, Schedule, ScheduledSend, Scheme};
use support::{FRAGMENT, NOW, lease, object, start_of, take_over, take_over_from, take_over_with, written};

/// Uploads all results of a lease, and completes it.
fn train(ledger: &mut Ledger, lease: &Lease) {
    train_with(ledger, lease, 1.0);
}

/// The same with outer gradients of this norm.
fn train_with(ledger: &mut Ledger, lease: &Lease, norm: f64) {
    let gradients = lease.sends.iter().map(|send| {
        let &ScheduledSend { fragment, number, .. } = send;
        LeaseResult::OuterGradient { fragment, number, tokens: 1 }
    });
    for item in gradients.chain([LeaseResult::State]) {
        let object = object(&format!("{}-{}-{}", lease.path, lease.to, item.name()));
        let stored = StoredResult { object, norm };
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

/// With delayed momentum an order says how many contributions came before its own. Neither the outer gradients that the
/// schedule drops nor those of a path in quarantine come.
#[test]
fn an_order_counts_the_contributions_that_have_been_applied() {
    const ROUNDS: u64 = 20;
    let plain = || Schedule::new(3, 1, 0, vec![3 * ROUNDS]).unwrap();
    for (schedule, fails) in [(plain(), false), (plain(), true), (plain().without(Drops::new(5, 0.5)), false)]
    {
        let mut ledger = take_over_from(start_of(3, 1), |plan| {
            (plan.schedule, plan.one_by_one, plan.quarantine_after) = (schedule.clone(), true, 1);
        });
        let (fence, paths) = (ledger.own_fence(), if fails { 2 } else { 3 });
        if fails {
            let failed = lease(&mut ledger, "a");
            let decision =
                ledger.training_failed(&failed.claim(), &TrainingFailure::Diverged { step: 0 }).unwrap();
            assert!(matches!(decision, FailureDecision::Quarantined(_)), "{decision:?}");
        }
        let mut applied = 0;
        for round in 0..ROUNDS {
            let mut sent = 0;
            for _ in 0..paths {
                let lease = lease(&mut ledger, "a");
                train(&mut ledger, &lease);
                sent += lease.sends.len();
            }
            let orders = ledger.orders(NOW, fence).unwrap().orders;
            let [order] = orders.as_slice() else { panic!("{orders:?}") };
            assert_eq!(
                (order.due, order.applied, order.shares.len()),
                (true, applied, sent),
                "round {round}"
            );
            take(&mut ledger, order);
            applied += sent as u64;
        }
        assert_eq!(applied == 3 * ROUNDS, !fails && !schedule.drops().any());
    }
}

#[test]
fn an_order_names_weights_and_what_the_guard_reduces_apart() {
    let mut ledger = take_over_from(start_of(3, 1), |plan| plan.guard = 2.0);
    let fence = ledger.own_fence();
    for norm in [1.0, 16.0, 1.0] {
        let lease = lease(&mut ledger, "a");
        train_with(&mut ledger, &lease, norm);
    }
    let Orders { orders, reduced, others_due: _ } = ledger.orders(NOW, fence).unwrap();
    let [order] = orders.as_slice() else { panic!("{orders:?}") };
    let third = 1.0 / 3.0;
    let shares: Vec<_> = order.shares.iter().map(|share| (share.weight, share.reduction)).collect();
    // Twice the median of the norms is an eighth of the second.
    assert_eq!(shares, [(third, 1.0), (third, 0.125), (third, 1.0)]);
    assert_eq!(reduced.iter().map(|reduced| reduced.path.0).collect::<Vec<_>>(), [1]);
}

#[test]
fn who_asks_first_hears_that_steps_of_other_owners_are_due() {
    let mut ledger = take_over(start_of(3, 1));
    let (own, synchronizer) = (ledger.own_fence(), ProcessId::local("synchronizer"));
    let claimed = ledger.claim_modules(NOW, &synchronizer, "there:1", &[FRAGMENT.module]).unwrap();
    for worker in ["a", "b", "c"] {
        let lease = lease(&mut ledger, worker);
        train(&mut ledger, &lease);
    }
    let heard: Vec<_> = [own, own, claimed.fence]
        .map(|fence| ledger.orders(NOW, fence).unwrap())
        .iter()
        .map(|answer| (answer.others_due, answer.orders.len()))
        .collect();
    assert_eq!(heard, [(true, 0), (false, 0), (false, 1)]);
    ledger.release_modules(NOW, &synchronizer);
    let Orders { orders, others_due, .. } = ledger.orders(NOW, own).unwrap();
    take(&mut ledger, &orders[0]);
    assert!(!others_due);
}
