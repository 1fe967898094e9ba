//! One sequence, from its start to its last event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dipaco_topology::PathId;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::queue::QueueEntry;
use crate::{
    BoxError, EngineError, GenerateRequest, Observer, Outcome, RequestSummary, Route, RoutedModel, Sequence,
    Stop, StopMatcher, TextCodec, TextStream, TokenSampler, TokenScore, score,
};

/// Number of prompt tokens per call of the model. Between two calls the job checks whether the caller still waits. The
/// value affects rounding, so it is the same for every request: a prompt gives the same logits with all options.
const PREFILL_CHUNK: usize = 128;

/// Number of prompt tokens that the decoder of the continuation reads first, more than a character has bytes.
const DECODER_CONTEXT: usize = 8;

/// Reason for the end of a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop text, a stop token or the end-of-text token.
    Stop,
    /// The requested number of tokens was generated.
    Length,
}

/// The stop text or stop token of the request that ended a continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// This stop text.
    Text(String),
    /// This stop token.
    Token(u32),
}

/// The end of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Reason for the end.
    pub reason: FinishReason,
    /// Stop text or stop token that ended it; `None` for a token of [`TextCodec::end_tokens`] or the length.
    pub stop: Option<StopReason>,
    /// Remaining text that was held back.
    pub text: String,
    /// Number of generated tokens, including the end token.
    pub generated_tokens: usize,
}

/// An event of one of the sequences of a submission.
#[derive(Debug)]
pub struct SequenceEvent {
    /// Index of the sequence's request in the submission.
    pub sequence: usize,
    /// The event.
    pub event: Event,
}

/// Events of a sequence, in this order: `Started`, `Prompt` if the request scores its prompt, `Token` for each token, then
/// `Finished`. An error can take the place of each of them and is the last.
#[derive(Debug)]
pub enum Event {
    /// The sequence left the queue and has its path.
    Started {
        /// The path.
        path: PathId,
        /// The router's decision; `None` for a pinned path.
        route: Option<Route>,
    },
    /// The scores of the prompt, one per token. The first token has no log-probability.
    Prompt(Vec<TokenScore>),
    /// A generated token.
    Token {
        /// The token.
        token: u32,
        /// Complete characters that can't be part of a stop text; may be empty.
        text: String,
        /// Number of characters that the earlier tokens completed, including characters held back.
        offset: usize,
        /// Score of the token, if the request asks for log-probabilities.
        score: Option<TokenScore>,
    },
    /// The sequence is complete.
    Finished(Finished),
}

/// A sequence in the queue.
pub(crate) struct Job {
    pub(crate) request: GenerateRequest,
    /// Index of the request in its submission.
    pub(crate) sequence: usize,
    pub(crate) events: mpsc::Sender<Result<SequenceEvent, EngineError>>,
    /// True once a sequence of the submission has failed. The others end then, whenever their caller learns of it.
    pub(crate) failed: Arc<AtomicBool>,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Duration,
}

impl QueueEntry for Job {
    fn tokens(&self) -> usize {
        self.request.prompt.len()
    }

    fn abandoned(&self) -> bool {
        self.events.is_closed() || self.failed.load(Ordering::Acquire)
    }
}

/// Parts of the engine that a running job uses.
pub(crate) struct Surroundings<'a> {
    pub(crate) model: &'a dyn RoutedModel,
    pub(crate) codec: &'a dyn TextCodec,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) abort: &'a CancellationToken,
}

/// Reason for stopping a job before its end.
pub(crate) enum Halt {
    /// The caller went away.
    Gone,
    Failed(EngineError),
}

impl From<EngineError> for Halt {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

fn failed(action: impl Into<String>) -> impl FnOnce(BoxError) -> Halt {
    let action = action.into();
    move |source| Halt::Failed(EngineError::Model { action, source })
}

impl Job {
    /// The summary of a job that has not begun.
    pub(crate) fn summary(&self, outcome: Outcome) -> RequestSummary {
        let waited = self.arrived.elapsed();
        RequestSummary {
            path: self.request.path,
            outcome,
            prompt_tokens: self.request.prompt.len(),
            generated_tokens: 0,
            max_tokens: self.request.max_tokens,
            queued: waited,
            routing: None,
            prefill: None,
            first_token: None,
            total: waited,
        }
    }

    /// Runs the sequence and returns its end; `None` when the caller is gone. The slot sends the end after it has counted the
    /// sequence. `summary` is updated at each step, so that it is right even after a panic.
    pub(crate) fn run(
        &self,
        around: &Surroundings<'_>,
        summary: &mut RequestSummary,
    ) -> Option<Result<Finished, EngineError>> {
        let result = self.generate(around, summary);
        let (outcome, end) = match result {
            Ok(finished) => {
                let outcome = match finished.reason {
                    FinishReason::Stop => Outcome::Stop,
                    FinishReason::Length => Outcome::Length,
                };
                (outcome, Some(Ok(finished)))
            }
            Err(Halt::Gone) => (Outcome::Abort, None),
            Err(Halt::Failed(error)) => {
                let outcome = match &error {
                    EngineError::Deadline { .. } => Outcome::Deadline,
                    EngineError::ShuttingDown => Outcome::ShuttingDown,
                    _ => Outcome::Error,
                };
                (outcome, Some(Err(error)))
            }
        };
        summary.outcome = if self.events.is_closed() { Outcome::Abort } else { outcome };
        end
    }

    fn generate(&self, around: &Surroundings<'_>, summary: &mut RequestSummary) -> Result<Finished, Halt> {
        let request = &self.request;
        let began = Instant::now();
        self.still_wanted(around)?;
        let path = self.start(around, summary)?;
        let vocab_size = around.model.vocab_size();
        let mut finished =
            Finished { reason: FinishReason::Length, stop: None, text: String::new(), generated_tokens: 0 };
        if request.max_tokens == 0 && !request.score_prompt {
            return Ok(finished);
        }

        let mut sequence =
            around.model.begin(path).map_err(failed(format!("starting a sequence on path {path}")))?;
        let mut logits = self.prefill(around, sequence.as_mut(), path)?;
        summary.prefill = Some(began.elapsed());

        let mut sampler = TokenSampler::new(request.sampling.clone(), &request.prompt);
        let mut text = ContinuationText::new(around.codec, request);
        let mut ends = request.stop_token_ids.clone();
        if !request.ignore_eos {
            ends.extend(around.codec.end_tokens());
        }
        let mut last = Instant::now();
        while finished.generated_tokens < request.max_tokens {
            self.still_wanted(around)?;
            // Before `min_tokens` no token may end the continuation, so the ending tokens are banned.
            let free = finished.generated_tokens >= request.min_tokens;
            let banned = if free { &[][..] } else { &ends };
            let token = sampler.choose(&logits, banned).ok_or(EngineError::NotFinite { path })?;
            // From the raw logits: clients compare log-probabilities of runs with different sampling.
            let scored = request.log_probs.map(|top| score(&logits, token, top));
            let score = scored.map(|score| score.ok_or(EngineError::NotFinite { path })).transpose()?;
            finished.generated_tokens += 1;
            summary.generated_tokens = finished.generated_tokens;
            if finished.generated_tokens == 1 {
                summary.first_token = Some(self.arrived.elapsed());
            } else {
                around.observer.token(last.elapsed());
            }
            last = Instant::now();

            let offset = text.characters;
            let stops_here = ends.contains(&token);
            let mut piece = String::new();
            if stops_here {
                finished.reason = FinishReason::Stop;
                let asked = request.stop_token_ids.contains(&token);
                finished.stop = asked.then_some(StopReason::Token(token));
                if asked && request.include_stop {
                    text.held.push_str(&around.codec.token_text(token));
                }
            } else {
                let stop;
                (piece, stop) = text.push(token, free)?;
                if let Some(stop) = stop {
                    finished.reason = FinishReason::Stop;
                    if request.include_stop {
                        piece.push_str(&stop);
                    }
                    finished.stop = Some(StopReason::Text(stop));
                }
            }
            self.send(Ok(Event::Token { token, text: piece, offset, score }))?;
            match finished.reason {
                FinishReason::Stop => break,
                FinishReason::Length if finished.generated_tokens < request.max_tokens => {
                    logits =
                        sequence.feed(&[token], false).map_err(failed(format!("a step of path {path}")))?;
                    expect(&logits, vocab_size, path)?;
                }
                FinishReason::Length => {}
            }
        }
        // Text after a stop text is not part of the continuation.
        if !matches!(finished.stop, Some(StopReason::Text(_))) {
            finished.text = text.finish();
        }
        Ok(finished)
    }

    /// Finds the path of the sequence and sends [`Event::Started`].
    fn start(&self, around: &Surroundings<'_>, summary: &mut RequestSummary) -> Result<PathId, Halt> {
        let prompt = &self.request.prompt;
        let route = match self.request.path {
            Some(_) => None,
            None => {
                let began = Instant::now();
                let prefix = &prompt[..prompt.len().min(around.model.prefix_tokens())];
                let route = around.model.route(prefix).map_err(failed("routing the prompt"))?;
                summary.routing = Some(began.elapsed());
                Some(route)
            }
        };
        let path = match (&route, self.request.path) {
            (Some(route), _) => route.path,
            (None, Some(path)) => path,
            (None, None) => return Err(Halt::Failed(EngineError::EmptyPrompt)),
        };
        summary.path = Some(path);
        self.send(Ok(Event::Started { path, route }))?;
        Ok(path)
    }

    /// Reads the prompt and returns the logits (V) of its last position. Sends the prompt's scores if the request asks for
    /// them.
    fn prefill(
        &self,
        around: &Surroundings<'_>,
        sequence: &mut dyn Sequence,
        path: PathId,
    ) -> Result<Vec<f32>, Halt> {
        let Self { request, .. } = self;
        let vocab_size = around.model.vocab_size();
        let top = request.log_probs.unwrap_or(0);
        let mut scores = vec![TokenScore { token: request.prompt[0], log_prob: None, top: Vec::new() }];
        let mut logits = Vec::new();
        for (number, chunk) in request.prompt.chunks(PREFILL_CHUNK).enumerate() {
            self.still_wanted(around)?;
            logits = sequence
                .feed(chunk, request.score_prompt)
                .map_err(failed(format!("reading the prompt on path {path}")))?;
            let rows = if request.score_prompt { chunk.len() } else { 1 };
            expect(&logits, rows * vocab_size, path)?;
            if request.score_prompt {
                let next = number * PREFILL_CHUNK + 1;
                for (row, &token) in logits.chunks_exact(vocab_size).zip(&request.prompt[next..]) {
                    scores.push(score(row, token, top).ok_or(EngineError::NotFinite { path })?);
                }
            }
        }
        if request.score_prompt {
            logits.drain(..logits.len() - vocab_size);
            self.send(Ok(Event::Prompt(scores)))?;
        }
        Ok(logits)
    }

    /// Returns an error when the job must stop. Called between any two steps of the model.
    fn still_wanted(&self, around: &Surroundings<'_>) -> Result<(), Halt> {
        if self.abandoned() {
            return Err(Halt::Gone);
        }
        if around.abort.is_cancelled() {
            return Err(EngineError::ShuttingDown.into());
        }
        let deadline = self.deadline;
        if self.arrived.elapsed() >= deadline {
            return Err(EngineError::Deadline { deadline }.into());
        }
        Ok(())
    }

    /// Sends an event or the failure of the sequence.
    pub(crate) fn send(&self, event: Result<Event, EngineError>) -> Result<(), Halt> {
        if event.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        let event = event.map(|event| SequenceEvent { sequence: self.sequence, event });
        // The channel has room for all events of the submission, so sending fails only when the caller is gone.
        self.events.try_send(event).map_err(|_| Halt::Gone)
    }
}

/// Largest number of events of a request: `Started`, `Prompt`, each `Token`, the last event, and one to spare.
pub(crate) fn most_events(request: &GenerateRequest) -> usize {
    request.max_tokens + 4
}

fn expect(logits: &[f32], expected: usize, path: PathId) -> Result<(), Halt> {
    let given = logits.len();
    if given == expected { Ok(()) } else { Err(EngineError::Shape { path, given, expected }.into()) }
}

/// The text of a continuation: its decoder and its stop texts.
struct ContinuationText {
    stream: Box<dyn TextStream>,
    /// Absent for a request without stop texts.
    stops: Option<StopMatcher>,
    /// Number of characters decoded so far.
    characters: usize,
    /// Text of the last token, to append after the rest of the matcher and the decoder.
    held: String,
}

impl ContinuationText {
    fn new(codec: &dyn TextCodec, request: &GenerateRequest) -> Self {
        let prompt = &request.prompt;
        let stream = codec.stream(&prompt[prompt.len().saturating_sub(DECODER_CONTEXT)..]);
        let stops = (!request.stop.is_empty()).then(|| StopMatcher::new(&request.stop));
        Self { stream, stops, characters: 0, held: String::new() }
    }

    /// Returns the text to send for a token, and the stop text that the token completed.
    fn push(&mut self, token: u32, may_stop: bool) -> Result<(String, Option<String>), Halt> {
        let piece = self.stream.push(token).map_err(failed("decoding a token"))?;
        self.characters += piece.chars().count();
        Ok(match self.stops.as_mut().filter(|_| may_stop).map(|stops| stops.push(&piece)) {
            None => (piece, None),
            Some(Stop::Continue(text)) => (text, None),
            Some(Stop::Reached { before, stop }) => (before, Some(stop)),
        })
    }

    /// Returns the text held back so far.
    fn finish(&mut self) -> String {
        let mut text = self.stops.as_mut().map(StopMatcher::finish).unwrap_or_default();
        text.push_str(&self.stream.finish());
        text.push_str(&self.held);
        text
    }
}

/// Time that a job held a slot, for the estimate of the queue.
pub(crate) fn held(summary: &RequestSummary) -> Duration {
    summary.total.saturating_sub(summary.queued)
}
