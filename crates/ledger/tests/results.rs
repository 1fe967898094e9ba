//! A result is checked before it is stored, and may not count any more when it is.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use dipaco_ledger::{
    ExpectedResult, LeaseCompletion, LeaseReport, LeaseResult, Ledger, Recording, ResultError, StoredResult,
};
use dipaco_sync::{Lease, LeaseError};
use support::{FRAGMENT, NOW, ask, lease, object, start, take_over};

/// The outer gradient of a lease, and its state.
fn results(lease: &Lease) -> [LeaseResult; 2] {
    let number = lease.sends[0].number;
    [LeaseResult::OuterGradient { fragment: FRAGMENT, number, tokens: 1 }, LeaseResult::State]
}

fn stored(content: &str) -> StoredResult {
    StoredResult { object: object(content), norm: 1.0 }
}

fn expected(ledger: &Ledger, lease: &Lease, item: LeaseResult, content: &str) -> ExpectedResult {
    ledger.expects(&lease.claim(), item, &object(content).hash).unwrap()
}

#[test]
fn a_result_does_not_count_when_its_lease_ended_while_it_was_stored() {
    let mut ledger = take_over(start());
    let lost = lease(&mut ledger, "a");
    let admitted = results(&lost).map(|item| expected(&ledger, &lost, item, "content"));
    ledger.expire(Duration::from_secs(9));
    for expected in &admitted {
        let recording = ledger.record_result(expected, stored("content")).unwrap();
        let gone = matches!(recording, Recording::Rejected(ResultError::Lease(LeaseError::Lost { .. })));
        assert!(gone, "{recording:?}");
    }
    // Nor when another process holds the path meanwhile.
    for worker in ["b", "c", "d"] {
        ask(&mut ledger, worker);
    }
    for expected in &admitted {
        let recording = ledger.record_result(expected, stored("content")).unwrap();
        assert!(matches!(recording, Recording::Rejected(_)), "{recording:?}");
    }
}

#[test]
fn the_content_that_is_recorded_first_stays() {
    let mut ledger = take_over(start());
    let lease = lease(&mut ledger, "a");
    for item in results(&lease) {
        let (first, second) =
            (expected(&ledger, &lease, item, "first"), expected(&ledger, &lease, item, "second"));
        assert!(matches!(ledger.record_result(&first, stored("first")).unwrap(), Recording::Recorded));
        let recording = ledger.record_result(&second, stored("second")).unwrap();
        assert!(matches!(recording, Recording::Rejected(ResultError::OtherContent { .. })), "{recording:?}");
        // Nor does a check of one content let another pass.
        let recording = ledger.record_result(&first, stored("third")).unwrap();
        assert!(matches!(recording, Recording::Rejected(ResultError::OtherContent { .. })), "{recording:?}");
        assert!(matches!(ledger.record_result(&first, stored("first")).unwrap(), Recording::Recorded));
    }
}

#[test]
fn an_object_that_a_result_names_again_is_in_use_again() {
    let mut ledger = take_over(start());
    let lease = lease(&mut ledger, "a");
    for item in results(&lease) {
        let name = item.object_name(lease.key(), lease.to, "hash");
        assert_eq!(ledger.unused([name.clone()]).len(), 1);
        let expected = expected(&ledger, &lease, item, &name);
        assert!(matches!(ledger.record_result(&expected, stored(&name)).unwrap(), Recording::Recorded));
        assert!(ledger.unused([name]).is_empty());
    }
}

#[test]
fn no_impossible_held_out_loss_stays_the_best_of_a_path() {
    let largest = f64::from(f32::MAX);
    for (loss, possible) in [
        (-1e9, false),
        (f64::NAN, false),
        (f64::NEG_INFINITY, false),
        (2.0 * largest, false),
        (largest, true),
        (0.0, true),
        (3.5, true),
    ] {
        let mut ledger = take_over(start());
        let lease = lease(&mut ledger, "a");
        for item in results(&lease) {
            let expected = expected(&ledger, &lease, item, "content");
            assert!(matches!(
                ledger.record_result(&expected, stored("content")).unwrap(),
                Recording::Recorded
            ));
        }
        let report = LeaseReport { held_out_loss: Some(loss), ..LeaseReport::default() };
        let completed = ledger.complete_lease(NOW, &lease.claim(), &report).unwrap();
        let LeaseCompletion::Accepted { best, .. } = completed else { panic!("{completed:?}") };
        assert_eq!(best, possible, "{loss}");
    }
}
