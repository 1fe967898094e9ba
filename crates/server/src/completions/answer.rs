//! The answer to a completion while its choices are generated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use dipaco_infer::{GenerationEvent, Submission};
use dipaco_topology::PathId;

use crate::ServerState;
use crate::completions::chat::{ChatChoice, ChatResponse};
use crate::completions::choice::Choice;
use crate::completions::request::Form;
use crate::completions::response::{CompletionChoice, CompletionResponse, PromptTokens, Usage, UsageField};
use crate::deadline::Deadline;
use crate::error::{ApiError, LEFT};

/// Most paths in the log: a client must not fill it.
const MOST_PATHS: usize = 16;

/// An unfinished answer. Dropping it cancels the running choices, and writes the line of the request to the log. An aborted
/// request is therefore logged too.
pub(crate) struct Answer {
    pub(crate) state: Arc<ServerState>,
    pub(crate) form: Form,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) prompt_tokens: usize,
    /// All choices, prompt by prompt.
    pub(crate) choices: Vec<Choice>,
    /// Number of choices of each prompt, at least one.
    pub(crate) choices_per_prompt: usize,
    /// The sequences behind the choices, in the same order.
    pub(crate) submission: Submission,
    pub(crate) deadline: Deadline,
    pub(crate) log: Log,
}

/// The line of a request in the log.
pub(crate) struct Log {
    id: String,
    /// The span of the request. The body of a stream is made outside of it.
    span: tracing::Span,
    began: Instant,
    /// Names of fields of the request that this server does not know.
    unknown: Vec<String>,
    outcome: &'static str,
    /// Status of the error that ended the request, or else that of its answer: [`LEFT`] until the answer begins, as in the
    /// metrics, and then 200.
    status: u16,
    /// Number of choices that ended for each reason.
    reasons: BTreeMap<&'static str, usize>,
    /// Seconds in the queue of the first choice that left it.
    queued: Option<f64>,
    /// Seconds from the request's arrival to its first token.
    first_token: Option<f64>,
}

impl Log {
    /// The line of a request that arrived at `began` with the fields `unknown`, which this server does not know.
    pub(crate) fn new(id: String, began: Instant, unknown: Vec<String>) -> Self {
        // The outcome stays `abort` until an event decides it, because a client that leaves drops the answer.
        Self {
            id,
            span: tracing::Span::current(),
            began,
            unknown,
            outcome: "abort",
            status: LEFT,
            reasons: BTreeMap::new(),
            queued: None,
            first_token: None,
        }
    }

    pub(crate) fn failed(&mut self, error: &ApiError) {
        self.outcome = "error";
        self.status = error.status.as_u16();
    }

    /// The head of the answer is made, with status 200.
    pub(crate) fn begun(&mut self) {
        self.status = 200;
    }

    /// The reasons of the ends of the choices with their numbers; `None` while none has ended.
    fn finish_reasons(&self) -> Option<String> {
        let counts = self.reasons.iter().map(|(reason, count)| format!("{reason}={count}"));
        let counts: Vec<String> = counts.collect();
        (!counts.is_empty()).then(|| counts.join(" "))
    }

    fn saw(&mut self, event: &GenerationEvent) {
        match event {
            GenerationEvent::Began { queued } => self.queued = self.queued.or(Some(queued.as_secs_f64())),
            GenerationEvent::Token { .. } => {
                self.first_token = self.first_token.or_else(|| Some(self.began.elapsed().as_secs_f64()));
            }
            GenerationEvent::Started { .. } | GenerationEvent::Prompt(_) | GenerationEvent::Finished(_) => {}
        }
    }
}

impl Answer {
    /// Waits for the next piece of any choice; `None` when all choices are complete. Dropping the future loses no piece.
    pub(crate) async fn next(&mut self) -> Result<Option<CompletionChoice>, ApiError> {
        loop {
            // The reason of a failure goes to the log only, with the id that the client knows.
            let failed = |error| self.log.span.in_scope(|| self.deadline.failure(error));
            let event = self.submission.next().await.map_err(failed);
            let Some(event) = event.inspect_err(|error| self.log.failed(error))? else {
                self.log.outcome = "done";
                return Ok(None);
            };
            self.log.saw(&event.event);
            let piece = self.choices[event.sequence].take(event.event);
            if let Some(piece) = piece.inspect_err(|error| self.log.failed(error))? {
                if let Some(reason) = piece.finish_reason {
                    *self.log.reasons.entry(reason).or_default() += 1;
                }
                return Ok(Some(piece));
            }
        }
    }

    /// Waits for all choices.
    pub(crate) async fn complete(&mut self) -> Result<Vec<CompletionChoice>, ApiError> {
        let empty = |index| CompletionChoice { index, ..CompletionChoice::default() };
        let mut choices: Vec<CompletionChoice> = (0..self.choices.len()).map(empty).collect();
        while let Some(piece) = self.next().await? {
            choices[piece.index].append(piece);
        }
        Ok(choices)
    }

    /// The body with these choices as JSON: the whole answer, or a chunk of a stream.
    pub(crate) fn json(
        &self,
        choices: Vec<CompletionChoice>,
        usage: UsageField,
        whole: bool,
    ) -> Result<Vec<u8>, ApiError> {
        let (id, created, model) = (&self.id, self.created, &self.model);
        let system_fingerprint = self.submission.fingerprint();
        let written = match self.form {
            Form::Text => {
                let (object, choices) = ("text_completion", choices.as_slice());
                serde_json::to_vec(&CompletionResponse {
                    id,
                    object,
                    created,
                    model,
                    system_fingerprint,
                    choices,
                    usage,
                })
            }
            Form::Chat => {
                let object = if whole { "chat.completion" } else { "chat.completion.chunk" };
                let codec = self.state.codec.as_ref();
                let choice = |choice| ChatChoice::new(choice, whole, codec);
                let choices = choices.into_iter().map(choice).collect();
                serde_json::to_vec(&ChatResponse {
                    id,
                    object,
                    created,
                    model,
                    system_fingerprint,
                    choices,
                    usage,
                })
            }
        };
        written.map_err(|error| ApiError::bug(format!("can't write an answer as JSON: {error}")))
    }

    pub(crate) fn usage(&self) -> Usage {
        let (prompt_tokens, completion_tokens) = (self.prompt_tokens, self.generated());
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokens { cached_tokens: self.cached() },
        }
    }

    /// Prompt tokens that came from the prefix cache. A prompt counts once, so its choices count as their first does.
    fn cached(&self) -> usize {
        self.choices
            .chunks(self.choices_per_prompt)
            .filter_map(|choices| choices.first())
            .map(|c| c.cached)
            .sum()
    }

    /// The path of each prompt, as far as it is known.
    pub(crate) fn paths(&self) -> impl Iterator<Item = Option<PathId>> {
        self.choices
            .chunks(self.choices_per_prompt)
            .map(|choices| choices.iter().find_map(|choice| choice.path))
    }

    /// The paths of the first `most` prompts in their order, with commas between them. The place of a path that is not known
    /// stays empty. `None` while no path is known.
    pub(crate) fn named_paths(&self, most: usize) -> Option<String> {
        if self.paths().all(|path| path.is_none()) {
            return None;
        }
        let named = |path: Option<PathId>| path.map(|path| path.to_string()).unwrap_or_default();
        let mut paths: Vec<String> = self.paths().take(most).map(named).collect();
        if self.paths().nth(most).is_some() {
            paths.push("…".to_owned());
        }
        Some(paths.join(","))
    }

    fn generated(&self) -> usize {
        self.choices.iter().map(|choice| choice.generated).sum()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // The body of a stream is made outside of the span. The line has the id itself, and no
        // parent that would add it again in lines for people.
        self.log.span.in_scope(|| {
            tracing::info!(
                parent: None,
                id = self.log.id,
                model = self.model,
                choices = self.choices.len(),
                paths = self.named_paths(MOST_PATHS),
                prompt_tokens = self.prompt_tokens,
                completion_tokens = self.generated(),
                cached_tokens = self.cached(),
                queued_seconds = self.log.queued,
                first_token_seconds = self.log.first_token,
                seconds = self.log.began.elapsed().as_secs_f64(),
                outcome = self.log.outcome,
                finish_reasons = self.log.finish_reasons(),
                status = self.log.status,
                // Absent in most lines.
                unknown_fields =
                    (!self.log.unknown.is_empty()).then(|| tracing::field::debug(&self.log.unknown)),
                "completion"
            );
        });
    }
}
