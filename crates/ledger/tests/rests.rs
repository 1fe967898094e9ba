//! Rounds in which some paths rest, in the ledger.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_ledger::{LeaseCompletion, LeaseReport, LeaseResult, Ledger, StoredResult};
use dipaco_sync::{Grant, Lease, Rests, Schedule, ScheduledSend};
use dipaco_topology::PathId;
use support::{FRAGMENT, NOW, ask, lease, object, start, take_over, take_over_with, written};

/// The schedule of a run in which two of its three paths train in each round.
fn schedule() -> Schedule {
    Schedule::new(3, 1, 0, vec![6]).unwrap().resting(Rests::new(2, 0..3, 2)).unwrap()
}

/// The path that rests in the round after this step.
fn resting(step: u64) -> PathId {
    (0..3).map(PathId).find(|&path| schedule().rests_after(path, step)).unwrap()
}

/// Completes a lease with its outer gradient, without a state.
fn complete(ledger: &mut Ledger, lease: &Lease) {
    let ScheduledSend { number, step, .. } = lease.sends[0];
    let item = LeaseResult::OuterGradient { fragment: FRAGMENT, number, tokens: 1 };
    let stored = StoredResult { object: object(&format!("gradient {}", lease.path)), norm: 1.0 };
    ledger.check_and_record(&lease.claim(), item, step, stored).unwrap();
    let done = ledger.complete_lease(NOW, &lease.claim(), &LeaseReport::default()).unwrap();
    assert!(matches!(done, LeaseCompletion::Accepted { .. }), "{done:?}");
}

#[test]
fn a_path_that_rests_is_granted_to_nobody() {
    let third = |ledger: &mut Ledger| {
        for worker in ["a", "b"] {
            lease(ledger, worker);
        }
        ask(ledger, "c")
    };
    assert!(matches!(third(&mut take_over(start())), Grant::Lease(_)));
    assert!(matches!(third(&mut take_over_with(start(), schedule())), Grant::Wait(_)));
}

#[test]
fn the_mean_is_that_of_the_paths_that_trained() {
    let mut manifest = start();
    // The shard of the path that rests is the largest by far.
    manifest.training.as_mut().unwrap().shards[resting(0).index()].tokens = 1_000_000;
    let mut ledger = take_over_with(manifest, schedule());
    let leases = ["a", "b"].map(|worker| lease(&mut ledger, worker));
    assert!(leases.iter().all(|lease| lease.path != resting(0)));
    let fence = ledger.own_fence();
    complete(&mut ledger, &leases[0]);
    // Also the order before the step is due leaves the resting path out.
    let [early] = &ledger.orders(NOW, fence).unwrap().orders[..] else { panic!("one order") };
    let weights: Vec<_> = early.shares.iter().map(|share| (share.path, share.weight)).collect();
    complete(&mut ledger, &leases[1]);
    let [order] = &ledger.orders(NOW, fence).unwrap().orders[..] else { panic!("one order") };
    assert!(order.due && !early.due);
    let mut expected: Vec<_> = leases.iter().map(|lease| (lease.path, 0.5)).collect();
    expected.sort_by_key(|(path, _)| *path);
    assert_eq!(order.shares.iter().map(|share| (share.path, share.weight)).collect::<Vec<_>>(), expected);
    assert_eq!(weights, expected);
}

#[test]
fn a_path_that_rests_to_the_end_has_nothing_left_to_repeat() {
    let mut ledger = take_over_with(start(), schedule());
    let leases = ["a", "b"].map(|worker| lease(&mut ledger, worker));
    leases.iter().for_each(|lease| complete(&mut ledger, lease));
    let last = leases.iter().find(|lease| lease.path == resting(3));
    // In both rounds another path rests, with this seed.
    let last = last.unwrap().path;
    let training = written(&mut ledger).training.unwrap();
    for (path, record) in (0..).map(PathId).zip(&training.paths) {
        let repeats = path != last && path != resting(0);
        assert_eq!(!record.replay.is_empty(), repeats, "path {path}");
    }
}
