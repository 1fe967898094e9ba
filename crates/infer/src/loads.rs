//! Modules of routed sequences: the thread that loads, and the sequences that wait for it.
//!
//! A sequence whose modules are in memory does not wait for those whose modules are not. So sequences that share modules run
//! together, and fewer modules are loaded. But the first of the waiting is overtaken a bounded number of times only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::ServedPath;
use crate::running::failed;
use crate::scheduler::SequenceId;
use crate::shared::{Loading, Routed, Shared, SharedState, guarded};

/// Sequences that may overtake the first that waits for its modules.
const OVERTAKERS: usize = 256;

/// Loads the modules of waiting sequences until the engine ends, one path at a time.
pub(crate) fn run(shared: &Shared) {
    while let Some((first, Loading { path, generation, unwanted })) = shared.next_unloaded() {
        let action = format!("starting a sequence on path {path}");
        let served = guarded(|| generation.prepare(path, &unwanted).map_err(failed(action)));
        drop(generation);
        match shared.end_load(first) {
            Some(first) => shared.placed(first, served),
            // Its caller went away. Others may wait for the same modules.
            None => drop(served),
        }
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

    /// Waits for a sequence without modules; `None` when the engine ends. The sequence stays in the queue until its caller
    /// goes away, or until [`Self::end_load`] takes it out.
    fn next_unloaded(&self) -> Option<(SequenceId, Loading)> {
        let mut state = self.lock();
        loop {
            if self.abort.is_cancelled() {
                return None;
            }
            if let Some(first) = state.unloaded.front() {
                if state.scheduler.contains(first.id) {
                    let (id, generation) = (first.id, Arc::clone(&first.generation));
                    let loading = Loading { path: first.path, generation, unwanted: Arc::default() };
                    state.loading = Some(loading.clone());
                    return Some((id, loading));
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

    /// The load for a sequence has ended. Takes the sequence out of the queue if it is still there.
    fn end_load(&self, id: SequenceId) -> Option<Routed> {
        let mut state = self.lock();
        let loading = state.loading.take();
        // Sequences come behind it only, so it is the first or not there.
        let waits = state.unloaded.front().is_some_and(|first| first.id == id);
        let routed = if waits { state.unloaded.pop_front() } else { None };
        drop(state);
        // Freed outside of the lock: it may hold the last weights of a generation.
        drop(loading);
        routed
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
    /// Tells the loader if no sequence waits for the path that it loads.
    pub(crate) fn end_unwanted_load(&self) {
        let Some(Loading { path, generation, unwanted }) = &self.loading else { return };
        let wants = |routed: &Routed| routed.path == *path && Arc::ptr_eq(&routed.generation, generation);
        if !self.unloaded.iter().any(wants) {
            unwanted.store(true, Ordering::Relaxed);
            generation.look_again();
        }
    }

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
