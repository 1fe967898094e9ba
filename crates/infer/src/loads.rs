//! Modules of routed sequences: the thread that loads, and the sequences that wait for it.
//!
//! A sequence whose modules are in memory does not wait for those whose modules are not. So sequences that share modules run
//! together, and fewer modules are loaded. But the first of the waiting is overtaken a bounded number of times only.

use std::sync::Arc;

use dipaco_topology::PathId;

use crate::running::failed;
use crate::shared::{Routed, Shared, SharedState, guarded};
use crate::{Generation, ServedPath};

/// Sequences that may overtake the first that waits for its modules.
const OVERTAKERS: usize = 256;

/// Loads the modules of waiting sequences until the engine ends, one path at a time.
pub(crate) fn run(shared: &Shared) {
    while let Some((path, generation)) = shared.next_unloaded() {
        let prepare =
            || generation.prepare(path).map_err(failed(format!("starting a sequence on path {path}")));
        let served = guarded(prepare);
        drop(generation);
        // Only this thread takes sequences out of the queue, so it is the same one.
        let Some(first) = shared.lock().unloaded.pop_front() else { continue };
        shared.placed(first, served);
        while let Some((routed, served)) = shared.next_loaded() {
            shared.placed(routed, Ok(served));
        }
    }
}

impl Shared {
    /// Gives a sequence its modules, or lets it wait for them.
    pub(crate) fn give_modules(&self, routed: Routed) {
        let mut state = self.lock();
        match state.loaded(&routed) {
            Some(served) => {
                drop(state);
                self.placed(routed, Ok(served));
            }
            None => {
                state.unloaded.push_back(routed);
                self.changed(&state);
            }
        }
    }

    /// Waits for a sequence without modules; `None` when the engine ends. The sequence stays in the queue.
    fn next_unloaded(&self) -> Option<(PathId, Arc<dyn Generation>)> {
        let mut state = self.lock();
        loop {
            if self.abort.is_cancelled() {
                return None;
            }
            if let Some(first) = state.unloaded.front() {
                if state.scheduler.contains(first.id) {
                    return Some((first.path, Arc::clone(&first.generation)));
                }
                // Its caller went away, and it may hold the last weights of a generation.
                let gone = state.unloaded.pop_front();
                drop(state);
                drop(gone);
                state = self.lock();
                continue;
            }
            state = self.wait(state);
        }
    }

    /// Takes a waiting sequence whose modules are in memory now.
    fn next_loaded(&self) -> Option<(Routed, ServedPath)> {
        let mut state = self.lock();
        for index in 0..state.unloaded.len() {
            let routed = state.unloaded.get(index)?;
            let Some(served) = routed.generation.loaded(routed.path) else { continue };
            if index > 0 && !state.overtake() {
                return None;
            }
            return Some((state.unloaded.remove(index)?, served));
        }
        None
    }
}

impl SharedState {
    /// The modules of a sequence, if they are in memory and it may overtake those that wait.
    fn loaded(&mut self, routed: &Routed) -> Option<ServedPath> {
        let served = routed.generation.loaded(routed.path)?;
        self.overtake().then_some(served)
    }

    /// Lets a sequence overtake the first of the waiting; false if that one was overtaken too often.
    fn overtake(&mut self) -> bool {
        let Some(first) = self.unloaded.front_mut() else { return true };
        first.overtaken += 1;
        first.overtaken <= OVERTAKERS
    }
}
