//! One choice of an answer: turns the engine's events into pieces of the choice.

use std::sync::Arc;

use dipaco_infer::{FinishReason, GenerationEvent, StopReason, TokenScore};
use dipaco_topology::PathId;

use crate::ServerState;
use crate::completions::request::{CompletionRequest, Form};
use crate::completions::response::{
    ChosenRoute, CompletionChoice, LogProbs, PromptLogProb, PromptToken, StopCause, TopToken, TopTokens,
};
use crate::error::ApiError;

/// What ends a choice besides stop texts.
#[derive(Clone)]
pub(crate) struct Ending {
    /// Largest number of generated tokens.
    pub(crate) max_tokens: usize,
    /// Tokens after which it ends.
    pub(crate) tokens: Arc<[u32]>,
}

/// One choice of a completion.
pub(crate) struct Choice {
    /// The pinned path, or the router's as soon as the engine has it.
    pub(crate) path: Option<PathId>,
    /// Number of generated tokens.
    pub(crate) generated: usize,
    /// Number of prompt tokens that came from the prefix cache. Known at the end.
    pub(crate) cached: usize,
    state: Arc<ServerState>,
    index: usize,
    /// The prompt, when the answer repeats it.
    echo: Option<Arc<[u32]>>,
    in_chat: bool,
    /// Likeliest tokens with log-probabilities, besides the token itself.
    log_probs: Option<usize>,
    /// The same for the field `prompt_logprobs`.
    prompt_log_probs: Option<usize>,
    ids_as_text: bool,
    /// Characters of the echoed prompt. The offsets of the continuation start from there.
    prompt_characters: usize,
    /// The prompt's seed, when the answer names the route.
    route_seed: Option<u64>,
    route: Option<ChosenRoute>,
    /// The prompt, when the answer holds token ids.
    token_ids: Option<Arc<[u32]>>,
    /// Number of tokens after which the choice ends.
    max_tokens: usize,
    /// Tokens that end the choice.
    ends: Arc<[u32]>,
    /// The piece of the last token. It waits for the reason of the end, which follows at once.
    last: Option<CompletionChoice>,
}

impl Choice {
    /// The choice `index` of a completion whose prompt is `prompt`, before its first event.
    pub(crate) fn new(
        state: &Arc<ServerState>,
        index: usize,
        completion: &CompletionRequest,
        prompt: &Arc<[u32]>,
        ending: Ending,
        seed: u64,
    ) -> Self {
        Self {
            path: completion.path,
            generated: 0,
            cached: 0,
            state: Arc::clone(state),
            index,
            echo: completion.echo.then(|| Arc::clone(prompt)),
            in_chat: completion.form == Form::Chat,
            log_probs: completion.log_probs,
            prompt_log_probs: completion.prompt_log_probs,
            ids_as_text: completion.token_ids_as_text,
            prompt_characters: 0,
            route_seed: completion.return_route.then_some(seed),
            route: None,
            token_ids: completion.return_token_ids.then(|| Arc::clone(prompt)),
            max_tokens: ending.max_tokens,
            ends: ending.tokens,
            last: None,
        }
    }

    /// Takes an event and returns the piece that it adds to the choice. There is none for the last token: its piece comes with
    /// the reason of the end, so a stream has one chunk per token.
    pub(crate) fn take(&mut self, event: GenerationEvent) -> Result<Option<CompletionChoice>, ApiError> {
        let mut piece = CompletionChoice { index: self.index, ..CompletionChoice::default() };
        let mut is_last = false;
        let mut log_probs = LogProbs::default();
        match event {
            GenerationEvent::Started { path, .. } => {
                self.path = Some(path);
                piece.names_speaker = self.in_chat;
                self.route = self.route_seed.map(|seed| self.chosen_route(path, seed));
                // With log-probabilities the prompt's text comes with its scores.
                if self.echo.is_some() && self.log_probs.is_none() {
                    piece.text = self.prompt()?.text;
                }
                piece.prompt_token_ids = self.token_ids.as_ref().map(|ids| ids.to_vec());
            }
            GenerationEvent::Began { .. } => return Ok(None),
            GenerationEvent::Prompt(scores) => {
                if self.echo.is_some() && self.log_probs.is_some() {
                    let prompt = self.prompt()?;
                    piece.text = prompt.text;
                    for (scored, offset) in scores.iter().zip(prompt.offsets) {
                        self.push(&mut log_probs, scored, offset);
                    }
                }
                let scored = |top| scores.iter().map(|scored| self.prompt_token(scored, top)).collect();
                piece.prompt_logprobs = self.prompt_log_probs.map(scored);
            }
            GenerationEvent::Token { token, text, offset, score } => {
                self.generated += 1;
                is_last = self.generated == self.max_tokens || self.ends.contains(&token);
                piece.text = text;
                piece.token_ids = self.token_ids.is_some().then(|| vec![token]);
                if let Some(scored) = score {
                    self.push(&mut log_probs, &scored, self.prompt_characters + offset);
                }
            }
            GenerationEvent::Finished(finished) => {
                self.cached = finished.cached_tokens;
                if let Some(route) = &mut self.route {
                    route.rerouted = finished.reroutes;
                }
                piece.text = finished.text;
                piece.finish_reason = Some(match finished.reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                });
                piece.stop_reason = finished.stop.map(|stop| match stop {
                    StopReason::Text(text) => StopCause::Text(text),
                    StopReason::Token(token) => StopCause::Token(token),
                });
            }
        }
        piece.logprobs = self.log_probs.map(|_| log_probs);
        piece.dipaco.clone_from(&self.route);
        if is_last {
            self.last = Some(piece);
            return Ok(None);
        }
        Ok(Some(match self.last.take() {
            None => piece,
            Some(mut last) => {
                last.append(piece);
                last
            }
        }))
    }

    fn chosen_route(&self, path: PathId, seed: u64) -> ChosenRoute {
        let modules = self.state.engine.model().topology().modules_of(path);
        let modules = modules.iter().map(|module| module.index).collect();
        ChosenRoute { path, modules, seed, rerouted: 0 }
    }

    /// The text of the echoed prompt.
    fn prompt(&mut self) -> Result<EchoedPrompt, ApiError> {
        let (mut text, mut offsets, mut characters) = (String::new(), Vec::new(), 0);
        let mut stream = self.state.codec.stream(&[]);
        for &token in self.echo.iter().flat_map(|tokens| tokens.iter()) {
            offsets.push(characters);
            let piece = stream
                .push(token)
                .map_err(|error| ApiError::bug(format!("can't decode the prompt: {error}")))?;
            characters += piece.chars().count();
            text.push_str(&piece);
        }
        // A character that the prompt begins and does not end comes with the continuation, if there is one.
        if self.max_tokens == 0 {
            let rest = stream.finish();
            characters += rest.chars().count();
            text.push_str(&rest);
        }
        self.prompt_characters = characters;
        Ok(EchoedPrompt { text, offsets })
    }

    fn push(&self, to: &mut LogProbs, scored: &TokenScore, offset: usize) {
        let asked = self.log_probs.unwrap_or(0);
        // OpenAI's chats have at most as many as asked for, and its completions have the token itself besides.
        let listed = scored.likeliest(asked).filter(|&(_, _, rank)| !self.in_chat || rank <= asked);
        let top = listed.map(|(id, log_prob, _)| TopToken {
            id,
            text: self.text(id),
            log_prob: f64::from(log_prob),
        });
        to.text_offset.push(offset);
        to.tokens.push(self.text(scored.token));
        to.ids.push(scored.token);
        to.token_logprobs.push(scored.log_prob.map(f64::from));
        to.top_logprobs.push(scored.log_prob.map(|_| TopTokens(top.collect())));
    }

    /// The entry of `prompt_logprobs` for a token of the prompt; `None` for the first one, which no position predicts.
    fn prompt_token(&self, scored: &TokenScore, top: usize) -> Option<PromptToken> {
        scored.log_prob?;
        let entry = |(token, log_prob, rank): (u32, f32, usize)| {
            let decoded_token = self.state.codec.token_text(token);
            (token, PromptLogProb { logprob: f64::from(log_prob), rank, decoded_token })
        };
        Some(PromptToken(scored.likeliest(top).map(entry).collect()))
    }

    fn text(&self, token: u32) -> String {
        if self.ids_as_text { format!("token_id:{token}") } else { self.state.codec.token_text(token) }
    }
}

/// An echoed prompt.
struct EchoedPrompt {
    text: String,
    /// Number of characters of the text before each token.
    offsets: Vec<usize>,
}
