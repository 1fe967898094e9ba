//! Paths of admitted sequences: the thread that routes.
//!
//! A sequence whose path needs no pass of the router never waits for this thread. One pass answers all that wait with its
//! texts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dipaco_topology::PathId;

use crate::passes::{Pass, Passes};
use crate::running::failed;
use crate::scheduler::SequenceId;
use crate::shared::{Asked, Question, Routed, Shared, SharedState, Unrouted, guarded};
use crate::{
    BoxError, EngineError, FinishReason, Finished, GenerationEvent, Outcome, Route, RoutedModel,
    RunModelError, ServedPath,
};

/// Finds the paths of sequences that need the router, until the engine ends.
pub(crate) fn run(shared: &Shared) {
    let mut passes = Passes::default();
    while let Some(pass) = shared.next_pass(&mut passes) {
        match pass {
            Pass::Prefixes(prefixes) => shared.route_prefixes(prefixes),
            Pass::Chunk(tokens) => shared.route_chunk(&tokens),
        }
    }
}

/// The route of each prefix, in one pass if none fails.
fn routes(model: &dyn RoutedModel, prefixes: &[&[u32]]) -> Vec<Result<Route, EngineError>> {
    let pass = || -> Result<Vec<Route>, BoxError> {
        let routes = model.route(prefixes)?;
        let (given, asked) = (routes.len(), prefixes.len());
        if given == asked { Ok(routes) } else { Err(RunModelError::Routes { given, asked }.into()) }
    };
    match guarded(|| pass().map_err(failed("routing the prompt"))) {
        Ok(routes) => routes.into_iter().map(Ok).collect(),
        Err(error) if prefixes.len() == 1 => vec![Err(error)],
        // One of them may be at fault: each gets a pass of its own.
        Err(_) => prefixes.iter().flat_map(|&prefix| routes(model, &[prefix])).collect(),
    }
}

/// The same route, or the same failure, for another that waits for it.
fn again(route: &Result<Route, EngineError>) -> Result<Route, EngineError> {
    route.as_ref().cloned().map_err(EngineError::again)
}

impl Shared {
    /// Waits until somebody needs a pass of the router; `None` when the engine ends.
    fn next_pass(&self, passes: &mut Passes) -> Option<Pass> {
        let mut state = self.lock();
        loop {
            if self.abort.is_cancelled() {
                return None;
            }
            let ended = state.take_ended();
            if !(ended.0.is_empty() && ended.1.is_empty()) {
                drop(state);
                drop(ended);
                state = self.lock();
                continue;
            }
            if let Some(pass) = passes.next(&state.unrouted, &state.questions) {
                return Some(pass);
            }
            state = self.wait(state);
        }
    }

    /// Routes prefixes, for all that wait with them.
    fn route_prefixes(&self, prefixes: BTreeSet<Arc<[u32]>>) {
        let began = Instant::now();
        let texts: Vec<&[u32]> = prefixes.iter().map(|prefix| &**prefix).collect();
        let found = routes(self.model.as_ref(), &texts);
        let took = began.elapsed();
        let found: BTreeMap<Arc<[u32]>, Result<Route, EngineError>> =
            prefixes.into_iter().zip(found).collect();
        let mut state = self.lock();
        for (prefix, route) in &found {
            if let Ok(route) = route {
                state.routes.insert(Arc::clone(prefix), route.clone());
            }
        }
        let read = |asked: &Asked| asked.prefix().is_some_and(|prefix| found.contains_key(prefix));
        let sequences = state.take_read(read);
        let questions = std::mem::take(&mut state.questions).into_iter();
        let (answered, rest): (VecDeque<_>, _) =
            questions.partition(|question| found.contains_key(&question.prefix));
        state.questions = rest;
        drop(state);
        for Question { prefix, answer } in answered {
            if let Some(route) = found.get(&prefix) {
                // Sending fails only when the caller is gone.
                let _ = answer.send(again(route));
            }
        }
        for sequence in sequences {
            if let Some(route) = sequence.asked.prefix().and_then(|prefix| found.get(prefix)) {
                let path = again(route).map(|route| (route.path, Some(route)));
                self.give_path(sequence, path, took);
            }
        }
    }

    /// Chooses the path behind these tokens, for all that wait with them.
    fn route_chunk(&self, tokens: &Arc<[u32]>) {
        let began = Instant::now();
        let reroute = || self.model.reroute(tokens).map_err(failed("choosing the path of a chunk"));
        let found = guarded(reroute);
        let took = began.elapsed();
        let sequences = self.lock().take_read(|asked| asked.chunk() == Some(tokens));
        for sequence in sequences {
            let path = found.as_ref().map(|path| (*path, None)).map_err(EngineError::again);
            self.give_path(sequence, path, took);
        }
    }

    /// Gives a sequence the path that a pass found, with the decision of the router of prompts.
    fn give_path(
        &self,
        sequence: Unrouted,
        found: Result<(PathId, Option<Route>), EngineError>,
        took: Duration,
    ) {
        let Unrouted { id, asked, generation, .. } = sequence;
        let last = if let Asked::Chunk(_, last) = asked { last } else { None };
        match (found, last) {
            (Ok((path, _)), Some(last)) if path == last => self.stay(id),
            (Ok((path, route)), last) => {
                if last.is_some() {
                    self.leave(id);
                }
                self.give_modules(Routed { id, path, route, took: Some(took), generation, overtaken: 0 });
            }
            (Err(error), _) => self.fail(id, error),
        }
    }

    /// Ends a sequence that failed without a step.
    fn fail(&self, id: SequenceId, error: EngineError) {
        let mut state = self.lock();
        if state.waiting.contains_key(&id) {
            let outcome = crate::job::outcome(&error);
            return self.end_waiting(state, id, outcome, Some(Err(error)));
        }
        state.moves.failed.push((id, error));
        self.changed(&state);
    }

    /// Records the path and the modules of a sequence, or ends it if it has none.
    pub(crate) fn placed(&self, routed: Routed, served: Result<ServedPath, EngineError>) {
        let Routed { id, path, route, took, generation, .. } = routed;
        // From here on, only the sequence itself keeps its weights in memory.
        drop(generation);
        let mut state = self.lock();
        let served = match served {
            Ok(served) => served,
            Err(error) => {
                drop(state);
                return self.fail(id, error);
            }
        };
        let modules = state.versions.numbers(&served, self.model.as_ref());
        let Some(job) = state.waiting.get_mut(&id) else {
            if self.abort.is_cancelled() {
                // Nobody would take the modules any more, and the loader may wait for their room. They may be gigabytes, so
                // they are freed outside of the lock.
                drop(state);
                drop(served);
                return;
            }
            state.moves.arrived.push((id, path, served));
            return self.changed(&state);
        };
        job.routing = took;
        job.place = Some((path, served));
        // Sending fails only when the caller is gone. It takes the sequence out itself.
        let _ = job.send(Ok(GenerationEvent::Started { path, route }));
        if !job.is_empty() {
            state.scheduler.ready(id, &modules);
            return self.changed(&state);
        }
        let _ = job.send(Ok(GenerationEvent::Began { queued: job.arrived.elapsed() }));
        let finished = Finished {
            reason: FinishReason::Length,
            stop: None,
            text: String::new(),
            generated_tokens: 0,
            cached_tokens: 0,
            reroutes: 0,
        };
        self.end_waiting(state, id, Outcome::Length, Some(Ok(finished)));
    }
}

impl SharedState {
    /// The path of a new sequence, if it needs no pass of the router. Otherwise the sequence waits for one.
    pub(crate) fn route(&mut self, sequence: Unrouted) -> Option<Routed> {
        let known = match &sequence.asked {
            Asked::Pinned(path) => Some((*path, None)),
            Asked::Prefix(prefix) => self.routes.get(prefix).map(|route| (route.path, Some(route.clone()))),
            Asked::Chunk(..) => None,
        };
        let Some((path, route)) = known else {
            self.unrouted.push_back(sequence);
            return None;
        };
        let Unrouted { id, generation, .. } = sequence;
        let took = route.is_some().then_some(Duration::ZERO);
        Some(Routed { id, path, route, took, generation, overtaken: 0 })
    }

    /// Takes out the sequences whose texts a pass has read.
    fn take_read(&mut self, read: impl Fn(&Asked) -> bool) -> VecDeque<Unrouted> {
        take(&mut self.unrouted, |sequence| read(&sequence.asked))
    }

    /// Takes out what ended sequences wanted of the router and of the loader, to be dropped outside of the lock: it may hold
    /// the last weights of a generation. Ends a load that was for these only.
    pub(crate) fn take_ended(&mut self) -> (VecDeque<Unrouted>, VecDeque<Routed>) {
        let Self { scheduler, unrouted, unloaded, .. } = self;
        let unrouted = take(unrouted, |sequence| !scheduler.contains(sequence.id));
        let unloaded = take(unloaded, |sequence| !scheduler.contains(sequence.id));
        if !unloaded.is_empty() {
            self.end_unwanted_load();
        }
        (unrouted, unloaded)
    }
}

/// Takes some entries out of a queue.
fn take<T>(queue: &mut VecDeque<T>, wanted: impl Fn(&T) -> bool) -> VecDeque<T> {
    let (taken, rest) = std::mem::take(queue).into_iter().partition(wanted);
    *queue = rest;
    taken
}
