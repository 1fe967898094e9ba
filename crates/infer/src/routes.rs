//! Paths of admitted sequences: the thread that routes, and the routes that it remembers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use dipaco_topology::PathId;

use crate::running::failed;
use crate::scheduler::SequenceId;
use crate::shared::{Asked, Question, Routed, Shared, SharedState, Unrouted, guarded};
use crate::{EngineError, FinishReason, Finished, GenerationEvent, Outcome, Route, ServedPath};

/// Sequences that are routed together.
const MOST: usize = 64;

/// Routes that are remembered.
const REMEMBERED: usize = 4096;

/// The routes of the prefixes that came last.
#[derive(Default)]
struct RouteCache {
    routes: BTreeMap<Arc<[u32]>, Route>,
    order: VecDeque<Arc<[u32]>>,
}

impl RouteCache {
    fn insert(&mut self, prefix: Arc<[u32]>, route: Route) {
        if self.routes.insert(Arc::clone(&prefix), route).is_none() {
            self.order.push_back(prefix);
        }
    }

    /// Forgets the oldest routes beyond [`REMEMBERED`]. Only between two passes: a pass needs all of its routes to its end.
    fn forget(&mut self) {
        let beyond = self.order.len().saturating_sub(REMEMBERED);
        for oldest in self.order.drain(..beyond) {
            self.routes.remove(&oldest);
        }
    }
}

/// A path that was found, and the router's decision if it was asked.
type Found = Result<(PathId, Option<Route>), EngineError>;

/// Finds the paths of admitted sequences until the engine ends.
pub(crate) fn run(shared: &Shared) {
    let mut cache = RouteCache::default();
    while let Some((sequences, questions)) = shared.next_unrouted(MOST) {
        let began = Instant::now();
        let failures = route_new(shared, &mut cache, &sequences, &questions);
        for Question { prefix, answer } in questions {
            // Sending fails only when the caller is gone.
            let _ = answer.send(known(&cache, &failures, &prefix));
        }
        let found: Vec<Option<Found>> =
            sequences.iter().map(|sequence| find(shared, &cache, &failures, sequence)).collect();
        for (sequence, found) in sequences.into_iter().zip(found) {
            let Unrouted { id, asked, generation } = sequence;
            let Some(found) = found else { continue };
            let took = (!matches!(asked, Asked::Pinned(_))).then(|| began.elapsed());
            let last = if let Asked::Chunk(_, last) = asked { last } else { None };
            match (found, last) {
                (Ok((path, _)), Some(last)) if path == last => shared.stay(id),
                (Ok((path, route)), last) => {
                    if last.is_some() {
                        shared.leave(id);
                    }
                    shared.give_modules(Routed { id, path, route, took, generation, overtaken: 0 });
                }
                (Err(error), _) => shared.fail(id, error),
            }
        }
        cache.forget();
    }
}

/// Routes the prefixes that are not remembered, in one pass. Returns the errors of those that failed.
fn route_new(
    shared: &Shared,
    cache: &mut RouteCache,
    sequences: &[Unrouted],
    questions: &[Question],
) -> BTreeMap<Arc<[u32]>, EngineError> {
    let of_sequences = sequences.iter().filter_map(|sequence| sequence.asked.prefix());
    let new: BTreeSet<&Arc<[u32]>> =
        of_sequences.chain(questions.iter().map(|question| &question.prefix)).collect();
    let new: Vec<&Arc<[u32]>> =
        new.into_iter().filter(|prefix| !cache.routes.contains_key(*prefix)).collect();
    let mut failures = BTreeMap::new();
    let mut add = |some: &[&Arc<[u32]>]| -> Result<(), EngineError> {
        let prefixes: Vec<&[u32]> = some.iter().map(|prefix| &***prefix).collect();
        let routes = guarded(|| shared.model.route(&prefixes).map_err(failed("routing the prompt")))?;
        for (prefix, route) in some.iter().zip(routes) {
            cache.insert(Arc::clone(prefix), route);
        }
        Ok(())
    };
    if !new.is_empty() && add(&new).is_err() {
        // One of them may be at fault: each gets a pass of its own.
        for prefix in new {
            if let Err(error) = add(&[prefix]) {
                failures.insert(Arc::clone(prefix), error);
            }
        }
    }
    failures
}

/// The path of a sequence; `None` if the sequence has ended.
fn find(
    shared: &Shared,
    cache: &RouteCache,
    failures: &BTreeMap<Arc<[u32]>, EngineError>,
    sequence: &Unrouted,
) -> Option<Found> {
    Some(match &sequence.asked {
        Asked::Pinned(path) => Ok((*path, None)),
        Asked::Chunk(tokens, _) => {
            // Its caller may have gone away during the passes of the chunks before it.
            if !shared.lock().scheduler.contains(sequence.id) {
                return None;
            }
            let reroute = || shared.model.reroute(tokens).map_err(failed("choosing the path of a chunk"));
            guarded(reroute).map(|path| (path, None))
        }
        Asked::Prefix(prefix) => known(cache, failures, prefix).map(|route| (route.path, Some(route))),
    })
}

/// The route of a prefix that was in the last pass or is remembered.
fn known(
    cache: &RouteCache,
    failures: &BTreeMap<Arc<[u32]>, EngineError>,
    prefix: &Arc<[u32]>,
) -> Result<Route, EngineError> {
    match (cache.routes.get(prefix), failures.get(prefix)) {
        (Some(route), _) => Ok(route.clone()),
        (None, Some(error)) => Err(error.again()),
        (None, None) => Err(EngineError::EmptyPrompt),
    }
}

impl Asked {
    fn prefix(&self) -> Option<&Arc<[u32]>> {
        if let Self::Prefix(prefix) = self { Some(prefix) } else { None }
    }
}

impl Shared {
    /// Waits for sequences without a path and for questions; `None` when the engine ends.
    fn next_unrouted(&self, most: usize) -> Option<(Vec<Unrouted>, Vec<Question>)> {
        let mut state = self.lock();
        loop {
            if self.abort.is_cancelled() {
                return None;
            }
            let ended = state.take_ended();
            if !ended.is_empty() {
                drop(state);
                drop(ended);
                state = self.lock();
                continue;
            }
            let (sequences, questions) = (state.unrouted.len().min(most), state.questions.len().min(most));
            if sequences + questions > 0 {
                let sequences = state.unrouted.drain(..sequences).collect();
                return Some((sequences, state.questions.drain(..questions).collect()));
            }
            state = self.wait(state);
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
    /// Takes out what ended sequences wanted of the router, to be dropped outside of the lock: it may hold the last weights of
    /// a generation.
    pub(crate) fn take_ended(&mut self) -> VecDeque<Unrouted> {
        let unrouted = std::mem::take(&mut self.unrouted).into_iter();
        let (wanted, ended) = unrouted.partition(|sequence| self.scheduler.contains(sequence.id));
        self.unrouted = wanted;
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_keeps_the_oldest_route_until_its_end() {
        let mut cache = RouteCache::default();
        let prefix = |number: usize| -> Arc<[u32]> { [number as u32].into() };
        let all = REMEMBERED + MOST;
        for number in 0..all {
            cache.insert(prefix(number), Route::new(PathId(number as u32), Vec::new()));
        }
        let path = |cache: &RouteCache, number| {
            known(cache, &BTreeMap::new(), &prefix(number)).ok().map(|route| route.path.0)
        };
        assert_eq!(path(&cache, 0), Some(0));
        cache.forget();
        assert_eq!((cache.routes.len(), cache.order.len()), (REMEMBERED, REMEMBERED));
        assert_eq!((path(&cache, MOST - 1), path(&cache, MOST)), (None, Some(MOST as u32)));
        // Another answer for the same prefix takes no further place.
        cache.insert(prefix(MOST), Route::new(PathId(7), Vec::new()));
        assert_eq!((cache.order.len(), path(&cache, MOST)), (REMEMBERED, Some(7)));
    }
}
