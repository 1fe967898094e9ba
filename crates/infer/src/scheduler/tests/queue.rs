//! Who finds room in the queue.

use super::*;

#[test]
fn a_sequence_that_runs_alone_does_not_make_a_burst_look_late() {
    // A step takes 25 ms with any number of rows: 40 rows a second alone, and 2560 in full steps.
    let machine = |_| 0.025;
    let mut scheduler = Scheduler::new(limits(4, 64, 500));
    admit(&mut scheduler, arrival(0, vec![1; 8], 1000));
    for _ in 0..20 {
        let plan = scheduler.plan();
        // It waits for its path when the step ends, and three places are free.
        let id = scheduler.admit(vec![arrival(0, vec![2; 4], 1)], LONG).unwrap()[0];
        scheduler.done(&plan, 0.025);
        plan.rows.iter().for_each(|rows| scheduler.generated(rows.id, 7));
        scheduler.remove(id);
    }
    let long = |token| vec![arrival(0, vec![token; 600], 1)];
    for token in 100..108 {
        let id = scheduler.admit(long(token), Duration::from_secs(30)).unwrap()[0];
        scheduler.ready(id, &[0]);
    }
    // Full steps tell the rate: 4556 rows of prompts and 977 of the first sequence take 2.2 s.
    (0..4).for_each(|_| drop(step_on(&mut scheduler, machine)));
    let refused = scheduler.admit(long(108), Duration::from_secs(1)).unwrap_err();
    assert!(matches!(refused, EngineError::Overloaded { unit: "seconds of work", .. }), "{refused}");
    assert!(scheduler.admit(long(108), Duration::from_secs(3)).is_ok());
}

/// Admits a sequence of a client. If it is refused, returns how many wait and how many may.
fn admitted(scheduler: &mut Scheduler, client: u64) -> Result<SequenceId, (usize, usize)> {
    match scheduler.admit(vec![arrival(client, vec![1; 4], 4)], LONG) {
        Ok(ids) => Ok(ids[0]),
        Err(EngineError::Overloaded { waiting, limit, unit: SEQUENCES, .. }) => Err((waiting, limit)),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_client_that_fills_the_queue_leaves_the_others_their_shares() {
    let mut scheduler = Scheduler::new(Limits { queued_sequences: 8, ..limits(1, 16, 100) });
    let mut of = |client: u64, count: usize| -> Vec<SequenceId> {
        let ids = (0..count).map(|_| admitted(&mut scheduler, client).unwrap()).collect();
        assert_eq!(admitted(&mut scheduler, client), Err((count, count)), "client {client}");
        ids
    };
    // The free place takes one more. Alone, a client has the whole queue.
    let first = of(1, 9);
    of(2, 5);
    of(3, 4);
    // The first client is over its share now, until its sequences leave.
    for &id in &first[..6] {
        assert!(admitted(&mut scheduler, 1).is_err());
        scheduler.remove(id);
    }
    assert!(admitted(&mut scheduler, 1).is_ok());
}

#[test]
fn the_queue_refuses_the_same_sequences_before_their_prompts_are_known() {
    let mut scheduler = Scheduler::new(Limits { queued_sequences: 4, ..limits(1, 16, 100) });
    for _ in 0..5 {
        admitted(&mut scheduler, 1).unwrap();
    }
    let mut refused = |client: u64, count: usize| {
        let early = scheduler.check_queue(client, count, 0).err().map(|error| error.to_string());
        let arrivals = vec![arrival(client, vec![1; 4], 4); count];
        let error = scheduler.admit(arrivals, LONG).err().map(|error| error.to_string());
        assert_eq!(early, error, "{count} sequences of client {client}");
        early.unwrap_or_default()
    };
    assert!(refused(1, 1).contains("5 of at most 5 sequences"));
    assert!(refused(2, 4).contains("0 of at most 3 sequences"));
    assert!(refused(2, 6).contains("6 sequences, more than the limit of 5"));
    assert_eq!(refused(2, 3), "");
    assert!(refused(2, 1).contains("3 of at most 3 sequences"));
}

#[test]
fn the_work_of_one_client_does_not_make_the_requests_of_another_look_late() {
    let mut scheduler = Scheduler::new(limits(1, 8, 100));
    for i in 0..20 {
        admit(&mut scheduler, arrival(1, vec![i; 8], 1));
    }
    for _ in 0..3 {
        step(&mut scheduler);
    }
    // 17 prompts of 8 tokens and one more token each, at 80 rows a second.
    let mut is_admitted = |client, milliseconds| {
        let arrivals = vec![arrival(client, vec![99; 8], 1)];
        scheduler.admit(arrivals, Duration::from_millis(milliseconds)).is_ok()
    };
    assert!(!is_admitted(1, 1000));
    assert!(is_admitted(2, 100), "nothing of its own is before it");
    assert!(!is_admitted(2, 200), "9 rows of its own, and as many of the other");
    assert!(is_admitted(2, 300));
}
