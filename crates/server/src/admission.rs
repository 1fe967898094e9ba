//! Refusing work that can't be done in time.
//!
//! A queue with a fixed number of places admits requests that end at their deadline, after they have used the model in
//! vain. This file estimates instead when admitted work will be done. It learns the rate from the engine's observer.

mod clients;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use dipaco_infer::{GenerateRequest, Observer, Outcome, RequestSummary, StepSummary};

use crate::Metrics;
use crate::error::ApiError;

use clients::{Clients, Share};

/// Length of a measurement of the rate.
const WINDOW: Duration = Duration::from_secs(1);
/// Length of the first one. Until it ends, everything is admitted.
const FIRST_WINDOW: Duration = Duration::from_millis(250);
/// Weight of the newest measurement in the rate.
const NEWEST: f64 = 0.3;
/// Share of its time in which a request must be done by the estimate. Machines are now and then a fifth slower than before.
const SHARE: f64 = 0.8;
/// Weight of a sequence in the mean fraction of `max_tokens` that sequences generate.
const ENDED: f64 = 0.1;
/// Longest advice when to try again, in seconds.
const LONGEST_PAUSE: f64 = 60.0;

/// The admitted work of a server in tokens, and the rate at which it is done.
#[derive(Debug)]
pub(crate) struct Admission {
    work: Mutex<Work>,
}

#[derive(Debug)]
struct Work {
    /// Number of sequences that the engine computes at a time.
    at_a_time: usize,
    /// Sequences that are admitted and have not ended.
    sequences: usize,
    /// Their tokens: prompts and `max_tokens`.
    admitted: u64,
    /// Tokens of them that are done: read, found in the prefix cache or generated.
    completed: u64,
    /// The admitted sequences of each client.
    clients: Clients,
    /// Begin of the current measurement; `None` while nothing is admitted.
    since: Option<Instant>,
    /// Tokens done since then.
    done: u64,
    /// True if all places of the engine were taken during the whole measurement.
    saturated: bool,
    /// Tokens per second of a saturated engine; `None` until it has been saturated for the length of a measurement.
    rate: Option<f64>,
    /// Seconds between tokens of a sequence in this measurement: their sum and their number.
    intervals: (f64, u32),
    /// Mean seconds between tokens of a sequence.
    interval: f64,
    /// Mean fraction of `max_tokens` that sequences generate.
    used: f64,
}

/// The size of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Number of the client.
    pub(crate) client: u64,
    /// Number of sequences.
    pub(crate) sequences: usize,
    /// The largest number of tokens of all its sequences: prompts and `max_tokens`. The choices of a prompt read it once.
    pub(crate) tokens: u64,
    /// The largest `max_tokens` of a sequence. Its tokens come one after the other.
    pub(crate) longest: usize,
}

impl Asked {
    /// The size of a request of these sequences, all of one client.
    pub(crate) fn of(requests: &[GenerateRequest]) -> Self {
        let all: usize = requests.iter().map(|request| request.prompt.len() + request.max_tokens).sum();
        // As in `RequestSummary::own_prompt_tokens`.
        let shares = |pair: &&[GenerateRequest]| {
            pair[1].shares_prompt_of(&pair[0]) && pair[1].prompt_log_probs.is_none()
        };
        let shared: usize = requests.windows(2).filter(shares).map(|pair| pair[1].prompt.len()).sum();
        Self {
            client: requests.first().map_or(0, |request| request.client),
            sequences: requests.len(),
            tokens: (all - shared) as u64,
            longest: requests.iter().map(|request| request.max_tokens).max().unwrap_or(0),
        }
    }
}

impl Admission {
    /// The admission to an engine that computes one sequence at a time.
    pub(crate) fn new() -> Self {
        let work = Work {
            at_a_time: 1,
            sequences: 0,
            admitted: 0,
            completed: 0,
            clients: Clients::default(),
            since: None,
            done: 0,
            saturated: false,
            rate: None,
            intervals: (0.0, 0),
            interval: 0.0,
            used: 1.0,
        };
        Self { work: Mutex::new(work) }
    }

    /// Sets the number of sequences that the engine computes at a time.
    pub(crate) fn set_places(&self, at_a_time: usize) {
        self.lock().at_a_time = at_a_time;
    }

    /// Refuses work with 429 when it would not be done within `deadline`.
    pub(crate) fn check(&self, asked: Asked, deadline: Duration) -> Result<(), ApiError> {
        self.lock().check(asked, deadline)
    }

    /// Admits the sequences of a request together, or refuses them with 429. Each of them is released when the engine reports
    /// its end.
    pub(crate) fn admit(&self, asked: Asked, deadline: Duration) -> Result<(), ApiError> {
        let mut work = self.lock();
        work.check(asked, deadline)?;
        work.admit(asked, Instant::now());
        Ok(())
    }

    /// Takes back the admission of sequences that the engine refused.
    pub(crate) fn take_back(&self, asked: Asked) {
        self.lock().release(asked, 0);
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        // No code under the lock panics halfway through a change.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports what the engine does to the metrics and to the admission.
pub(crate) struct Observers {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) admission: Arc<Admission>,
}

impl Observer for Observers {
    fn token(&self, interval: Duration) {
        self.metrics.token(interval);
        self.admission.token(interval);
    }

    fn step(&self, step: &StepSummary) {
        self.metrics.step(step);
        self.admission.step(step);
    }

    fn finished(&self, summary: &RequestSummary) {
        self.metrics.finished(summary);
        self.admission.finished(summary);
    }
}

impl Observer for Admission {
    fn step(&self, step: &StepSummary) {
        let mut work = self.lock();
        work.completed += step.prompt_tokens as u64;
        work.progress(step.tokens as u64, Instant::now());
    }

    fn token(&self, interval: Duration) {
        let mut work = self.lock();
        work.completed += 1;
        work.intervals.0 += interval.as_secs_f64();
        work.intervals.1 += 1;
    }

    fn finished(&self, summary: &RequestSummary) {
        let mut work = self.lock();
        // The engine reports a token from the second on.
        let completed = summary.read_tokens + summary.generated_tokens.saturating_sub(1);
        if summary.max_tokens > 0 && matches!(summary.outcome, Outcome::Stop | Outcome::Length) {
            let used = summary.generated_tokens as f64 / summary.max_tokens as f64;
            work.used += ENDED * (used - work.used);
        }
        let tokens = (summary.own_prompt_tokens() + summary.max_tokens) as u64;
        let ended = Asked { client: summary.client, sequences: 1, tokens, longest: summary.max_tokens };
        work.release(ended, completed as u64);
    }
}

impl Work {
    fn check(&self, asked: Asked, deadline: Duration) -> Result<(), ApiError> {
        let Some(rate) = self.rate else { return Ok(()) };
        let before = self.admitted.saturating_sub(self.completed);
        // A request alone may try: its deadline, not the load, decides.
        if before == 0 {
            return Ok(());
        }
        // Free places go to the least served client, so each of the others gets about as much before the end of this request
        // as its own client.
        let Share { tokens, clients } = self.clients.share(asked.client);
        let shared = tokens.saturating_add(asked.tokens).saturating_mul(clients as u64);
        let before = before.min(shared.saturating_sub(asked.tokens));
        // The sequences before it leave their places, and then its tokens come one by one, beside those of others.
        let own = asked.longest as f64 * self.used * self.interval;
        let needs = (before + asked.tokens) as f64 / rate + own;
        let planned = SHARE * deadline.as_secs_f64();
        let late = needs - planned;
        if late <= 0.0 {
            return Ok(());
        }
        let pause = late.ceil().clamp(1.0, LONGEST_PAUSE) as u64;
        let message = format!(
            "the server would need about {needs:.1} s for this request and those before it, and it plans {planned:.1} s of the \
             request's {:.1} s: try again in {pause} s, or ask for fewer tokens",
            deadline.as_secs_f64()
        );
        Err(ApiError {
            code: Some("overloaded"),
            retry_after: Some(pause),
            ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
        })
    }

    fn admit(&mut self, asked: Asked, now: Instant) {
        self.sequences += asked.sequences;
        self.admitted += asked.tokens;
        self.clients.add(asked);
        if self.since.is_none() {
            self.measure_from(now);
        }
    }

    fn measure_from(&mut self, now: Instant) {
        (self.since, self.done, self.saturated) = (Some(now), 0, self.is_saturated());
        self.intervals = (0.0, 0);
    }

    /// Counts the tokens of a step that ends now.
    fn progress(&mut self, tokens: u64, now: Instant) {
        self.done += tokens;
        let Some(since) = self.since else { return };
        // The first rate is needed soon: its measurement begins as soon as all places are taken.
        if self.rate.is_none() && !self.saturated && self.is_saturated() {
            return self.measure_from(now);
        }
        let took = now.saturating_duration_since(since);
        if took < if self.rate.is_none() { FIRST_WINDOW } else { WINDOW } {
            return;
        }
        if self.intervals.1 > 0 {
            let found = self.intervals.0 / f64::from(self.intervals.1);
            let weight = if self.interval > 0.0 { NEWEST } else { 1.0 };
            self.interval += weight * (found - self.interval);
        }
        let found = self.done as f64 / took.as_secs_f64();
        self.rate = match self.rate {
            Some(rate) if self.saturated => Some(rate + NEWEST * (found - rate)),
            // Fewer sequences than places are slower together, never faster.
            Some(rate) => Some(rate.max(found)),
            None => self.saturated.then_some(found),
        }
        .filter(|rate| *rate > 0.0);
        self.measure_from(now);
    }

    /// Takes admitted sequences out, of whose tokens so many are completed.
    fn release(&mut self, asked: Asked, completed: u64) {
        self.sequences = self.sequences.saturating_sub(asked.sequences);
        self.admitted = self.admitted.saturating_sub(asked.tokens);
        self.completed = self.completed.saturating_sub(completed);
        self.clients.take(asked);
        self.saturated &= self.is_saturated();
        if self.sequences == 0 {
            self.since = None;
        }
    }

    fn is_saturated(&self) -> bool {
        self.sequences >= self.at_a_time
    }
}
