//! Refusing work that can't be done in time.
//!
//! A queue with a fixed number of places admits requests that end at their deadline, after they have used the model in
//! vain. This file estimates instead when admitted work will be done. It learns the rate from the engine's observer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use dipaco_infer::{GenerateRequest, Observer, RequestSummary, StepSummary};

use crate::Metrics;
use crate::error::ApiError;

/// Length of a measurement of the rate.
const WINDOW: Duration = Duration::from_secs(1);
/// Weight of the newest measurement in the rate.
const NEWEST: f64 = 0.3;
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
    /// Tokens that they have generated.
    generated: u64,
    /// Begin of the current measurement; `None` while nothing is admitted.
    since: Option<Instant>,
    /// Tokens done since then.
    done: u64,
    /// True if all places of the engine were taken during the whole measurement.
    saturated: bool,
    /// Tokens per second of a saturated engine; `None` until it has been saturated for the length of a measurement.
    rate: Option<f64>,
}

/// The largest number of tokens that a sequence can take.
pub(crate) fn tokens(request: &GenerateRequest) -> u64 {
    (request.prompt.len() + request.max_tokens) as u64
}

impl Admission {
    /// The admission to an engine that computes one sequence at a time.
    pub(crate) fn new() -> Self {
        let work = Work {
            at_a_time: 1,
            sequences: 0,
            admitted: 0,
            generated: 0,
            since: None,
            done: 0,
            saturated: false,
            rate: None,
        };
        Self { work: Mutex::new(work) }
    }

    /// Sets the number of sequences that the engine computes at a time.
    pub(crate) fn set_places(&self, at_a_time: usize) {
        self.lock().at_a_time = at_a_time;
    }

    /// Refuses work of this many tokens with 429 when it would not be done within `deadline`.
    pub(crate) fn check(&self, tokens: u64, deadline: Duration) -> Result<(), ApiError> {
        self.lock().check(tokens, deadline)
    }

    /// Admits sequences of this many tokens together, or refuses them with 429. Each of them is released when the engine
    /// reports its end.
    pub(crate) fn admit(&self, sequences: usize, tokens: u64, deadline: Duration) -> Result<(), ApiError> {
        let mut work = self.lock();
        work.check(tokens, deadline)?;
        work.admit(sequences, tokens, Instant::now());
        Ok(())
    }

    /// Takes back the admission of sequences that the engine refused.
    pub(crate) fn take_back(&self, sequences: usize, tokens: u64) {
        self.lock().release(sequences, tokens, 0);
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
    }

    fn finished(&self, summary: &RequestSummary) {
        self.metrics.finished(summary);
        self.admission.finished(summary);
    }
}

impl Observer for Admission {
    fn step(&self, _: &StepSummary) {}

    fn token(&self, _: Duration) {
        let mut work = self.lock();
        work.generated += 1;
        work.progress(1, Instant::now());
    }

    fn finished(&self, summary: &RequestSummary) {
        let mut work = self.lock();
        // The engine reports a token from the second on. The prompt and the first token count at the end.
        let counted = summary.generated_tokens.saturating_sub(1);
        let read = if summary.prefill.is_some() { summary.prompt_tokens } else { 0 };
        work.progress((read + summary.generated_tokens - counted) as u64, Instant::now());
        work.release(1, (summary.prompt_tokens + summary.max_tokens) as u64, counted as u64);
    }
}

impl Work {
    fn check(&self, tokens: u64, deadline: Duration) -> Result<(), ApiError> {
        let Some(rate) = self.rate else { return Ok(()) };
        let before = self.admitted.saturating_sub(self.generated);
        // A request alone may try: its deadline, not the load, decides.
        if before == 0 {
            return Ok(());
        }
        let needs = (before + tokens) as f64 / rate;
        let late = needs - deadline.as_secs_f64();
        if late <= 0.0 {
            return Ok(());
        }
        let pause = late.ceil().clamp(1.0, LONGEST_PAUSE) as u64;
        let message = format!(
            "the server would need about {needs:.0} s for this request and those before it, and the request has {:.0} s: \
             try again in {pause} s, or ask for fewer tokens",
            deadline.as_secs_f64()
        );
        Err(ApiError {
            code: Some("overloaded"),
            retry_after: Some(pause),
            ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
        })
    }

    fn admit(&mut self, sequences: usize, tokens: u64, now: Instant) {
        self.sequences += sequences;
        self.admitted += tokens;
        if self.since.is_none() {
            (self.since, self.done, self.saturated) = (Some(now), 0, self.is_saturated());
        }
    }

    /// Counts tokens that are done.
    fn progress(&mut self, tokens: u64, now: Instant) {
        self.done += tokens;
        let Some(since) = self.since else { return };
        let took = now.saturating_duration_since(since);
        if took < WINDOW {
            return;
        }
        let found = self.done as f64 / took.as_secs_f64();
        self.rate = match self.rate {
            Some(rate) if self.saturated => Some(rate + NEWEST * (found - rate)),
            // Fewer sequences than places are slower together, never faster.
            Some(rate) => Some(rate.max(found)),
            None => self.saturated.then_some(found),
        }
        .filter(|rate| *rate > 0.0);
        (self.since, self.done, self.saturated) = (Some(now), 0, self.is_saturated());
    }

    fn release(&mut self, sequences: usize, tokens: u64, generated: u64) {
        self.sequences = self.sequences.saturating_sub(sequences);
        self.admitted = self.admitted.saturating_sub(tokens);
        self.generated = self.generated.saturating_sub(generated);
        self.saturated &= self.is_saturated();
        if self.sequences == 0 {
            self.since = None;
        }
    }

    fn is_saturated(&self) -> bool {
        self.sequences >= self.at_a_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_places() -> Work {
        let admission = Admission::new();
        admission.set_places(2);
        admission.work.into_inner().unwrap()
    }

    /// A saturated engine of two places that does 100 tokens per second.
    fn saturated(start: Instant) -> Work {
        let mut work = two_places();
        work.admit(4, 4000, start);
        for tenth in 1..=20 {
            work.generated += 10;
            work.progress(10, start + Duration::from_millis(100 * tenth));
        }
        work
    }

    #[test]
    fn work_that_would_come_too_late_is_refused_with_the_time_to_wait() {
        let mut work = saturated(Instant::now());
        assert_eq!(work.rate, Some(100.0));
        // 3,800 tokens are left, so 1,200 more end after 50 s.
        assert_eq!(work.check(1200, Duration::from_secs(50)), Ok(()));
        let error = work.check(1300, Duration::from_secs(50)).unwrap_err();
        assert_eq!(
            (error.status.as_u16(), error.code, error.retry_after),
            (429, Some("overloaded"), Some(1))
        );
        assert_eq!(work.check(1, Duration::from_secs(8)).unwrap_err().retry_after, Some(31));
        // Sequences that end early give their room back.
        work.release(3, 3000, 150);
        assert_eq!(work.check(1300, Duration::from_secs(50)), Ok(()));
        // Alone, a request is never refused.
        work.release(1, 1000, 50);
        assert_eq!(work.check(1_000_000, Duration::ZERO), Ok(()));
    }

    #[test]
    fn one_sequence_says_nothing_about_the_rate_of_a_full_engine() {
        let start = Instant::now();
        let mut work = two_places();
        work.admit(1, 1000, start);
        work.progress(10, start + Duration::from_secs(1));
        work.progress(10, start + Duration::from_secs(2));
        assert_eq!(work.rate, None);
        let mut work = saturated(start);
        work.release(3, 3000, 0);
        let at = start + Duration::from_secs(3);
        work.progress(1, at);
        assert_eq!(work.rate, Some(100.0), "a slow sequence alone does not lower it");
    }
}
