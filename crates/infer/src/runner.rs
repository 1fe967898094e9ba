//! The thread that runs steps.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use dipaco_model::{PAGE_TOKENS, Positions};
use dipaco_topology::PathId;
use rayon::prelude::*;

use crate::job::outcome;
use crate::moves::LeftOver;
use crate::running::{Next, Running, failed};
use crate::scheduler::{Plan, PlannedRows, SequenceId};
use crate::shared::{Shared, SharedState, guarded};
use crate::{
    EngineError, Executor, FinishReason, GenerationEvent, Outcome, PageCopy, RequestSummary, SequenceRows,
    StepSummary,
};

/// Runs steps until the engine ends.
pub(crate) fn run(shared: &Shared, pool: &rayon::ThreadPool, executor: &mut dyn Executor) {
    let mut all = BTreeMap::new();
    while let Some(plan) = shared.next_plan(&mut all) {
        let began = Instant::now();
        let mut step: Vec<(&PlannedRows, &mut Running)> = Vec::with_capacity(plan.rows.len());
        let mut rest = all.iter_mut().collect::<BTreeMap<_, _>>();
        for rows in &plan.rows {
            let running = rest.remove(&rows.id).filter(|running| running.served.is_some());
            step.extend(running.map(|running| (rows, running)));
        }
        // The pool is entered once: within it, waking a thread costs little.
        let (vocabulary, codec, observer) =
            (shared.model.vocab_size(), shared.codec.as_ref(), shared.observer.as_ref());
        let results: Vec<_> = pool.install(|| {
            let logits = logits(executor, &plan.copies, &step, vocabulary);
            let results = step.into_par_iter().zip(logits).map(|((rows, running), logits)| {
                let advance = |logits: Vec<f32>| {
                    guarded(|| running.advance(rows, &logits, vocabulary, codec, observer))
                };
                let next = logits.and_then(advance);
                (rows.id, next)
            });
            results.collect()
        });
        shared.finish_step(&plan, began.elapsed().as_secs_f64(), results, &mut all);
    }
}

/// Runs a step that nobody waits for: memory is taken and touched before the first request comes.
pub(crate) fn warm_up(shared: &Shared, pool: &rayon::ThreadPool, executor: &mut dyn Executor, tokens: usize) {
    let tokens = vec![0; tokens.clamp(1, shared.model.context())];
    let pages: Vec<u32> = (0..).take(tokens.len().div_ceil(PAGE_TOKENS)).collect();
    let path = PathId(0);
    let step = || {
        let served = shared.model.generation().prepare(path, &AtomicBool::new(false));
        let served = served.map_err(failed("preparing the first path"))?;
        let (tokens, pages, logits) = (&tokens[..], &pages[..], Positions::Last);
        let rows = SequenceRows { path, served: &served, tokens, start: 0, stage: 0, pages, logits };
        pool.install(|| executor.step(&[rows])).map_err(failed("warming up"))
    };
    // The requests of this path will fail in the same way, and those of others may not.
    if let Err(error) = guarded(step) {
        tracing::warn!(%error, "the first step failed");
    }
}

/// The logits of a step, sequence by sequence. Copies pages first: the step may write the pages that they come from.
fn logits(
    executor: &mut dyn Executor,
    copies: &[PageCopy],
    step: &[(&PlannedRows, &mut Running)],
    vocabulary: usize,
) -> Vec<Result<Vec<f32>, EngineError>> {
    let mut copy = || copies.iter().try_for_each(|copy| executor.copy_page(copy));
    if let Err(error) = guarded(|| copy().map_err(failed("copying pages"))) {
        return step.iter().map(|_| Err(error.again())).collect();
    }
    let rows = step.iter().filter_map(|(rows, running)| {
        Some(SequenceRows {
            path: running.path,
            served: running.served.as_ref()?,
            tokens: &rows.tokens,
            start: rows.start,
            stage: rows.stage,
            pages: &rows.pages,
            logits: running.wanted(rows),
        })
    });
    let rows: Vec<SequenceRows<'_>> = rows.collect();
    let mut attempt = |rows: &[SequenceRows<'_>], running: &Running| {
        let logits = guarded(|| executor.step(rows).map_err(failed(running.action())))?;
        let shape = |path, given, expected| Err(EngineError::Shape { path, given, expected });
        if logits.len() != rows.len() {
            return shape(running.path, logits.len(), rows.len());
        }
        for (logits, rows) in logits.iter().zip(rows) {
            let expected = rows.logits.count(rows.tokens.len()) * vocabulary;
            if logits.len() != expected {
                return shape(rows.path, logits.len(), expected);
            }
        }
        Ok(logits)
    };
    let Some((_, first)) = step.first() else { return Vec::new() };
    match attempt(&rows, first) {
        Ok(logits) => logits.into_iter().map(Ok).collect(),
        Err(error) if rows.len() == 1 => vec![Err(error)],
        // One sequence may be at fault: each gets a step of its own, with the same result.
        Err(error) => {
            tracing::debug!(%error, sequences = rows.len(), "a step failed: its sequences run one by one");
            let alone = step.iter().zip(&rows).map(|((_, running), rows)| {
                let logits = attempt(std::slice::from_ref(rows), running)?;
                Ok(logits.into_iter().next().unwrap_or_default())
            });
            alone.collect()
        }
    }
}

impl Shared {
    /// Waits for the next step; `None` when the engine ends. `all` are the sequences that have left the queue.
    fn next_plan(&self, all: &mut BTreeMap<SequenceId, Running>) -> Option<Plan> {
        let mut state = self.lock();
        loop {
            let mut gone = Vec::new();
            for (id, outcome) in std::mem::take(&mut state.cancelled) {
                if let Some(running) = all.remove(&id) {
                    state.scheduler.remove(id);
                    self.count(&running, outcome);
                    gone.push(running);
                }
            }
            if !gone.is_empty() {
                // The loader may wait for modules that only these wanted.
                let ended = state.take_ended();
                // Callers need not wait while the last weights of a generation are freed.
                drop(state);
                drop((gone, ended));
                state = self.lock();
                continue;
            }
            if self.abort.is_cancelled() {
                self.end_all(state, all);
                return None;
            }
            let late = |running: &Running| running.job.is_late();
            let late: Vec<_> = all.iter().filter(|(_, running)| late(running)).map(|(id, _)| *id).collect();
            if !late.is_empty() {
                drop(state);
                for id in late {
                    if let Some(running) = all.remove(&id) {
                        let deadline = running.job.deadline;
                        self.end_running(id, running, Err(EngineError::Deadline { deadline }), all);
                    }
                }
                state = self.lock();
                continue;
            }
            let LeftOver { failed, modules } = state.make_moves(self.model.as_ref(), all);
            if !(failed.is_empty() && modules.is_empty()) {
                drop(state);
                drop(modules);
                for (id, error) in failed {
                    if let Some(running) = all.remove(&id) {
                        self.end_running(id, running, Err(error), all);
                    }
                }
                state = self.lock();
                continue;
            }
            let plan = state.scheduler.plan();
            for &(id, cached) in &plan.started {
                // A sequence that lost its pages starts again with its state.
                if let Some(mut job) = state.waiting.remove(&id)
                    && let Some((path, served)) = job.place.take()
                {
                    let running = Running::new(job, path, served, cached, self.codec.as_ref());
                    // Sending fails only when the caller is gone. The step finds that out.
                    let _ = running.job.send(Ok(GenerationEvent::Began { queued: running.summary.queued }));
                    all.insert(id, running);
                }
            }
            if !plan.at_end.is_empty() {
                state.ask_for_paths(&plan, all);
                self.change.notify_all();
            }
            self.load.send_replace(state.scheduler.load());
            if !plan.rows.is_empty() {
                return Some(plan);
            }
            // A sequence that starts may be at the end of a chunk already. Only the next plan asks for its path.
            if plan.started.is_empty() {
                state = self.wait(state);
            }
        }
    }

    /// Ends all sequences because the engine stops. Their weights are freed outside of the lock.
    fn end_all(&self, mut state: MutexGuard<'_, SharedState>, all: &mut BTreeMap<SequenceId, Running>) {
        let ended = std::mem::take(all);
        for (&id, running) in &ended {
            state.scheduler.remove(id);
            let stopped = self.stopped();
            self.count(running, outcome(&stopped));
            let _ = running.job.send(Err(stopped));
        }
        let unwanted = state.take_ended();
        self.changed(&state);
        drop(state);
        drop((ended, unwanted));
    }

    /// Records the results of a step, and ends the sequences that are complete.
    fn finish_step(
        &self,
        plan: &Plan,
        seconds: f64,
        results: Vec<(SequenceId, Result<Next, EngineError>)>,
        all: &mut BTreeMap<SequenceId, Running>,
    ) {
        let read = plan.rows.iter().filter_map(|rows| Some(all.get_mut(&rows.id)?.count_prompt(rows)));
        let (tokens, prompt_tokens) = (plan.tokens(), read.sum::<usize>());
        self.observer.step(&StepSummary { tokens, prompt_tokens, preempted: plan.preempted.len() });
        let mut state = self.lock();
        // Removed before the step counts: the pages of a failed sequence may hold anything, so nobody may read them.
        for (id, _) in results.iter().filter(|(_, next)| next.is_err()) {
            state.scheduler.remove(*id);
        }
        state.scheduler.done(plan, seconds);
        for (id, next) in &results {
            if let Ok(Next::Token(token)) = next {
                state.scheduler.generated(*id, *token);
            }
        }
        drop(state);
        for (id, next) in results {
            let end = match next {
                Ok(Next::Rows | Next::Token(_)) => continue,
                Ok(Next::End(finished)) => Ok(Some(finished)),
                Ok(Next::Gone) => Ok(None),
                Err(error) => Err(error),
            };
            // A failure earlier in the step may have ended this sequence too.
            if let Some(running) = all.remove(&id) {
                self.end_running(id, running, end, all);
            }
        }
    }

    /// Ends a sequence that has left the queue. Its failure ends the other sequences of its submission, which count as it does.
    fn end_running(
        &self,
        id: SequenceId,
        running: Running,
        end: Result<Option<crate::Finished>, EngineError>,
        all: &mut BTreeMap<SequenceId, Running>,
    ) {
        let outcome = match &end {
            Ok(Some(finished)) => match finished.reason {
                FinishReason::Stop => Outcome::Stop,
                FinishReason::Length => Outcome::Length,
            },
            Ok(None) => Outcome::Abort,
            Err(error) => outcome(error),
        };
        let outcome = if running.job.events.is_closed() { Outcome::Abort } else { outcome };
        let mut state = self.lock();
        state.scheduler.remove(id);
        // A caller that went away may have given the reason.
        let reason = state.cancelled.iter().find(|cancelled| cancelled.0 == id).map(|cancelled| cancelled.1);
        let outcome = reason.unwrap_or(outcome);
        self.count(&running, outcome);
        let (mut others, mut waiting) = (Vec::new(), Vec::new());
        if end.is_err() {
            let submission = running.job.submission;
            for (id, other) in all.extract_if(.., |_, other| other.job.submission == submission) {
                state.scheduler.remove(id);
                self.count(&other, outcome);
                others.push(other);
            }
            waiting = self.abandon_waiting(&mut state, submission, outcome);
        }
        self.changed(&state);
        drop(state);
        // Freed outside of the lock, and before the caller learns of the end.
        drop((others, waiting));
        let job = running.into_job();
        // Sent after the counts are updated, so that a caller with its answer also finds the request in the counts. Sending
        // fails only when the caller is gone.
        let _ = match end {
            Ok(Some(finished)) => job.send(Ok(GenerationEvent::Finished(finished))),
            Ok(None) => Ok(()),
            Err(error) => job.send(Err(error)),
        };
    }

    /// Counts a sequence that ended. Drop it outside of the lock: it may hold the last weights of a generation.
    fn count(&self, running: &Running, outcome: Outcome) {
        let total = running.job.arrived.elapsed();
        self.observer.finished(&RequestSummary { outcome, total, ..running.summary.clone() });
    }
}
