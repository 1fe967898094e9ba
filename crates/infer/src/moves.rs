//! Sequences that change their paths while they run.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::reroute::Moves;
use crate::running::Running;
use crate::scheduler::{Plan, SequenceId};
use crate::shared::{Asked, Shared, SharedState, Unrouted};
use crate::{EngineError, RoutedModel, ServedPath};

/// Failed sequences and free modules after the changes of paths.
pub(crate) struct LeftOver {
    /// The sequences that failed.
    pub(crate) failed: Vec<(SequenceId, EngineError)>,
    /// The modules that their sequences gave up, to be dropped outside of the lock: they may be gigabytes.
    pub(crate) modules: Vec<ServedPath>,
}

impl Shared {
    /// The path of the next chunk is that of the last.
    pub(crate) fn stay(&self, id: SequenceId) {
        let mut state = self.lock();
        state.scheduler.stay(id);
        self.changed(&state);
    }

    /// The next chunk has another path.
    pub(crate) fn leave(&self, id: SequenceId) {
        let mut state = self.lock();
        state.scheduler.leave(id);
        state.moves.left.push(id);
        self.changed(&state);
    }
}

impl SharedState {
    /// Asks for the paths of the chunks that follow.
    pub(crate) fn ask_for_paths(&mut self, plan: &Plan, all: &BTreeMap<SequenceId, Running>) {
        for (id, end) in &plan.at_end {
            let Some(running) = all.get(id) else { continue };
            let Some(generation) = &running.job.generation else { continue };
            let tokens: Arc<[u32]> = self.scheduler.first_tokens(*id, *end).into();
            let asked = Asked::Chunk(tokens, Some(running.path));
            let (client, generation) = (running.job.request.client, Arc::clone(generation));
            self.unrouted.push_back(Unrouted { id: *id, client, asked, generation });
        }
    }

    /// Makes the changes of paths.
    pub(crate) fn make_moves(
        &mut self,
        model: &dyn RoutedModel,
        all: &mut BTreeMap<SequenceId, Running>,
    ) -> LeftOver {
        let Moves { left, arrived, failed } = std::mem::take(&mut self.moves);
        let mut modules = Vec::new();
        for id in left {
            if let Some(running) = all.get_mut(&id) {
                modules.extend(running.leave());
            }
        }
        for (id, path, served) in arrived {
            let Some(running) = all.get_mut(&id) else {
                // The sequence has ended.
                modules.push(served);
                continue;
            };
            self.scheduler.ready(id, &self.versions.numbers(&served, model));
            running.arrive(path, served);
        }
        LeftOver { failed, modules }
    }
}
