//! Progress of a training run for its user: a bar over all inner steps, and the event file.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dipaco_sync::Fence;
use dipaco_telemetry::{Event, Events, Progress, Task, Unit};
use dipaco_topology::PathId;
use tokio::time::Instant;

use crate::TrainError;
use crate::coordinator::round_tally::RoundTally;

/// Progress of all paths together, in inner steps.
pub(crate) struct RunProgress {
    events: Events,
    task: Task,
    counters: Mutex<Counters>,
}

#[derive(Debug)]
struct Counters {
    /// Inner steps of completed leases.
    committed: u64,
    /// Inner steps done in leases that are out.
    running: BTreeMap<PathId, (Fence, u64)>,
    /// The last training loss of each path.
    losses: BTreeMap<PathId, f32>,
    tally: RoundTally,
    time: WorkerTime,
}

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
        let task = progress.task("train", Some(total), Unit::Count("steps"));
        task.resume_at(committed);
        let tally = RoundTally::new(inner_steps, steps, Instant::now());
        let counters = Counters {
            committed,
            running: BTreeMap::new(),
            losses: BTreeMap::new(),
            tally,
            time: WorkerTime::default(),
        };
        Self { events, task, counters: Mutex::new(counters) }
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

    fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters();
        change(&mut counters);
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
        // A peer may report any value, NaN included.
        counters.time.inner += if inner.is_finite() { inner.max(0.0) } else { 0.0 };
        counters.time.waited += if waited.is_finite() { waited.max(0.0) } else { 0.0 };
    }

    /// Time of all workers under this coordinator.
    pub(crate) fn worker_time(&self) -> WorkerTime {
        self.counters().time
    }

    /// Ends the bar.
    pub(crate) fn finish(&self) {
        self.task.finish();
    }
}
