//! The engine: slots that run sequences.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::job::{Job, Surroundings, held, most_events};
use crate::queue::{Limits, Queue};
use crate::{EngineError, Event, GenerateRequest, Load, Observer, Outcome, Route, RoutedModel, TextCodec};

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
            Queue::new(Limits { requests: config.queued_requests, tokens: config.queued_tokens, slots });
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

    /// Admits all of these sequences, or none of them.
    ///
    /// # Errors
    /// When a request is invalid, the queue is full, or the engine is shutting down.
    pub fn submit(&self, requests: Vec<GenerateRequest>) -> Result<Vec<Generation>, EngineError> {
        let Shared { model, queue, .. } = self.shared.as_ref();
        let (context, vocab_size, paths) = (model.context(), model.vocab_size(), model.topology().paths());
        for request in &requests {
            request.check(context, vocab_size, paths)?;
        }
        let arrived = Instant::now();
        let (mut jobs, mut generations) =
            (Vec::with_capacity(requests.len()), Vec::with_capacity(requests.len()));
        for request in requests {
            let (events, receiver) = mpsc::channel(most_events(&request));
            generations.push(Generation {
                events: receiver,
                arrived,
                deadline: request.deadline,
                over: false,
                shared: Arc::clone(&self.shared),
            });
            jobs.push(Job { request, events, arrived });
        }
        match queue.push(jobs) {
            Ok(()) => Ok(generations),
            Err(error) => {
                // The jobs were never queued, so dropping the generations must not search the queue.
                generations.iter_mut().for_each(|generation| generation.over = true);
                Err(error)
            }
        }
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
                Some(Event::Failed(EngineError::Panicked { message }))
            });
            summary.total = job.arrived.elapsed();
            self.observer.finished(&summary);
            self.queue.done(held(&summary));
            if let Some(last) = last {
                // Sent after the counts are updated, so that a caller with its answer also finds the request in the counts.
                // Sending fails only when the caller is gone.
                let _ = job.events.try_send(last);
            }
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown panic".into())
}

/// The events of an admitted sequence. Dropping it cancels the sequence.
pub struct Generation {
    events: mpsc::Receiver<Event>,
    arrived: Instant,
    deadline: Duration,
    over: bool,
    shared: Arc<Shared>,
}

impl Generation {
    /// Waits for the next event; `None` after [`Event::Finished`] or [`Event::Failed`]. A sequence that is still in the queue
    /// at its deadline fails at the deadline, not when it gets a slot.
    pub async fn next(&mut self) -> Option<Event> {
        if self.over {
            return None;
        }
        let deadline = self.deadline;
        let at = self.arrived.checked_add(deadline);
        let received = match at {
            Some(at) => tokio::time::timeout_at(at.into(), self.events.recv()).await,
            None => Ok(self.events.recv().await),
        };
        let event = match received {
            Ok(Some(event)) => event,
            Ok(None) => Event::Failed(EngineError::ShuttingDown),
            Err(_) => Event::Failed(EngineError::Deadline { deadline }),
        };
        self.over = matches!(event, Event::Finished(_) | Event::Failed(_));
        Some(event)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.over && self.events.is_closed() {
            return;
        }
        self.events.close();
        // A waiting sequence frees its place in the queue now, not when a slot would take it.
        for job in self.shared.queue.remove_abandoned() {
            let outcome = if job.arrived.elapsed() >= job.request.deadline {
                Outcome::Deadline
            } else {
                Outcome::Abort
            };
            self.shared.observer.finished(&job.summary(outcome));
        }
    }
}
