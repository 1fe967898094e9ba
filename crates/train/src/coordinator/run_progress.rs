//! What a training run tells its user: a bar over all inner steps, and the event file.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Inner steps of committed rounds.
    committed: u64,
    /// Inner steps of leases that are out.
    running: BTreeMap<PathId, (Fence, u64)>,
    /// The last training loss of each path.
    losses: BTreeMap<PathId, f32>,
    rounds: RoundTally,
    spent: Spent,
}

/// What workers have spent their time on, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    /// Inner steps.
    pub(crate) inner: f64,
    /// Transfers, and waiting for others and for work.
    pub(crate) waited: f64,
}

impl RunProgress {
    pub(crate) fn new(
        progress: &Progress,
        events: Events,
        (committed, total): (u64, u64),
        inner_steps: u64,
        steps: &[u64],
    ) -> Self {
        let task = progress.task("train", Some(total), ProgressUnit::Count("steps"));
        task.resume_at(committed);
        let rounds = RoundTally::new(inner_steps, steps, Instant::now());
        let state = State {
            committed,
            running: BTreeMap::new(),
            losses: BTreeMap::new(),
            rounds,
            spent: Spent::default(),
        };
        Self { events, task, state: Mutex::new(state) }
    }

    pub(crate) fn event(&self, event: Event) -> Result<(), TrainError> {
        Ok(self.events.write(event)?)
    }

    /// A path at this step was leased.
    pub(crate) fn leased(&self, step: u64) -> Result<(), TrainError> {
        let event = self.state().rounds.leased(step, Instant::now());
        event.map_or(Ok(()), |event| self.event(event))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let running: u64 = state.running.values().map(|&(_, steps)| steps).sum();
        if !state.losses.is_empty() {
            let sum: f64 = state.losses.values().copied().map(f64::from).sum();
            #[allow(clippy::cast_precision_loss)]
            let mean = sum / state.losses.len() as f64;
            self.task.note(format!("loss {mean:.3}"));
        }
        self.task.set(state.committed + running);
    }

    /// A worker reports how far its lease is.
    pub(crate) fn running(&self, path: PathId, fence: Fence, steps: u64, loss: Option<f32>) {
        self.update(|state| {
            state.running.insert(path, (fence, steps));
            state.losses.extend(loss.map(|loss| (path, loss)));
        });
    }

    /// A lease ended without counting: its steps are to be done again.
    pub(crate) fn lost(&self, path: PathId, fence: Fence) {
        self.update(|state| {
            if state.running.get(&path).is_some_and(|&(held, _)| held == fence) {
                state.running.remove(&path);
            }
        });
    }

    /// A lease of a path counts: its inner steps from one to another.
    pub(crate) fn committed(&self, path: PathId, from: u64, to: u64, loss: f64) -> Result<(), TrainError> {
        let mut event = None;
        self.update(|state| {
            state.running.remove(&path);
            event = state.rounds.committed(path, to, loss, Instant::now());
            state.committed += to - from;
        });
        event.map_or(Ok(()), |event| self.event(event))
    }

    /// A worker has spent its time on a lease.
    pub(crate) fn spent(&self, inner: f64, waited: f64) {
        let mut state = self.state();
        // What a peer says need not be a number.
        state.spent.inner += if inner.is_finite() { inner.max(0.0) } else { 0.0 };
        state.spent.waited += if waited.is_finite() { waited.max(0.0) } else { 0.0 };
    }

    /// What workers have spent their time on under this coordinator.
    pub(crate) fn spent_in_all(&self) -> Spent {
        self.state().spent
    }

    pub(crate) fn finish(&self) {
        self.task.finish();
    }
}
