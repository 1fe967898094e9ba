//! Progress of a training run for its user: a bar over all inner steps, and the event file.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipaco_sync::Fence;
use dipaco_telemetry::{Event, Events, Progress, ProgressUnit, Task};
use dipaco_topology::PathId;
use tokio::time::Instant;

use crate::TrainError;
use crate::coordinator::round_tally::RoundTally;

/// Progress of all paths together, in inner steps.
pub(crate) struct RunProgress {
    events: Events,
    task: Task,
    counters: Mutex<ProgressCounters>,
    peer_events: Mutex<EventBudget>,
}

/// Events that peers cause before one of them must wait for the next second.
const PEER_EVENTS: f64 = 10_000.0;

/// Bounds the events that peers can cause: a peer may connect, leave and bring refused results as often as it likes.
#[derive(Debug)]
struct EventBudget {
    /// Events that may be written now.
    left: f64,
    /// Time of the last event.
    at: Instant,
    /// Events that were not written.
    suppressed: u64,
}

impl EventBudget {
    fn new(now: Instant) -> Self {
        Self { left: PEER_EVENTS, at: now, suppressed: 0 }
    }

    /// Takes an event, one more for each second that has passed.
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed).min(PEER_EVENTS);
        self.at = now;
        let allowed = self.left >= 1.0;
        if allowed {
            self.left -= 1.0;
        } else {
            self.suppressed += 1;
        }
        allowed
    }
}

#[derive(Debug)]
struct ProgressCounters {
    /// Inner steps of completed leases.
    committed: u64,
    /// Inner steps done in leases that are out.
    running: BTreeMap<PathId, (Fence, u64)>,
    /// The last training loss of each path.
    losses: BTreeMap<PathId, f32>,
    tally: RoundTally,
    time: WorkerTime,
    /// Bytes that workers have read straight from the store.
    linked: u64,
    /// Time from which on the display shows the counters again.
    show_at: Instant,
}

/// Time between two displays of the counters: a display goes through all paths.
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// Time of workers in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WorkerTime {
    /// Time in inner steps.
    pub(crate) inner: f64,
    /// Time between inner steps: transfers, and waiting for other workers and for leases.
    pub(crate) waited: f64,
}

impl RunProgress {
    /// Continues with paths that have taken `steps` inner steps of `total` inner steps of all paths together; a round
    /// has `inner_steps` of each path.
    pub(crate) fn new(
        progress: &Progress,
        events: Events,
        steps: &[u64],
        inner_steps: u64,
        total: u64,
    ) -> Self {
        let committed = steps.iter().sum();
        let task = progress.task("train", Some(total), ProgressUnit::Count("steps"));
        task.resume_at(committed);
        let tally = RoundTally::new(inner_steps, steps, Instant::now());
        let counters = ProgressCounters {
            committed,
            running: BTreeMap::new(),
            losses: BTreeMap::new(),
            tally,
            time: WorkerTime::default(),
            linked: 0,
            show_at: Instant::now(),
        };
        let peer_events = Mutex::new(EventBudget::new(Instant::now()));
        Self { events, task, counters: Mutex::new(counters), peer_events }
    }

    /// Writes an event that a peer can cause at will, unless peers have caused too many.
    pub(crate) fn event_of_peer(&self, event: Event) -> Result<(), TrainError> {
        let mut budget = self.peer_events.lock().unwrap_or_else(PoisonError::into_inner);
        if budget.take(Instant::now()) {
            drop(budget);
            return self.event(event);
        }
        if budget.suppressed == 1 {
            tracing::warn!("peers cause very many events; the event file does not get all of them");
        }
        Ok(())
    }

    /// Writes an event to the event file.
    pub(crate) fn event(&self, event: Event) -> Result<(), TrainError> {
        Ok(self.events.write(event)?)
    }

    /// Notes that a path at this step was leased.
    pub(crate) fn leased(&self, step: u64) -> Result<(), TrainError> {
        let event = self.counters().tally.leased(step, Instant::now());
        event.map_or(Ok(()), |event| self.event(event))
    }

    fn counters(&self) -> MutexGuard<'_, ProgressCounters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut ProgressCounters)) {
        let mut counters = self.counters();
        change(&mut counters);
        let now = Instant::now();
        if now >= counters.show_at {
            counters.show_at = now + SHOW_EVERY;
            self.show(&counters);
        }
    }

    /// Shows the counters.
    fn show(&self, counters: &ProgressCounters) {
        let running: u64 = counters.running.values().map(|&(_, steps)| steps).sum();
        if !counters.losses.is_empty() {
            let sum: f64 = counters.losses.values().copied().map(f64::from).sum();
            let mean = sum / counters.losses.len() as f64;
            self.task.note(format!("loss {mean:.3}"));
        }
        self.task.set(counters.committed + running);
    }

    /// Notes the inner steps that a worker has done in its lease, and its loss.
    pub(crate) fn running(&self, path: PathId, fence: Fence, steps: u64, loss: Option<f32>) {
        self.update(|counters| {
            counters.running.insert(path, (fence, steps));
            counters.losses.extend(loss.map(|loss| (path, loss)));
        });
    }

    /// Notes that a lease was lost. Its inner steps are done again.
    pub(crate) fn lost(&self, path: PathId, fence: Fence) {
        self.update(|counters| {
            if counters.running.get(&path).is_some_and(|&(held, _)| held == fence) {
                counters.running.remove(&path);
            }
        });
    }

    /// Notes that a path has completed its inner steps `from` to `to`.
    pub(crate) fn committed(&self, path: PathId, from: u64, to: u64, loss: f64) -> Result<(), TrainError> {
        let mut event = None;
        self.update(|counters| {
            counters.running.remove(&path);
            event = counters.tally.committed(path, to, loss, Instant::now());
            counters.committed += to - from;
        });
        event.map_or(Ok(()), |event| self.event(event))
    }

    /// Adds the time of a worker for a lease.
    pub(crate) fn add_time(&self, inner: f64, waited: f64) {
        let mut counters = self.counters();
        counters.time.inner += inner;
        counters.time.waited += waited;
    }

    /// Adds bytes that a worker has read straight from the store.
    pub(crate) fn add_linked(&self, bytes: u64) {
        let mut counters = self.counters();
        // A peer may report any number.
        counters.linked = counters.linked.saturating_add(bytes);
    }

    /// Bytes that workers have read straight from the store under this coordinator, as they report it.
    pub(crate) fn linked(&self) -> u64 {
        self.counters().linked
    }

    /// Time of all workers under this coordinator.
    pub(crate) fn worker_time(&self) -> WorkerTime {
        self.counters().time
    }

    /// Ends the bar.
    pub(crate) fn finish(&self) {
        self.show(&self.counters());
        self.task.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_events_is_an_event_a_second() {
        let begin = Instant::now();
        let mut budget = EventBudget::new(begin);
        let written = |budget: &mut EventBudget, from: u64, to: u64| {
            (from..to).filter(|&i| budget.take(begin + Duration::from_millis(i))).count()
        };
        let burst = written(&mut budget, 0, 20_000);
        assert!((10_000..=10_020).contains(&burst), "{burst}");
        let later = written(&mut budget, 20_000, 30_000);
        assert!((9..=11).contains(&later), "{later}");
    }
}
