//! The engine: slots that run sequences.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::job::{Job, Surroundings, held, most_events};
use crate::queue::{Queue, QueueLimits};
use crate::{
    EngineError, Event, GenerateRequest, Load, Observer, Outcome, Route, RoutedModel, SequenceEvent,
    TextCodec,
};

/// Limits of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Number of sequences that run at a time, each on its own thread; 0 takes the number of cores.
    pub slots: usize,
    /// Number of sequences that may wait for a slot.
    pub queued_requests: usize,
    /// Number of prompt tokens that may wait for a slot.
    pub queued_tokens: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self { slots: 0, queued_requests: 1024, queued_tokens: 1 << 20 }
    }
}

/// Runs sequences on paths. Dropping it cancels all sequences and waits for the current step of each slot.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    slots: usize,
}

struct Shared {
    model: Arc<dyn RoutedModel>,
    codec: Arc<dyn TextCodec>,
    observer: Arc<dyn Observer>,
    queue: Queue<Job>,
    abort: CancellationToken,
}

impl Engine {
    /// Starts the slots.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn start(
        model: Arc<dyn RoutedModel>,
        codec: Arc<dyn TextCodec>,
        observer: Arc<dyn Observer>,
        config: &EngineConfig,
    ) -> std::io::Result<Self> {
        let slots = match config.slots {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            slots => slots,
        };
        let queue =
            Queue::new(QueueLimits { requests: config.queued_requests, tokens: config.queued_tokens, slots });
        let shared = Arc::new(Shared { model, codec, observer, queue, abort: CancellationToken::new() });
        let mut engine = Self { shared, threads: Vec::with_capacity(slots), slots };
        for number in 0..slots {
            let shared = Arc::clone(&engine.shared);
            let thread = std::thread::Builder::new().name(format!("dipaco-slot-{number}"));
            engine.threads.push(thread.spawn(move || shared.serve_slot())?);
        }
        Ok(engine)
    }

    /// The model behind the engine.
    #[must_use]
    pub fn model(&self) -> &dyn RoutedModel {
        self.shared.model.as_ref()
    }

    /// The tokenizer behind the engine.
    #[must_use]
    pub fn codec(&self) -> &dyn TextCodec {
        self.shared.codec.as_ref()
    }

    /// Number of sequences that run at a time.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Admits all of these sequences, or none of them. `deadline` is the time from now to the last token of all of them.
    ///
    /// # Errors
    /// When a request is invalid, the queue is full, or the engine is shutting down.
    pub fn submit(
        &self,
        requests: Vec<GenerateRequest>,
        deadline: Duration,
    ) -> Result<Submission, EngineError> {
        let Shared { model, queue, .. } = self.shared.as_ref();
        let (context, vocab_size, paths) = (model.context(), model.vocab_size(), model.topology().paths());
        for request in &requests {
            request.check(context, vocab_size, paths)?;
        }
        let (arrived, unfinished) = (Instant::now(), requests.len());
        let failed = Arc::new(AtomicBool::new(false));
        let (events, receiver) = mpsc::channel(requests.iter().map(most_events).sum::<usize>().max(1));
        let jobs = requests.into_iter().enumerate().map(|(sequence, request)| Job {
            request,
            sequence,
            events: events.clone(),
            failed: Arc::clone(&failed),
            arrived,
            deadline,
        });
        queue.push(jobs.collect())?;
        Ok(Submission { events: receiver, arrived, deadline, unfinished, shared: Arc::clone(&self.shared) })
    }

    /// Routes tokens without generating text. Runs the model on the calling thread, so call it where blocking is allowed.
    ///
    /// # Errors
    /// When there is no token, a token is not in the vocabulary, or the model fails.
    pub fn route(&self, tokens: &[u32]) -> Result<Route, EngineError> {
        let model = self.model();
        let prefix = &tokens[..tokens.len().min(model.prefix_tokens())];
        GenerateRequest { max_tokens: 0, ..GenerateRequest::new(prefix) }.check(
            model.context(),
            model.vocab_size(),
            model.topology().paths(),
        )?;
        model.route(prefix).map_err(|source| EngineError::Model { action: "routing the text".into(), source })
    }

    /// The current load of the engine.
    #[must_use]
    pub fn load(&self) -> Load {
        *self.shared.queue.load().borrow()
    }

    /// The load of the engine, for waiting on its changes.
    #[must_use]
    pub fn watch_load(&self) -> watch::Receiver<Load> {
        self.shared.queue.load()
    }

    /// Refuses new sequences from now on. Admitted sequences go on.
    pub fn close(&self) {
        self.shared.queue.close();
    }

    /// Refuses new sequences and ends the admitted ones with [`EngineError::ShuttingDown`], within one step of the model.
    pub fn abort(&self) {
        self.close();
        self.shared.abort.cancel();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.abort();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("the thread of a slot panicked outside of a request");
            }
        }
    }
}

impl Shared {
    fn serve_slot(&self) {
        let around = Surroundings {
            model: self.model.as_ref(),
            codec: self.codec.as_ref(),
            observer: self.observer.as_ref(),
            abort: &self.abort,
        };
        while let Some(job) = self.queue.pop() {
            let mut summary = job.summary(Outcome::Error);
            // A panic in one request must not take the slot away from all other requests.
            let result = catch_unwind(AssertUnwindSafe(|| job.run(&around, &mut summary)));
            let last = result.unwrap_or_else(|panic| {
                summary.outcome = Outcome::Error;
                let message = message(panic.as_ref());
                tracing::error!(%message, "a request panicked");
                Some(Err(EngineError::Panicked { message }))
            });
            summary.total = job.arrived.elapsed();
            self.observer.finished(&summary);
            self.queue.done(held(&summary));
            if let Some(last) = last {
                // Sent after the counts are updated, so that a caller with its answer also finds the request in the counts.
                // Sending fails only when the caller is gone.
                let _ = job.send(last.map(Event::Finished));
            }
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown panic".into())
}

/// The events of the sequences that were submitted together. Dropping it cancels the unfinished sequences.
pub struct Submission {
    events: mpsc::Receiver<Result<SequenceEvent, EngineError>>,
    arrived: Instant,
    deadline: Duration,
    /// Number of sequences without their last event.
    unfinished: usize,
    shared: Arc<Shared>,
}

impl Submission {
    /// Waits for the next event of any sequence. Returns `None` after the last event of the last sequence.
    ///
    /// The first failure ends all sequences, so a submission is never answered in part. A sequence that is still in the
    /// queue at the deadline fails then, not when it gets a slot. Dropping the returned future loses no event.
    ///
    /// # Errors
    /// The failure of a sequence, the deadline, or the shutdown of the engine.
    pub async fn next(&mut self) -> Result<Option<SequenceEvent>, EngineError> {
        if self.unfinished == 0 {
            return Ok(None);
        }
        let (deadline, at) = (self.deadline, self.arrived.checked_add(self.deadline));
        let over = async {
            match at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        // Events come first: a caller at its deadline still gets the tokens that were made in time.
        let received = tokio::select! {
            biased;
            received = self.events.recv() => received.unwrap_or(Err(EngineError::ShuttingDown)),
            () = self.shared.abort.cancelled() => Err(EngineError::ShuttingDown),
            () = over => Err(EngineError::Deadline { deadline }),
        };
        match &received {
            Ok(SequenceEvent { event: Event::Finished(_), .. }) => self.unfinished -= 1,
            Ok(_) => {}
            Err(_) => self.cancel(),
        }
        received.map(Some)
    }

    /// Ends the sequences that run, and takes the waiting ones out of the queue.
    fn cancel(&mut self) {
        self.unfinished = 0;
        self.events.close();
        // A waiting sequence frees its place in the queue now, not when a slot would take it.
        for job in self.shared.queue.remove_abandoned() {
            let late = job.arrived.elapsed() >= job.deadline;
            let outcome = if late { Outcome::Deadline } else { Outcome::Abort };
            self.shared.observer.finished(&job.summary(outcome));
        }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if self.unfinished > 0 {
            self.cancel();
        }
    }
}
