//! The sum of a run's events.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use dipaco_telemetry::{Event, EventRecord};
use dipaco_topology::PathId;
use serde::Serialize;

use crate::path_rounds::has_trained;
use crate::{CostMeter, EventTail, TrainingCost};

/// Most workers that are remembered. Peers choose their names, so the number needs a bound.
const MOST_WORKERS: usize = 2048;
/// Most points of a loss curve. A longer curve drops every second point.
const MOST_POINTS: usize = 2048;
/// Last notes that are remembered.
const NOTES: usize = 20;

/// A point of a loss curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossPoint {
    /// Rounds that were complete.
    pub rounds: u64,
    /// Mean cross entropy, nats per token.
    pub loss: f64,
    /// The same in bits per byte of text, of a validation whose text has a known number of bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_byte: Option<f64>,
}

/// The history of a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PathHistory {
    /// Round of its last lease that trained, counted from 1.
    pub rounds: u64,
    /// Mean training loss of its last lease that trained, nats per token.
    pub loss: Option<f64>,
    /// Loss on its held-out documents before its last lease that measured it, nats per token.
    pub heldout_loss: Option<f64>,
    /// Name of the worker of its last lease.
    pub worker: String,
}

/// The history of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkerHistory {
    /// Time of its last event, in UTC (RFC 3339).
    pub last: String,
    /// True between its joining and its leaving.
    pub connected: bool,
    /// True from the end of a lease, for want of a word about it, until its next event.
    pub silent: bool,
    /// Fingerprint of the arithmetic of its device.
    pub numerics: String,
    /// Reason for which it left.
    pub reason: String,
    /// Complete leases.
    pub leases: u64,
    /// Inner steps of its last lease that trained; `None` when the events do not tell.
    pub steps: Option<u64>,
    /// Seconds of these inner steps.
    pub seconds: f64,
    /// Seconds before these without inner steps.
    pub waited_seconds: f64,
    /// Leases that it lost.
    pub lost: u64,
    /// Results of it that were refused.
    pub refused: u64,
}

impl WorkerHistory {
    /// Whether the worker is here, for people.
    #[must_use]
    pub fn state(&self) -> String {
        match (self.connected, self.silent) {
            (true, false) => "connected".to_owned(),
            (true, true) => "silent: its lease has expired".to_owned(),
            (false, _) => format!("left: {}", self.reason),
        }
    }

    fn leave(&mut self, reason: String) {
        (self.connected, self.silent, self.reason) = (false, false, reason);
    }

    /// The worker leaves if it was connected to an earlier coordinator.
    pub(crate) fn leave_earlier_coordinator(&mut self) {
        if self.connected {
            self.leave("the coordinator has started again".to_owned());
        }
    }
}

/// The sum of a run's events.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunHistory {
    /// Time of the last event, in UTC (RFC 3339).
    pub last: String,
    /// Mean training loss of the paths by round.
    pub training: Vec<LossPoint>,
    /// Loss of the routed model on validation text.
    pub validation: Vec<LossPoint>,
    /// The paths that have completed a lease.
    pub paths: BTreeMap<PathId, PathHistory>,
    /// The workers by name.
    pub workers: BTreeMap<String, WorkerHistory>,
    /// Leases that expired.
    pub leases_lost: u64,
    /// Results that were refused.
    pub results_refused: u64,
    /// The last notable events, the oldest first.
    pub notes: VecDeque<String>,
    /// Cost of the training so far; `None` when the events do not tell.
    pub cost: Option<TrainingCost>,
    #[serde(skip)]
    meter: CostMeter,
}

impl RunHistory {
    /// Adds the events that have come since the last call. A file that begins anew is another history.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn follow(&mut self, tail: &mut EventTail) -> io::Result<()> {
        tail.read(|record| match record {
            Some(record) => self.add(record),
            None => *self = Self::default(),
        })
    }

    /// Number of connected workers whose devices have another fingerprint than this one.
    #[must_use]
    pub fn with_other_numerics(&self, fingerprint: &str) -> usize {
        self.workers.values().filter(|worker| worker.connected && worker.numerics != fingerprint).count()
    }

    /// Adds an event.
    pub fn add(&mut self, record: EventRecord) {
        self.cost = self.meter.add(&record);
        let EventRecord { time, event } = record;
        match event {
            // A coordinator that was killed did not say that its workers left.
            Event::CoordinatorStarted { .. } => {
                self.workers.values_mut().for_each(WorkerHistory::leave_earlier_coordinator);
            }
            Event::WorkerJoined { worker, numerics } => {
                let worker = self.worker(worker, &time);
                worker.numerics = numerics;
                (worker.connected, worker.silent, worker.reason) = (true, false, String::new());
            }
            Event::WorkerLeft { worker, reason } => {
                self.worker(worker, &time).leave(reason);
            }
            Event::PathCompleted {
                path,
                round,
                worker,
                steps,
                loss,
                heldout_loss,
                seconds,
                waited_seconds,
                ..
            } => {
                let trained = has_trained(steps, loss);
                let done = self.worker(worker.clone(), &time);
                done.leases += 1;
                if trained {
                    (done.steps, done.seconds, done.waited_seconds) = (steps, seconds, waited_seconds);
                }
                (done.connected, done.silent) = (true, false);
                let known = self.paths.entry(path).or_default();
                // A lease that only measures is no round, and most leases of fragments measure nothing.
                known.rounds = round.saturating_add(u64::from(trained));
                known.loss = loss.is_finite().then_some(loss).or(known.loss);
                known.heldout_loss = heldout_loss.or(known.heldout_loss);
                known.worker = worker;
            }
            Event::RoundCompleted { round, loss, .. } => {
                push(&mut self.training, LossPoint { rounds: round + 1, loss, bits_per_byte: None });
            }
            Event::Validated { rounds, loss, bits_per_byte, .. } => {
                push(&mut self.validation, LossPoint { rounds, loss, bits_per_byte });
            }
            Event::LeaseExpired { path, worker, .. } => {
                self.leases_lost += 1;
                let lost = self.worker(worker.clone(), &time);
                (lost.lost, lost.silent) = (lost.lost + 1, true);
                self.note(&time, format!("path {path}: the lease of {worker} expired"));
            }
            Event::ResultRefused { path, worker, reason, .. } => {
                self.results_refused += 1;
                self.worker(worker.clone(), &time).refused += 1;
                self.note(&time, format!("path {path}: a result of {worker} was refused: {reason}"));
            }
            Event::PathQuarantined { path, reason, .. } => {
                self.note(&time, format!("path {path} is in quarantine: {reason}"));
            }
            Event::PhaseStarted { phase, round, .. } => {
                self.note(&time, format!("phase {phase} of routing begins with round {round}"));
            }
            Event::RolledBack { from, to, .. } => {
                let kept = |point: &LossPoint| point.rounds <= u64::from(to);
                self.training.retain(kept);
                self.validation.retain(kept);
                self.note(&time, format!("rolled back from round {from} to round {to}"));
            }
            _ => {}
        }
        self.last = time;
    }

    fn worker(&mut self, name: String, time: &str) -> &mut WorkerHistory {
        if !self.workers.contains_key(&name) && self.workers.len() >= MOST_WORKERS {
            // The one that was silent for the longest time. Times of this form sort as text.
            let rank = |worker: &WorkerHistory| (worker.connected, worker.last.clone());
            if let Some(oldest) =
                self.workers.iter().min_by_key(|(_, worker)| rank(worker)).map(|(name, _)| name.clone())
            {
                self.workers.remove(&oldest);
            }
        }
        let worker = self.workers.entry(name).or_default();
        time.clone_into(&mut worker.last);
        worker
    }

    fn note(&mut self, time: &str, text: String) {
        if self.notes.len() == NOTES {
            self.notes.pop_front();
        }
        self.notes.push_back(format!("{time} {text}"));
    }
}

/// Adds a point. A round that was repeated replaces its first point and all later ones.
fn push(curve: &mut Vec<LossPoint>, point: LossPoint) {
    if !point.loss.is_finite() {
        return;
    }
    curve.retain(|known| known.rounds < point.rounds);
    if curve.len() == MOST_POINTS {
        let mut number = 0_usize;
        curve.retain(|_| {
            number += 1;
            number.is_multiple_of(2)
        });
    }
    curve.push(point);
}

#[cfg(test)]
mod tests {
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
    fn names_and_points_without_end_take_bounded_memory() {
        let many = history((0..5000).map(|number| joined(&number.to_string())));
        assert_eq!(many.workers.len(), MOST_WORKERS);
        let long = history((0..5000).map(|number| round(number, 1.0)));
        assert!(long.training.len() <= MOST_POINTS);
        assert_eq!(long.training.last().unwrap().rounds, 5000);
    }
}
