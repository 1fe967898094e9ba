//! One choice of an answer, built from the engine's events.

use std::sync::Arc;

use dipaco_infer::{Event, FinishReason, StopReason, TextCodec, TokenScore};
use dipaco_topology::PathId;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use crate::completions::request::Completion;
use crate::error::ApiError;

/// A whole choice, or the part of it that one event added.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    pub(crate) text: String,
    pub(crate) log_probs: LogProbs,
    pub(crate) finish: Option<(&'static str, Value)>,
}

impl Part {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.log_probs.tokens.is_empty() && self.finish.is_none()
    }

    /// Adds the next part of the same choice.
    pub(crate) fn append(&mut self, more: Self) {
        self.text.push_str(&more.text);
        self.log_probs.append(more.log_probs);
        self.finish = more.finish.or(self.finish.take());
    }
}

/// OpenAI's four arrays of log-probabilities, each with one entry per token.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct LogProbs {
    pub(crate) text_offset: Vec<usize>,
    pub(crate) token_logprobs: Vec<Option<f32>>,
    pub(crate) tokens: Vec<String>,
    pub(crate) top_logprobs: Vec<Option<Top>>,
}

impl LogProbs {
    fn append(&mut self, more: Self) {
        self.text_offset.extend(more.text_offset);
        self.token_logprobs.extend(more.token_logprobs);
        self.tokens.extend(more.tokens);
        self.top_logprobs.extend(more.top_logprobs);
    }
}

/// The likeliest tokens by their text, likeliest first. Of tokens with the same text only the likeliest is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Top(Vec<(String, f32)>);

impl Serialize for Top {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (text, log_prob) in &self.0 {
            map.serialize_entry(text, log_prob)?;
        }
        map.end()
    }
}

/// One choice of a completion.
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) path: Option<PathId>,
    pub(crate) generated: usize,
    codec: Arc<dyn TextCodec>,
    /// The prompt, when the answer repeats it.
    echo: Option<Arc<[u32]>>,
    log_probs: bool,
    pub(crate) return_route: bool,
    ids_as_text: bool,
    /// Characters of the echoed prompt. The offsets of the continuation start from there.
    prompt_characters: usize,
}

impl Choice {
    pub(crate) fn new(
        index: usize,
        codec: Arc<dyn TextCodec>,
        completion: &Completion,
        echo: Option<Arc<[u32]>>,
    ) -> Self {
        Self {
            index,
            path: None,
            generated: 0,
            codec,
            echo,
            log_probs: completion.log_probs.is_some(),
            return_route: completion.return_route,
            ids_as_text: completion.token_ids_as_text,
            prompt_characters: 0,
        }
    }

    /// Takes an event and returns the part that it adds to the choice.
    pub(crate) fn take(&mut self, event: Event) -> Result<Part, ApiError> {
        let mut part = Part::default();
        match event {
            Event::Started { path, .. } => {
                self.path = Some(path);
                if self.echo.is_some() && !self.log_probs {
                    part.text = self.prompt()?.0;
                }
            }
            Event::Prompt(scores) => {
                let (text, offsets) = self.prompt()?;
                part.text = text;
                for (scored, offset) in scores.iter().zip(offsets) {
                    self.push(&mut part.log_probs, scored, offset);
                }
            }
            Event::Token { text, offset, score, .. } => {
                self.generated += 1;
                part.text = text;
                if let Some(scored) = score {
                    self.push(&mut part.log_probs, &scored, self.prompt_characters + offset);
                }
            }
            Event::Finished(finished) => {
                part.text = finished.text;
                let reason = match finished.reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                };
                let stop = match finished.stop {
                    Some(StopReason::Text(text)) => Value::from(text),
                    Some(StopReason::Token(token)) => Value::from(token),
                    None => Value::Null,
                };
                part.finish = Some((reason, stop));
            }
            Event::Failed(error) => return Err(error.into()),
        }
        Ok(part)
    }

    /// The prompt's text, and the offset of each of its tokens in it, in characters.
    fn prompt(&mut self) -> Result<(String, Vec<usize>), ApiError> {
        let (mut text, mut offsets, mut characters) = (String::new(), Vec::new(), 0);
        let mut stream = self.codec.stream(&[]);
        for &token in self.echo.iter().flat_map(|tokens| tokens.iter()) {
            offsets.push(characters);
            let piece = stream
                .push(token)
                .map_err(|error| ApiError::bug(format!("can't decode the prompt: {error}")))?;
            characters += piece.chars().count();
            text.push_str(&piece);
        }
        let rest = stream.finish();
        self.prompt_characters = characters + rest.chars().count();
        Ok((text + &rest, offsets))
    }

    fn push(&self, to: &mut LogProbs, scored: &TokenScore, offset: usize) {
        let mut top: Vec<(String, f32)> = Vec::with_capacity(scored.top.len());
        for &(token, log_prob) in &scored.top {
            let text = self.text(token);
            match top.iter_mut().find(|(other, _)| *other == text) {
                Some((_, other)) => *other = other.max(log_prob),
                None => top.push((text, log_prob)),
            }
        }
        to.text_offset.push(offset);
        to.tokens.push(self.text(scored.token));
        to.token_logprobs.push(scored.log_prob);
        to.top_logprobs.push(scored.log_prob.map(|_| Top(top)));
    }

    fn text(&self, token: u32) -> String {
        if self.ids_as_text { format!("token_id:{token}") } else { self.codec.token_text(token) }
    }

    /// The choice as JSON.
    pub(crate) fn json(&self, part: &Part) -> Result<Value, ApiError> {
        let (reason, stop) =
            part.finish.clone().map_or((Value::Null, Value::Null), |(r, s)| (Value::from(r), s));
        let mut choice = json!({"index": self.index, "text": part.text, "logprobs": null, "finish_reason": reason, "stop_reason": stop});
        if self.log_probs {
            let log_probs = serde_json::to_value(&part.log_probs);
            choice["logprobs"] = log_probs
                .map_err(|error| ApiError::bug(format!("can't write log-probabilities: {error}")))?;
        }
        Ok(choice)
    }
}
