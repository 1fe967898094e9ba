//! What a training run tells its user: a bar over all inner steps, and the event file.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dipaco_sync::Fence;
use dipaco_telemetry::{Event, Events, Progress, Task, Unit};
use dipaco_topology::PathId;
use tokio::time::Instant;

use crate::TrainError;
use crate::round_tally::RoundTally;

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
}

impl RunProgress {
    pub(crate) fn new(
        progress: &Progress,
        events: Events,
        (committed, total): (u64, u64),
        inner_steps: u64,
        steps: &[u64],
    ) -> Self {
        let task = progress.task("train", Some(total), Unit::Count("steps"));
        task.resume_at(committed);
        let rounds = RoundTally::new(inner_steps, steps, Instant::now());
        let state = State { committed, running: BTreeMap::new(), losses: BTreeMap::new(), rounds };
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

    pub(crate) fn finish(&self) {
        self.task.finish();
    }
}
