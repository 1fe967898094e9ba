//! Tests of outer gradients that count before the end of their lease.

use super::*;

#[test]
fn what_is_sent_early_counts_before_its_lease_is_complete() {
    let mut rounds = streaming();
    let leases: Vec<_> =
        (0..4).map(|_| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])))).collect();
    for l in &leases {
        assert_eq!((l.from, l.to), (0, 5));
        let sends: Vec<_> = l.sends.iter().map(|s| (s.fragment.index, s.step, s.number)).collect();
        assert_eq!(sends, [(0, 3, 1), (0, 3, 1)]);
    }
    let owed = commit(&mut rounds, &leases[0]);
    assert!(matches!(owed, Commit::Refused(LeaseError::Owes { number: 1, .. })));
    for l in &leases {
        for send in &l.sends {
            let accepted = Contribution { path: l.path, number: 1, base: 0, steps: 3, tokens: 7 };
            let contributed = rounds.contribute_claimed(&l.claim(), send.fragment, 1, 7);
            let counted = EarlyContribution { contribution: accepted, to: l.to };
            assert_eq!(contributed, Commit::Accepted(Some(counted)));
            assert_eq!(rounds.contribute_claimed(&l.claim(), send.fragment, 1, 7), Commit::Duplicate);
        }
        let other = rounds.contribute_claimed(&l.claim(), l.sends[0].fragment, 2, 7);
        assert!(matches!(other, Commit::Refused(LeaseError::NotAsked { .. })));
    }
    let due = step_all(&mut rounds, at(0));
    assert_eq!(due.len(), 4, "the first fragment of every module");
    let contribution = due[0].contributions[0];
    assert_eq!((contribution.base, contribution.steps, contribution.tokens), (0, 3, 7));
    assert_eq!(
        commit(&mut rounds, &leases[0]),
        Commit::Accepted(BTreeMap::new()),
        "nothing is due at its end"
    );
    let next = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
    assert_eq!((next.from, next.to), (5, 10));
    assert!(
        next.receives.iter().all(|r| (r.fragment.index, r.version) == (0, 1)) && next.receives.len() == 2
    );
}

#[test]
fn the_successor_of_a_lost_lease_brings_what_counts_already_once_more() {
    let mut rounds = streaming();
    let lost = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
    assert!(matches!(
        rounds.contribute_claimed(&lost.claim(), lost.sends[0].fragment, 1, 0),
        Commit::Accepted(_)
    ));
    rounds.expire(at(100));
    let heir = lease(rounds.grant(at(100), &request(&ProcessId::local("v"), &[])));
    assert_eq!((heir.path, &heir.sends), (lost.path, &lost.sends));
    assert_eq!(rounds.contribute_claimed(&heir.claim(), heir.sends[0].fragment, 1, 0), Commit::Duplicate);
    assert!(matches!(
        rounds.contribute_claimed(&heir.claim(), heir.sends[1].fragment, 1, 0),
        Commit::Accepted(_)
    ));
    assert!(matches!(commit(&mut rounds, &heir), Commit::Accepted(_)));
}

#[test]
fn versions_are_kept_while_a_path_trains_on_them() {
    let mut rounds = streaming();
    let leases: Vec<_> =
        (0..4).map(|_| lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])))).collect();
    for l in &leases {
        for s in &l.sends {
            assert!(matches!(
                rounds.contribute_claimed(&l.claim(), s.fragment, s.number, 0),
                Commit::Accepted(_)
            ));
        }
    }
    step_all(&mut rounds, at(0));
    // The leases train from version 0 of both fragments; for fragment 1 it is the newest version.
    assert_eq!(rounds.needed_versions(fragment(0, 0, 0)), BTreeSet::from([0]));
    assert_eq!(rounds.needed_versions(fragment(0, 0, 1)), BTreeSet::new());
    for l in &leases {
        assert!(matches!(commit(&mut rounds, l), Commit::Accepted(_)));
    }
    assert_eq!(rounds.needed_versions(fragment(0, 0, 0)), BTreeSet::new());
}

#[test]
fn an_outer_gradient_has_at_most_the_tokens_of_its_steps() {
    let limits = LeaseLimits { step_tokens: 64, ..LeaseLimits::of_silence(LEASE) };
    let schedule = Schedule::new(STEPS, 2, 2, vec![20]).unwrap();
    let mut rounds = begin(RunPlan { schedule, limits, ..plan(&[20]) });
    let granted = lease(rounds.grant(at(0), &request(&ProcessId::local("w"), &[])));
    let (claim, send) = (granted.claim(), granted.sends[0]);
    assert_eq!(send.step, 3);
    for tokens in [3 * 64 + 1, u64::MAX] {
        let refused = rounds.contribute_claimed(&claim, send.fragment, send.number, tokens);
        assert!(matches!(refused, Commit::Refused(LeaseError::Tokens { most: 192, .. })), "{refused:?}");
    }
    assert!(matches!(
        rounds.contribute_claimed(&claim, send.fragment, send.number, 192),
        Commit::Accepted(Some(_))
    ));
}
