//! The core under faults: a thousand seeds, and planted bugs.
#![allow(clippy::unwrap_used)]

use dipaco_simulate::{Bug, Violation, chaos};

/// The first violation among the seeds.
fn first_violation(seeds: std::ops::Range<u64>, bug: Option<Bug>) -> Option<Violation> {
    seeds.into_iter().find_map(|seed| chaos(seed, bug).err())
}

#[test]
fn nothing_is_violated() {
    if let Some(violation) = first_violation(0..1_000, None) {
        panic!("{violation}");
    }
}

#[test]
fn a_seed_repeats_the_run() {
    for seed in 0..20 {
        assert_eq!(chaos(seed, None).unwrap(), chaos(seed, None).unwrap());
    }
}

#[test]
fn planted_bugs_are_found() {
    for (bug, says) in [
        (Bug::DoubleCount, "counts twice"),
        (Bug::StaleBase, "was made from version"),
        (Bug::LostMomentum, "in the undisturbed run"),
        (Bug::OverwrittenObject, "damaged"),
    ] {
        let found = first_violation(0..200, Some(bug)).unwrap_or_else(|| panic!("{bug:?} is not found"));
        assert!(found.what.contains(says), "{bug:?}: {found}");
    }
}

#[test]
fn a_coordinator_that_trusts_every_peer_is_found() {
    let found = first_violation(0..200, Some(Bug::ForeignLease)).expect("foreign leases are not found");
    assert!(!found.case.contains(" 0 liars"), "{found}");
}
