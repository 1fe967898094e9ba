//! A completion's answer as one JSON object.

use std::sync::Arc;
use std::time::Instant;

use dipaco_topology::PathId;
use serde_json::{Value, json};

use crate::ServerState;
use crate::completions::choice::{Choice, Part};
use crate::completions::source::Source;
use crate::error::ApiError;

/// An unfinished answer. Dropping it writes the line of the request to the log, so an aborted request is logged too.
pub(crate) struct Answer {
    pub(crate) state: Arc<ServerState>,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) prompt_tokens: usize,
    /// The seed, for a request with `return_route`.
    pub(crate) seed: Option<u64>,
    pub(crate) choices: Vec<Choice>,
    pub(crate) log: Log,
}

/// A complete answer.
pub(crate) struct Whole {
    pub(crate) body: Value,
    /// The path of each prompt, separated by commas.
    pub(crate) paths: String,
}

/// The line of a request in the log.
pub(crate) struct Log {
    pub(crate) id: String,
    pub(crate) began: Instant,
    pub(crate) outcome: &'static str,
}

impl Answer {
    /// The fields of every answer, around `choices`.
    pub(crate) fn head(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
            "system_fingerprint": self.state.run.fingerprint, "choices": choices,
        })
    }

    pub(crate) fn usage(&self) -> Value {
        let (prompt, generated) = (self.prompt_tokens, self.generated());
        json!({
            "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": 0},
        })
    }

    /// A choice as JSON, with its route for a request with `return_route`.
    pub(crate) fn choice(&self, index: usize, part: &Part) -> Result<Value, ApiError> {
        let choice = &self.choices[index];
        let mut value = choice.json(part)?;
        if let (true, Some(path)) = (choice.return_route, choice.path) {
            let modules = self.state.engine.model().topology().modules_of(path);
            let modules: Vec<u32> = modules.iter().map(|module| module.index).collect();
            value["dipaco"] = json!({"path": path, "modules": modules, "seed": self.seed});
        }
        Ok(value)
    }

    fn generated(&self) -> usize {
        self.choices.iter().map(|choice| choice.generated).sum()
    }

    /// Waits for all choices. `n` is the number of choices of a prompt.
    pub(crate) async fn complete(mut self, mut source: Source, n: usize) -> Result<Whole, ApiError> {
        let mut parts = vec![Part::default(); self.choices.len()];
        while let Some((index, event)) = source.next().await {
            let part = self.choices[index].take(event).inspect_err(|_| self.log.outcome = "error")?;
            parts[index].append(part);
        }
        let choices =
            (0..parts.len()).map(|index| self.choice(index, &parts[index])).collect::<Result<_, _>>()?;
        let mut body = self.head(choices);
        body["usage"] = self.usage();
        self.log.outcome = "done";
        let shown = |path: Option<PathId>| path.map(|path| path.to_string()).unwrap_or_default();
        let paths: Vec<String> =
            self.choices.iter().step_by(n.max(1)).map(|choice| shown(choice.path)).collect();
        Ok(Whole { body, paths: paths.join(",") })
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
