//! The first device that contributes, or the configuration, decides which devices train together.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_ledger::{
    ContributorRecord, LeaseCompletion, LeaseReport, LeaseResult, Ledger, Recording, ResultError,
    StoredResult,
};
use dipaco_sync::{Grant, Lease, Numerics, ProcessId};
use support::{FRAGMENT, NOW, ask_with, object, start, take_over, take_over_from, written};

/// The lease of a worker with a token of its own name, on a device of this fingerprint.
fn lease(ledger: &mut Ledger, worker: &str, numerics: &str) -> Lease {
    let worker = ProcessId { token: worker.into(), ..ProcessId::local(worker) };
    let Grant::Lease(lease) = ask_with(ledger, &worker, numerics) else { panic!("no lease") };
    *lease
}

/// The outer gradient of a lease, and its object.
fn result(lease: &Lease) -> (LeaseResult, StoredResult) {
    let item = LeaseResult::OuterGradient { fragment: FRAGMENT, number: lease.sends[0].number, tokens: 1 };
    (item, StoredResult { object: object(&format!("{}-{}", lease.path, lease.from)), norm: 1.0 })
}

fn upload(ledger: &mut Ledger, lease: &Lease) -> Recording {
    let (item, stored) = result(lease);
    ledger.check_and_record(&lease.claim(), item, lease.sends[0].step, stored).unwrap()
}

fn complete(ledger: &mut Ledger, lease: &Lease) -> LeaseCompletion {
    ledger.complete_lease(NOW, &lease.claim(), &LeaseReport::default()).unwrap()
}

#[test]
fn the_device_that_contributes_first_decides_and_not_the_one_that_asks_first() {
    let mut ledger = take_over(start());
    let [early, uploaded, first] =
        [("a", "x"), ("b", "x"), ("c", "y")].map(|(w, n)| lease(&mut ledger, w, n));
    assert!(matches!(upload(&mut ledger, &uploaded), Recording::Recorded), "an upload alone decides nothing");
    let (item, stored) = result(&early);
    let admitted = ledger.expects(&early.claim(), item, &stored.object.hash).unwrap();
    assert!(matches!(upload(&mut ledger, &first), Recording::Recorded));
    assert_eq!(ledger.numerics(), None);
    assert!(matches!(complete(&mut ledger, &first), LeaseCompletion::Accepted { .. }));
    assert_eq!(ledger.numerics(), Some("y"));
    // Leases of other devices are out, and do not count any more.
    let refused = upload(&mut ledger, &early);
    assert!(matches!(refused, Recording::Rejected(ResultError::OtherNumerics(_))), "{refused:?}");
    let refused = ledger.record_result(&admitted, stored).unwrap();
    assert!(matches!(refused, Recording::Rejected(ResultError::OtherNumerics(_))), "{refused:?}");
    let refused = complete(&mut ledger, &uploaded);
    assert!(matches!(refused, LeaseCompletion::OtherNumerics(_)), "{refused:?}");
    let reason = ledger.check_numerics("x").unwrap_err().to_string();
    assert!(reason.contains("(x)") && reason.contains("(y)") && reason.contains("token \"c\""), "{reason}");
    assert!(ledger.check_numerics("y").is_ok());
    // It holds after a restart.
    let manifest = written(&mut ledger);
    assert!(take_over(manifest).check_numerics("x").is_err());
}

#[test]
fn a_fingerprint_of_the_configuration_holds_from_the_start() {
    let only = Numerics::Only("y".into());
    let ledger = take_over_from(start(), |plan| plan.numerics = only);
    assert!(ledger.check_numerics("x").is_err() && ledger.check_numerics("y").is_ok());
}

#[test]
fn contributions_of_all_devices_name_their_device() {
    let mut ledger = take_over_from(start(), |plan| plan.numerics = Numerics::Any);
    let leases = [("a", "x"), ("b", "y")].map(|(worker, numerics)| lease(&mut ledger, worker, numerics));
    for lease in &leases {
        assert!(matches!(upload(&mut ledger, lease), Recording::Recorded));
        assert!(matches!(complete(&mut ledger, lease), LeaseCompletion::Accepted { .. }));
    }
    let training = written(&mut ledger).training.unwrap();
    assert_eq!(training.numerics.as_deref(), Some("x"));
    for (lease, (token, numerics)) in leases.iter().zip([("a", "x"), ("b", "y")]) {
        let record: &ContributorRecord = &training.paths[lease.path.index()].contributors[token];
        assert_eq!(record.numerics, [numerics.to_owned()].into());
    }
}

#[test]
fn the_revocation_of_the_token_that_set_the_fingerprint_lets_another_set_it() {
    let mut ledger = take_over(start());
    let forged = lease(&mut ledger, "forger", "forged");
    assert!(matches!(upload(&mut ledger, &forged), Recording::Recorded));
    assert!(matches!(complete(&mut ledger, &forged), LeaseCompletion::Accepted { .. }));
    let manifest = written(&mut ledger);
    assert_eq!(manifest.training.as_ref().unwrap().numerics_token.as_deref(), Some("forger"));
    // After a restart of the coordinator too.
    let mut ledger = take_over(manifest);
    let revoked = |name: &str| [name.to_owned()].into();
    assert_eq!(ledger.forget_numerics(&revoked("other")), None);
    assert!(ledger.check_numerics("honest").is_err());
    assert_eq!(ledger.forget_numerics(&revoked("forger")).as_deref(), Some("forger"));
    assert_eq!(ledger.numerics(), None);
    assert_eq!(ledger.forget_numerics(&revoked("forger")), None, "it is forgotten once");
    let honest = lease(&mut ledger, "honest", "honest");
    assert!(matches!(upload(&mut ledger, &honest), Recording::Recorded));
    assert!(matches!(complete(&mut ledger, &honest), LeaseCompletion::Accepted { .. }));
    assert_eq!(ledger.numerics(), Some("honest"));
    assert!(ledger.check_numerics("forged").is_err());
    let training = written(&mut ledger).training.unwrap();
    assert_eq!(training.numerics_token.as_deref(), Some("honest"));
}

#[test]
fn a_fingerprint_of_an_earlier_version_has_no_token_and_holds() {
    let mut manifest = start();
    manifest.training.as_mut().unwrap().numerics = Some("y".into());
    let mut ledger = take_over(manifest);
    assert_eq!(ledger.forget_numerics(&["a".to_owned()].into()), None);
    let reason = ledger.check_numerics("x").unwrap_err().to_string();
    assert!(!reason.contains("token"), "{reason}");
}
