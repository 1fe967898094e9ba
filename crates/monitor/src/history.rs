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

/// The history of a path. The losses of undone rounds are forgotten.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PathHistory {
    /// Round of its last lease that trained, counted from 1. After a rollback at most the round that the run went back to.
    pub rounds: u64,
    /// Mean training loss of its last lease that trained, nats per token.
    pub loss: Option<f64>,
    /// Loss on its held-out documents before its last lease that measured it, nats per token.
    pub heldout_loss: Option<f64>,
    /// Name of the worker of its last lease.
    pub worker: String,
}

impl PathHistory {
    /// The run goes back to the end of this round.
    fn go_back(&mut self, round: u64) {
        if self.rounds > round {
            (self.rounds, self.loss, self.heldout_loss) = (round, None, None);
        }
    }
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
                done.silent = false;
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
                self.paths.values_mut().for_each(|path| path.go_back(to.into()));
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
mod tests;
