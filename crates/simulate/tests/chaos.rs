//! The coordinator's decisions under faults: a thousand seeds, and planted bugs.
#![allow(clippy::unwrap_used)]

use dipaco_simulate::{Bug, Peers, Violation, chaos};

/// The first violation among the seeds.
fn first_violation(seeds: std::ops::Range<u64>, peers: Peers, bug: Option<Bug>) -> Option<Violation> {
    seeds.into_iter().find_map(|seed| chaos(seed, peers, bug).err())
}

#[test]
fn nothing_is_violated_among_honest_peers() {
    if let Some(violation) = first_violation(0..500, Peers::Honest, None) {
        panic!("{violation}");
    }
}

#[test]
fn nothing_is_violated_among_peers_that_lie() {
    if let Some(violation) = first_violation(0..500, Peers::SomeLie, None) {
        panic!("{violation}");
    }
}

#[test]
fn a_seed_repeats_the_run() {
    for seed in 0..20 {
        assert_eq!(chaos(seed, Peers::Mixed, None).unwrap(), chaos(seed, Peers::Mixed, None).unwrap());
    }
}

#[test]
fn planted_bugs_are_found() {
    for (bug, says) in [
        (Bug::DoubleCount, "counts twice"),
        (Bug::StaleBase, "was made from version"),
        (Bug::LostMomentum, "in the undisturbed run"),
        (Bug::OverwrittenObject, "damaged"),
        (Bug::RecordedFirst, "is not in the store"),
        (Bug::EarlyDelete, "is not in the store"),
        (Bug::IgnoredPin, "a reader has pinned"),
        (Bug::OldFence, "counts under the lost fence"),
    ] {
        let found = first_violation(0..200, Peers::Honest, Some(bug));
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        assert!(found.what.contains(says), "{bug:?}: {found}");
    }
}

#[test]
fn bugs_that_only_liars_use_are_found() {
    for (bug, says) in [(Bug::ForeignLease, ""), (Bug::UncheckedState, "and its lease begins at")] {
        let found = first_violation(0..200, Peers::SomeLie, Some(bug));
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        assert!(found.what.contains(says), "{bug:?}: {found}");
        assert!(first_violation(0..200, Peers::Honest, Some(bug)).is_none(), "{bug:?} needs no liar");
    }
}
