//! The answer to a completion while its choices are generated.

use std::sync::Arc;
use std::time::Instant;

use dipaco_infer::Submission;
use dipaco_topology::PathId;

use crate::ServerState;
use crate::completions::choice::Choice;
use crate::completions::response::{CompletionChoice, CompletionResponse, PromptTokens, Usage};
use crate::error::ApiError;

/// An unfinished answer. Dropping it cancels the running choices, and writes the line of the request to the log. An aborted
/// request is therefore logged too.
pub(crate) struct Answer {
    pub(crate) state: Arc<ServerState>,
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
    pub(crate) log: Log,
}

/// The line of a request in the log.
pub(crate) struct Log {
    pub(crate) id: String,
    pub(crate) began: Instant,
    pub(crate) outcome: &'static str,
}

impl Answer {
    /// Waits for the next piece of any choice; `None` when all choices are complete. Dropping the future loses no piece.
    pub(crate) async fn next(&mut self) -> Result<Option<CompletionChoice>, ApiError> {
        // The outcome stays `abort` until an event decides it, because a client that leaves drops the answer.
        let event = self.submission.next().await.inspect_err(|_| self.log.outcome = "error")?;
        let Some(event) = event else {
            self.log.outcome = "done";
            return Ok(None);
        };
        let piece = self.choices[event.sequence].take(event.event);
        piece.map(Some).inspect_err(|_| self.log.outcome = "error")
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

    /// The body with these choices.
    pub(crate) fn body<'a>(
        &'a self,
        choices: &'a [CompletionChoice],
        usage: Option<Usage>,
    ) -> CompletionResponse<'a> {
        CompletionResponse {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.state.run.fingerprint,
            choices,
            usage,
        }
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

    fn generated(&self) -> usize {
        self.choices.iter().map(|choice| choice.generated).sum()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let paths: Vec<_> = self.choices.iter().filter_map(|choice| choice.path).map(|path| path.0).collect();
        tracing::info!(
            id = self.log.id,
            model = self.model,
            choices = self.choices.len(),
            ?paths,
            prompt_tokens = self.prompt_tokens,
            completion_tokens = self.generated(),
            seconds = self.log.began.elapsed().as_secs_f64(),
            outcome = self.log.outcome,
            "completion"
        );
    }
}
