//! Tests of sends and receives.

use proptest::prelude::*;

use super::*;
use crate::SyncConfig;

fn schedule(h: u64, f: u32, tau: u64, ends: &[u64]) -> Schedule {
    Schedule::new(h, f, tau, ends.to_vec()).unwrap()
}

fn points(points: &[SchedulePoint]) -> Vec<(u64, u32)> {
    points.iter().map(|p| (p.step, p.fragment)).collect()
}

#[test]
fn one_fragment_without_overlap_is_diloco() {
    let plain = schedule(10, 1, 0, &[30]);
    assert_eq!((plain.next_stop(0), plain.next_stop(10), plain.next_stop(20)), (10, 20, 30));
    assert_eq!(points(&plain.sends(10, 20)), [(20, 0)]);
    assert_eq!(points(&plain.sends(20, 30)), [(30, 0)]);
    assert_eq!(plain.receives(20), [(0, 2)]);
    assert_eq!(plain.sent_through(0, 30), 3);
}

/// arXiv:2501.18512 §2.2 with the alternation of torchft: two fragments, each every six steps, three apart.
#[test]
fn fragments_take_turns() {
    let turns = schedule(6, 2, 1, &[18]);
    assert_eq!(points(&turns.sends(0, 18)), [(2, 0), (5, 1), (8, 0), (11, 1), (14, 0), (18, 0), (18, 1)]);
    assert_eq!((turns.receives(3), turns.receives(6)), (vec![(0, 1)], vec![(1, 1)]));
    assert_eq!((turns.next_stop(0), turns.next_stop(3), turns.next_stop(15)), (3, 6, 18));
}

#[test]
fn as_many_fragments_as_steps_overlap_each_other() {
    // Decoupled DiLoCo's P = H with τ = 2: two fragments are under way at any time.
    let double = schedule(4, 4, 2, &[8]);
    assert_eq!(points(&double.sends(0, 1)), [(1, 2)]);
    assert_eq!(points(&double.sends(1, 4)), [(2, 3), (3, 0), (4, 1)]);
    assert_eq!(double.next_stop(0), 3);
    assert_eq!(double.receives(3), [(2, 1)]);
}

#[test]
fn a_phase_begins_with_all_that_was_sent_at_the_end_of_the_one_before() {
    let phases = schedule(4, 2, 1, &[8, 16]);
    assert_eq!(points(&phases.sends(4, 8)), [(5, 0), (8, 0), (8, 1)]);
    assert_eq!(phases.receives(8), [(0, 3), (1, 2)]);
    // A send before the phase is not received again in it.
    assert_eq!(phases.next_stop(8), 10);
    assert_eq!(phases.receives(10), [(0, 4)]);
    assert_eq!((phases.phase_at(7), phases.phase_at(8)), (0, 1));
}

#[test]
fn what_can_not_be_is_refused() {
    let error = |h, f, tau, ends: &[u64]| Schedule::new(h, f, tau, ends.to_vec()).unwrap_err();
    assert_eq!(error(0, 1, 0, &[1]), ScheduleError::Empty);
    assert_eq!(error(1, 1, 0, &[]), ScheduleError::Empty);
    assert_eq!(error(2, 3, 0, &[4]), ScheduleError::Fragments { fragments: 3, inner_steps: 2 });
    assert_eq!(error(2, 1, 3, &[4]), ScheduleError::Overlap { overlap: 3, inner_steps: 2 });
    assert_eq!(error(2, 1, 0, &[4, 4]), ScheduleError::Ends);
}

#[test]
fn an_eager_path_takes_over_whenever_it_sends() {
    let delayed = schedule(4, 1, 4, &[16]);
    assert_eq!((delayed.next_stop(0), delayed.next_stop(8)), (8, 12));
    let eager = delayed.eager(true);
    assert_eq!((eager.next_stop(0), eager.next_stop(4), eager.next_stop(8)), (4, 8, 12));
    assert_eq!(points(&eager.sends(0, 4)), [(4, 0)]);
    let received = [4, 8, 12].map(|step| eager.receives(step));
    assert_eq!(received, [vec![(0, 0)], vec![(0, 1)], vec![(0, 2)]]);
}

/// With three fragments the last regular send of the second one is less than half a round before the end.
#[test]
fn a_path_that_takes_over_where_it_sends_takes_nothing_over_where_a_send_has_moved_to_the_end() {
    let delayed = schedule(6, 3, 6, &[12]);
    let eager = delayed.clone().eager(true);
    for (path, expected, first) in
        [(delayed, vec![0, 8, 12], vec![]), (eager, vec![0, 2, 4, 6, 8, 12], vec![(1, 0)])]
    {
        let mut stops = vec![0];
        while let Some(&stop) = stops.last().filter(|&&stop| stop < 12) {
            stops.push(path.next_stop(stop));
        }
        assert_eq!(stops, expected);
        assert_eq!((path.receives(4), path.receives(10)), (first, vec![]));
        assert_eq!(points(&path.sends(8, 12)), [(12, 0), (12, 1), (12, 2)]);
    }
    // With a shorter overlap a take-over brings what was sent before it, wherever the next send is.
    let shorter = schedule(6, 3, 5, &[12]);
    assert_eq!((shorter.next_stop(8), shorter.receives(10)), (10, vec![(1, 1)]));
}

#[test]
fn what_is_dropped_is_part_of_what_is_sent_next() {
    let schedule = schedule(2, 1, 0, &[200]).without(Drops::new(5, 0.5));
    let path = PathId(1);
    let kept: Vec<u64> = (1..=100).filter(|&n| !schedule.dropped(path, 0, n)).collect();
    assert!(kept.len() < 70 && kept.last() == Some(&100), "what ends the run is sent: {kept:?}");
    let steps: u64 = kept.iter().map(|number| schedule.steps_in(path, 0, 2 * number)).sum();
    assert_eq!(steps, 200);
    let taken_over = (1..100).filter(|round| !schedule.keeps_own(path, 0, 2 * round)).count();
    assert_eq!(taken_over, kept.len() - 1);
}

proptest! {
    /// No lease between two stops is shorter than the shortest, and some lease without an overlap is as short.
    #[test]
    fn no_lease_is_shorter_than_the_shortest(
        h in 1u64..12, f in 1u32..12, tau in 0u64..12, eager: bool, rounds in prop::collection::vec(1u32..4, 1..4)
    ) {
        prop_assume!(u64::from(f) <= h && tau <= h);
        let sync = SyncConfig { fragments: f, overlap_steps: tau, eager, ..SyncConfig::default() };
        let ends = rounds.iter().scan(0, |sum, rounds| { *sum += rounds; Some(*sum) });
        let schedule = sync.schedule(1, h, ends).unwrap();
        let (mut from, mut shortest) = (0, u64::MAX);
        while from < schedule.total() {
            let to = schedule.next_stop(from);
            shortest = shortest.min(to - from);
            from = to;
        }
        prop_assert!(shortest >= sync.shortest_lease(h));
        prop_assert!(tau > 0 || shortest == sync.shortest_lease(h));
        let dynamic = SyncConfig { dynamic_steps: true, ..sync };
        prop_assert_eq!(dynamic.shortest_lease(h), 1);
    }

    /// From stop to stop every send occurs once, with the number of `sent_through`, and every receive follows a
    /// send of the same path.
    #[test]
    fn stops_sends_and_receives_agree(
        h in 1u64..9, f in 1u32..9, tau in 0u64..9, lengths in prop::collection::vec(1u64..20, 1..4)
    ) {
        prop_assume!(u64::from(f) <= h && tau <= h);
        let ends: Vec<u64> = lengths.iter().scan(0, |sum, length| { *sum += length; Some(*sum) }).collect();
        let schedule = Schedule::new(h, f, tau, ends).unwrap();
        let (mut sent, mut sent_at) = (vec![0; f as usize], vec![0; f as usize]);
        let mut from = 0;
        while from < schedule.total() {
            for (fragment, number) in schedule.receives(from) {
                // What a path has not sent is lost where it takes over. A shorter overlap loses the steps of the overlap.
                prop_assert!(from - sent_at[fragment as usize] <= tau % h, "{fragment} at {from}");
                prop_assert!(number <= sent[fragment as usize], "{fragment} at {from}");
                // With τ = H a path sends a fragment again before it receives it.
                prop_assert!(number + 1 >= sent[fragment as usize], "{fragment} at {from}");
            }
            let to = schedule.next_stop(from);
            prop_assert!(to > from);
            let mut last = from;
            for point in schedule.sends(from, to) {
                prop_assert!(point.step > from && point.step <= to && point.step >= last);
                last = point.step;
                sent_at[point.fragment as usize] = point.step;
                sent[point.fragment as usize] += 1;
                prop_assert_eq!(schedule.sent_through(point.fragment, point.step), sent[point.fragment as usize]);
            }
            for fragment in 0..f {
                prop_assert_eq!(schedule.sent_through(fragment, to), sent[fragment as usize]);
            }
            from = to;
        }
    }
}
