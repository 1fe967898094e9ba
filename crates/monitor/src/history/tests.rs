use super::*;

fn history(events: impl IntoIterator<Item = Event>) -> RunHistory {
    let mut history = RunHistory::default();
    for (number, event) in events.into_iter().enumerate() {
        history.add(EventRecord { time: format!("2026-01-01T00:00:{number:02}.000Z"), event });
    }
    history
}

fn joined(worker: &str) -> Event {
    Event::WorkerJoined { worker: worker.to_owned(), numerics: String::new() }
}

fn round(round: u64, loss: f64) -> Event {
    Event::RoundCompleted { round, loss, seconds: 1.0, wire_bytes: None }
}

/// A lease of path 0 by the worker `a`.
fn lease(round: u64, steps: Option<u64>, loss: f64, heldout_loss: Option<f64>, seconds: f64) -> Event {
    Event::PathCompleted {
        path: PathId(0),
        round,
        worker: "a".to_owned(),
        steps,
        loss,
        heldout_loss,
        best: false,
        seconds,
        waited_seconds: seconds / 2.0,
    }
}

#[test]
fn the_lease_that_measures_the_end_of_the_run_is_no_round_and_keeps_the_losses_before_it() {
    // Files of earlier versions do not tell the steps.
    for (trained, measured) in [(Some(5), Some(0)), (None, None)] {
        let first = lease(0, trained, 5.0, Some(6.0), 2.0);
        // The second lease of the round takes weights of its own over, so it measures nothing.
        let second = lease(0, trained, 4.0, None, 4.0);
        let last = lease(1, measured, f64::NAN, None, 6e-8);
        let history = history([first, second, last]);
        let (path, worker) = (&history.paths[&PathId(0)], &history.workers["a"]);
        assert_eq!((path.rounds, path.loss, path.heldout_loss), (1, Some(4.0), Some(6.0)));
        assert_eq!((worker.leases, worker.steps), (3, trained));
        assert_eq!((worker.seconds, worker.waited_seconds), (4.0, 2.0));
    }
}

#[test]
fn connected_workers_with_another_fingerprint_are_counted() {
    let of = |worker: &str, numerics: &str| Event::WorkerJoined {
        worker: worker.to_owned(),
        numerics: numerics.to_owned(),
    };
    let left = Event::WorkerLeft { worker: "c".to_owned(), reason: String::new() };
    let history = history([of("a", "x"), of("b", "y"), of("c", "y"), of("d", "y"), left]);
    assert_eq!([history.with_other_numerics("x"), history.with_other_numerics("y")], [2, 1]);
}

#[test]
fn workers_have_a_last_word_and_a_reason() {
    let left = Event::WorkerLeft { worker: "a".to_owned(), reason: "its machine is gone".to_owned() };
    let refused = Event::ResultRefused {
        path: PathId(1),
        round: 0,
        worker: "a".to_owned(),
        reason: "too late".to_owned(),
    };
    let history = history([joined("a"), joined("b"), left, refused]);
    let (a, b) = (&history.workers["a"], &history.workers["b"]);
    assert_eq!((a.connected, a.reason.as_str(), a.refused), (false, "its machine is gone", 1));
    assert_eq!((b.connected, b.last.as_str()), (true, "2026-01-01T00:00:01.000Z"));
    assert_eq!(history.results_refused, 1);
    assert!(history.notes[0].contains("a result of a was refused: too late"), "{:?}", history.notes);
}

#[test]
fn a_worker_whose_lease_expires_is_silent_until_its_next_event() {
    let expired = Event::LeaseExpired { path: PathId(0), round: 0, worker: "a".to_owned(), fence: 1 };
    let left = Event::WorkerLeft { worker: "a".to_owned(), reason: "its machine is gone".to_owned() };
    let mut events = vec![joined("a"), joined("b"), expired];
    let state = |events: &[Event]| history(events.to_vec()).workers["a"].state();
    assert_eq!(state(&events), "silent: its lease has expired");
    assert_eq!(history(events.clone()).workers["b"].state(), "connected");
    events.push(left);
    assert_eq!(state(&events), "left: its machine is gone");
    events.push(joined("a"));
    assert_eq!(state(&events), "connected");
}

#[test]
fn a_result_of_a_worker_that_has_left_does_not_bring_it_back() {
    let left = Event::WorkerLeft { worker: "a".to_owned(), reason: "its machine is gone".to_owned() };
    let history = history([joined("a"), left, lease(0, Some(5), 5.0, None, 1.0)]);
    let worker = &history.workers["a"];
    assert_eq!((worker.state(), worker.leases), ("left: its machine is gone".to_owned(), 1));
}

#[test]
fn the_workers_of_a_killed_coordinator_have_left_until_they_join_the_next_one() {
    let left = Event::WorkerLeft { worker: "c".to_owned(), reason: "its machine is gone".to_owned() };
    let expired = Event::LeaseExpired { path: PathId(0), round: 0, worker: "b".to_owned(), fence: 1 };
    let started = Event::CoordinatorStarted { rounds: 1 };
    let history = history([joined("a"), joined("b"), joined("c"), left, expired, started, joined("a")]);
    let state = |worker: &str| history.workers[worker].state();
    assert_eq!([state("a"), state("b")], ["connected", "left: the coordinator has started again"]);
    assert_eq!(state("c"), "left: its machine is gone");
    assert_eq!(history.workers["b"].last, "2026-01-01T00:00:04.000Z", "its own last event");
    assert_eq!(history.with_other_numerics("another"), 1);
}

#[test]
fn a_repeated_round_and_a_rollback_shorten_the_curve() {
    let curve = |history: &RunHistory| {
        history.training.iter().map(|point| (point.rounds, point.loss)).collect::<Vec<_>>()
    };
    let mut events = vec![round(0, 5.0), round(1, 4.0), round(2, 3.0), round(1, 3.5)];
    assert_eq!(curve(&history(events.clone())), [(1, 5.0), (2, 3.5)]);
    events.push(Event::RolledBack { from: 2, to: 1, undone: vec![2] });
    assert_eq!(curve(&history(events.clone())), [(1, 5.0)]);
    events.push(round(1, f64::NAN));
    assert_eq!(curve(&history(events)), [(1, 5.0)]);
}

#[test]
fn a_rollback_leaves_paths_no_loss_of_an_undone_round() {
    let state = |events: &[Event]| {
        let path = history(events.to_vec()).paths[&PathId(0)].clone();
        (path.rounds, path.loss, path.heldout_loss)
    };
    let back = |to| Event::RolledBack { from: 2, to, undone: vec![2] };
    // The last lease measures the end of the run.
    let finished = [
        lease(0, Some(5), 5.0, Some(6.0), 1.0),
        lease(1, Some(5), 4.0, None, 1.0),
        lease(2, Some(0), f64::NAN, Some(3.0), 1.0),
    ];
    let mut events = finished.to_vec();
    events.push(back(1));
    assert_eq!(state(&events), (1, None, None));
    events.push(lease(1, Some(5), 4.5, None, 1.0));
    assert_eq!(state(&events), (2, Some(4.5), None));
    assert_eq!(state(&[finished[0].clone(), back(1)]), (1, Some(5.0), Some(6.0)));
}

#[test]
fn names_and_points_without_end_take_bounded_memory() {
    let many = history((0..5000).map(|number| joined(&number.to_string())));
    assert_eq!(many.workers.len(), MOST_WORKERS);
    let long = history((0..5000).map(|number| round(number, 1.0)));
    assert!(long.training.len() <= MOST_POINTS);
    assert_eq!(long.training.last().unwrap().rounds, 5000);
}
