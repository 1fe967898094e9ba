//! The engine: admission, and the threads that route sequences and run steps.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dipaco_model::PAGE_TOKENS;
use dipaco_topology::PathId;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::job::{Job, most_events};
use crate::loads;
use crate::observer::Guarded;
use crate::reroute;
use crate::routes;
use crate::runner;
use crate::scheduler::{Arrival, Limits, Scheduler, SequenceId};
use crate::shared::{Question, Shared, SharedState, Unrouted};
use crate::{Dtype, EngineError, GenerateRequest, Load, Observer, Route, RoutedModel, Submission, TextCodec};

/// Callers that may wait for a route.
const QUESTIONS: usize = 1024;

/// Limits of the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Number of sequences that run at a time; 0 takes [`EngineConfig::SLOTS`].
    pub slots: usize,
    /// Number of sequences that may wait for their turn.
    pub queued_requests: usize,
    /// Number of prompt tokens that may wait for their turn.
    pub queued_tokens: usize,
    /// Largest number of tokens of a step, at least `slots`. More tokens read prompts with less work in all.
    pub step_tokens: usize,
    /// Longest step with prompts while sequences generate, in times of a step without prompts. A smaller number gives prompts
    /// fewer tokens of a step, and the others wait less for their next token.
    pub prompt_slowdown: f64,
    /// Memory of keys and values in bytes, at least that of one sequence; 0 takes the memory of all slots, at most
    /// [`EngineConfig::KV_BYTES`].
    pub kv_bytes: usize,
    /// Type of keys and values. bf16 takes half the memory and rounds.
    pub kv_type: Dtype,
    /// Number of threads; 0 takes the number of cores.
    pub threads: usize,
}

impl EngineConfig {
    /// Sequences that run at a time by default.
    pub const SLOTS: usize = 32;
    /// Largest memory of keys and values by default, in bytes.
    pub const KV_BYTES: usize = 2 << 30;
    /// Longest step with prompts by default. It leaves room below 2 for the noise of a machine.
    pub const PROMPT_SLOWDOWN: f64 = 1.75;

    /// Number of sequences that run at a time.
    #[must_use]
    pub fn places(&self) -> usize {
        if self.slots == 0 { Self::SLOTS } else { self.slots }
    }

    /// Number of pages of keys and values, for sequences of at most `context` tokens and pages of `page_bytes` bytes.
    #[must_use]
    pub fn pages(&self, context: usize, page_bytes: usize) -> usize {
        let (sequence, page) = (context.div_ceil(PAGE_TOKENS), page_bytes.max(1));
        let wanted = match self.kv_bytes {
            0 => self.places().saturating_mul(sequence).min(Self::KV_BYTES / page),
            bytes => bytes / page,
        };
        wanted.max(sequence)
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            slots: 0,
            queued_requests: 1024,
            queued_tokens: 1 << 20,
            step_tokens: 128,
            prompt_slowdown: Self::PROMPT_SLOWDOWN,
            kv_bytes: 0,
            kv_type: Dtype::F32,
            threads: 0,
        }
    }
}

/// Runs sequences on paths. Dropping it cancels all sequences and waits for the current step.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    slots: usize,
}

impl Engine {
    /// Starts the threads, reserves the memory of keys and values and runs a first step, for which it waits.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn start(
        model: Arc<dyn RoutedModel>,
        codec: Arc<dyn TextCodec>,
        observer: Arc<dyn Observer>,
        config: &EngineConfig,
    ) -> std::io::Result<Self> {
        let slots = config.places();
        let pages = config.pages(model.context(), model.page_bytes(config.kv_type));
        let scheduler = Scheduler::new(Limits {
            sequences: slots,
            step_tokens: config.step_tokens,
            prompt_slowdown: config.prompt_slowdown,
            queued_sequences: config.queued_requests,
            queued_tokens: config.queued_tokens,
            pages,
        });
        let load = watch::Sender::new(scheduler.load());
        let state = SharedState::new(scheduler);
        let shared = Arc::new(Shared {
            model,
            codec,
            observer: Arc::new(Guarded(observer)),
            abort: CancellationToken::new(),
            ended: OnceLock::new(),
            broken: CancellationToken::new(),
            load,
            state: Mutex::new(state),
            change: Condvar::new(),
        });
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(config.threads)
            .thread_name(|number| format!("dipaco-step-{number}"))
            .build()
            .map_err(std::io::Error::other)?;
        let mut engine = Self { shared, threads: Vec::with_capacity(3), slots };
        let (kv, step_tokens) = (config.kv_type, config.step_tokens);
        let (warm, warmed) = std::sync::mpsc::sync_channel(1);
        engine.spawn("dipaco-engine", move |shared| {
            let model = Arc::clone(&shared.model);
            let mut executor = model.executor(pages, kv);
            runner::warm_up(shared, &pool, executor.as_mut(), step_tokens);
            // Sending fails only when the caller is gone.
            let _ = warm.send(());
            runner::run(shared, &pool, executor.as_mut());
        })?;
        engine.spawn("dipaco-router", routes::run)?;
        engine.spawn("dipaco-loader", loads::run)?;
        // A thread that panics drops its end. Requests then learn of it.
        let _ = warmed.recv();
        Ok(engine)
    }

    fn spawn(
        &mut self,
        name: &'static str,
        run: impl FnOnce(&Shared) + Send + 'static,
    ) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(thread.spawn(move || shared.run_thread(name, run))?);
        Ok(())
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

    /// Refuses sequences of a client that [`Engine::submit`] would refuse now, whatever their prompts are. A caller that asks
    /// first tokenizes no prompts in vain.
    ///
    /// # Errors
    /// When the queue is full and the client has its share of it, or when even an empty queue has no room.
    pub fn check_queue(&self, client: u64, sequences: usize) -> Result<(), EngineError> {
        self.shared.lock().scheduler.check_queue(client, sequences, 0)
    }

    /// Admits all of these sequences, or none of them. `deadline` is the time from now to the last token of all of them.
    ///
    /// # Errors
    /// When a request is invalid, the queue is full or too long for the deadline, or the engine is shutting down.
    pub fn submit(
        &self,
        requests: Vec<GenerateRequest>,
        deadline: Duration,
    ) -> Result<Submission, EngineError> {
        let Shared { model, .. } = self.shared.as_ref();
        let (context, vocab_size, paths) = (model.context(), model.vocab_size(), model.topology().paths());
        for request in &requests {
            request.check(context, vocab_size, paths)?;
            reroute::check(request, model.reroutes())?;
        }
        let (arrived, unfinished) = (Instant::now(), requests.len());
        let (events, receiver) = mpsc::channel(requests.iter().map(most_events).sum::<usize>().max(1));
        let chunks: Vec<_> = requests.iter().map(reroute::chunks).collect();
        let arrivals = requests.iter().zip(&chunks).map(|(request, &chunks)| Arrival {
            client: request.client,
            priority: request.priority,
            prompt: Arc::clone(&request.prompt),
            max_tokens: request.max_tokens,
            reads_cache: request.prompt_log_probs.is_none(),
            chunks,
        });
        let arrivals = arrivals.collect();
        let same = |pair: &[GenerateRequest]| pair[1].shares_prompt_of(&pair[0]);
        let shares: Vec<bool> = std::iter::once(false).chain(requests.windows(2).map(same)).collect();
        let most = model.prefix_tokens();
        // All sequences use the weights of this moment, whenever they begin.
        let generation = model.generation();
        let mut state = self.shared.lock();
        if state.closed {
            return Err(self.shared.stopped());
        }
        let sequences = state.scheduler.admit(arrivals, deadline)?;
        state.submissions += 1;
        let submission = state.submissions;
        let new = requests.into_iter().zip(chunks).zip(shares).zip(&sequences);
        let mut routed = Vec::new();
        for (sequence, (((request, chunks), shares_prompt), &id)) in new.enumerate() {
            let kept = request.route_every.map(|_| Arc::clone(&generation));
            routed.extend(state.route(Unrouted::new(id, &request, chunks, most, Arc::clone(&generation))));
            let (events, place, routing) = (events.clone(), None, None);
            let job = Job {
                request,
                sequence,
                shares_prompt,
                submission,
                events,
                arrived,
                deadline,
                place,
                routing,
                generation: kept,
            };
            state.waiting.insert(id, job);
        }
        self.shared.changed(&state);
        drop(state);
        let shared = Arc::clone(&self.shared);
        let fingerprint = generation.fingerprint();
        let submission =
            Submission { events: receiver, arrived, deadline, unfinished, sequences, fingerprint, shared };
        // These need no pass of the router, so they do not wait for the one that it is in.
        routed.into_iter().for_each(|routed| self.shared.give_modules(routed));
        Ok(submission)
    }

    /// Routes tokens without generating text. The thread that routes sequences does it, so there is one pass of the router at
    /// a time, and a text of the last ones costs none.
    ///
    /// # Errors
    /// When there is no token, a token is not in the vocabulary, too many callers wait, or the model fails.
    pub async fn route(&self, tokens: &[u32]) -> Result<Route, EngineError> {
        let model = self.model();
        let prefix = &tokens[..tokens.len().min(model.prefix_tokens())];
        GenerateRequest { max_tokens: 0, ..GenerateRequest::new(prefix) }.check(
            model.context(),
            model.vocab_size(),
            model.topology().paths(),
        )?;
        let route = self.ask(prefix.into())?;
        match route.await {
            Ok(route) => route,
            // A thread that panics drops the question before it gives the reason.
            Err(_) => {
                self.shared.abort.cancelled().await;
                Err(self.shared.stopped())
            }
        }
    }

    fn ask(&self, prefix: Arc<[u32]>) -> Result<oneshot::Receiver<Result<Route, EngineError>>, EngineError> {
        let (answer, route) = oneshot::channel();
        let mut state = self.shared.lock();
        if state.closed {
            return Err(self.shared.stopped());
        }
        if let Some(known) = state.routes.get(&prefix) {
            // Sending fails only when the caller is gone.
            let _ = answer.send(Ok(known.clone()));
            return Ok(route);
        }
        // Callers that went away leave their questions.
        state.questions.retain(|question| !question.answer.is_closed());
        let waiting = state.questions.len();
        if waiting >= QUESTIONS {
            let retry_after = Duration::from_secs(1);
            return Err(EngineError::Overloaded { waiting, limit: QUESTIONS, unit: "routes", retry_after });
        }
        state.questions.push_back(Question { prefix, answer });
        self.shared.changed(&state);
        Ok(route)
    }

    /// The current load of the engine.
    #[must_use]
    pub fn load(&self) -> Load {
        *self.shared.load.borrow()
    }

    /// Number of waiting sequences of each path. Sequences whose path is not known yet are left out.
    #[must_use]
    pub fn waiting_by_path(&self) -> BTreeMap<PathId, usize> {
        let state = self.shared.lock();
        let routed: BTreeMap<SequenceId, PathId> =
            state.unloaded.iter().map(|routed| (routed.id, routed.path)).collect();
        let mut paths = BTreeMap::new();
        for (id, job) in &state.waiting {
            let placed = job.place.as_ref().map(|(path, _)| *path);
            if let Some(path) = placed.or_else(|| routed.get(id).copied()).or(job.request.path) {
                *paths.entry(path).or_insert(0) += 1;
            }
        }
        paths
    }

    /// The load of the engine, for waiting on its changes.
    #[must_use]
    pub fn watch_load(&self) -> watch::Receiver<Load> {
        self.shared.load.subscribe()
    }

    /// Refuses new sequences from now on. Admitted sequences go on.
    pub fn close(&self) {
        self.shared.lock().closed = true;
    }

    /// Refuses new sequences and ends the admitted ones with [`EngineError::ShuttingDown`], within one step of the model.
    pub fn abort(&self) {
        self.shared.stop();
    }

    /// Why the engine answers nothing any more, if one of its threads ended by a bug.
    #[must_use]
    pub fn failure(&self) -> Option<EngineError> {
        self.shared.ended.get().map(|_| self.shared.stopped())
    }

    /// Waits until a thread of the engine has ended by a bug. Then all sequences have ended.
    pub async fn failed(&self) {
        self.shared.broken.cancelled().await;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.abort();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the engine panicked outside of a request");
            }
        }
    }
}
