//! What a training run tells its user: a bar over all inner steps, and the event file.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use dipaco_sync::Fence;
use dipaco_telemetry::{Event, Events, Progress, Task, Unit};
use dipaco_topology::PathId;

use crate::TrainError;

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
}

impl RunProgress {
    pub(crate) fn new(progress: &Progress, events: Events, committed: u64, total: u64) -> Self {
        let task = progress.task("train", Some(total), Unit::Count("steps"));
        task.resume_at(committed);
        let state = State { committed, running: BTreeMap::new(), losses: BTreeMap::new() };
        Self { events, task, state: Mutex::new(state) }
    }

    pub(crate) fn event(&self, event: Event) -> Result<(), TrainError> {
        Ok(self.events.write(event)?)
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// A round of a path counts.
    pub(crate) fn committed(&self, path: PathId, steps: u64) {
        self.update(|state| {
            state.running.remove(&path);
            state.committed += steps;
        });
    }

    pub(crate) fn finish(&self) {
        self.task.finish();
    }
}
