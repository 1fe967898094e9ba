//! The answers of a run about texts.

use dipaco_infer::{FinishReason, GenerationEvent, Route};
use pyo3::prelude::*;

/// The path that the router chooses for a text.
#[pyclass(frozen, get_all, name = "Route", module = "dipaco")]
pub(crate) struct PyRoute {
    path: u32,
    distances: Vec<f32>,
    prefix_tokens: usize,
}

impl From<Route> for PyRoute {
    fn from(route: Route) -> Self {
        Self { path: route.path.0, distances: route.distances, prefix_tokens: route.prefix_tokens }
    }
}

#[pymethods]
impl PyRoute {
    fn __repr__(&self) -> String {
        format!("Route(path={}, prefix_tokens={})", self.path, self.prefix_tokens)
    }
}

/// The log-probabilities of a text's tokens.
#[pyclass(frozen, get_all, module = "dipaco")]
pub(crate) struct Score {
    path: u32,
    tokens: Vec<u32>,
    log_probs: Vec<Option<f32>>,
}

#[pymethods]
impl Score {
    fn __repr__(&self) -> String {
        format!("Score(path={}, tokens={})", self.path, self.tokens.len())
    }
}

/// A continuation of a prompt.
#[pyclass(frozen, get_all, module = "dipaco", name = "Generation")]
pub(crate) struct PyGeneration {
    path: u32,
    text: String,
    tokens: Vec<u32>,
    log_probs: Vec<Option<f32>>,
    finish_reason: &'static str,
}

#[pymethods]
impl PyGeneration {
    fn __repr__(&self) -> String {
        let Self { path, tokens, finish_reason, .. } = self;
        format!("Generation(path={path}, tokens={}, finish_reason='{finish_reason}')", tokens.len())
    }
}

/// The events of one sequence, put together.
#[derive(Default)]
pub(crate) struct Sequence {
    path: u32,
    prompt: Vec<(u32, Option<f32>)>,
    tokens: Vec<u32>,
    log_probs: Vec<Option<f32>>,
    text: String,
    finish_reason: &'static str,
}

impl Sequence {
    /// Takes the next event.
    pub(crate) fn take(&mut self, event: GenerationEvent) {
        match event {
            GenerationEvent::Started { path, .. } => self.path = path.0,
            GenerationEvent::Began { .. } => {}
            GenerationEvent::Prompt(scores) => {
                self.prompt = scores.into_iter().map(|score| (score.token, score.log_prob)).collect();
            }
            GenerationEvent::Token { token, text, score, .. } => {
                self.tokens.push(token);
                self.text.push_str(&text);
                self.log_probs.push(score.and_then(|score| score.log_prob));
            }
            GenerationEvent::Finished(end) => {
                self.text.push_str(&end.text);
                self.finish_reason = match end.reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                };
            }
        }
    }
}

impl From<Sequence> for Score {
    fn from(sequence: Sequence) -> Self {
        let (tokens, log_probs) = sequence.prompt.into_iter().unzip();
        Self { path: sequence.path, tokens, log_probs }
    }
}

impl From<Sequence> for PyGeneration {
    fn from(sequence: Sequence) -> Self {
        let Sequence { path, tokens, log_probs, text, finish_reason, .. } = sequence;
        Self { path, text, tokens, log_probs, finish_reason }
    }
}
