//! A sequence that runs: from logits to events.

use std::time::Instant;

use dipaco_model::Positions;
use dipaco_topology::PathId;

use crate::continuation::ContinuationText;
use crate::job::Job;
use crate::scheduler::PlannedRows;
use crate::{
    BoxError, EngineError, FinishReason, Finished, GenerationEvent, Observer, Outcome, RequestSummary,
    ServedPath, StopReason, TextCodec, TokenSampler, TokenScore, score,
};

/// A sequence that has left the queue.
pub(crate) struct Running {
    pub(crate) job: Job,
    pub(crate) path: PathId,
    /// The path's modules; `None` while the sequence waits for those of another path.
    pub(crate) served: Option<ServedPath>,
    pub(crate) summary: RequestSummary,
    sampler: TokenSampler,
    text: ContinuationText,
    /// Tokens that end the continuation.
    ends: Vec<u32>,
    /// Scores of the prompt so far; `None` when they are sent or not wanted.
    scores: Option<Vec<TokenScore>>,
    finished: Finished,
    began: Instant,
    last: Instant,
}

/// The continuation after the rows of a step.
pub(crate) enum Next {
    /// More of the prompt.
    Rows,
    /// The row of this token.
    Token(u32),
    /// Nothing: the sequence is complete.
    End(Finished),
    /// Nothing: the caller went away.
    Gone,
}

impl Running {
    /// Starts a sequence, of which `cached` tokens need not be computed.
    pub(crate) fn new(
        job: Job,
        path: PathId,
        served: ServedPath,
        cached: usize,
        codec: &dyn TextCodec,
    ) -> Self {
        let request = &job.request;
        let mut ends = request.stop_token_ids.to_vec();
        if !request.ignore_eos {
            ends.extend(codec.end_tokens());
        }
        let first = TokenScore { token: request.prompt[0], log_prob: None, rank: None, top: Vec::new() };
        Self {
            path,
            served: Some(served),
            summary: RequestSummary {
                path: Some(path),
                cached_tokens: cached,
                ..job.summary(Outcome::Error)
            },
            sampler: TokenSampler::new(request.sampling.clone(), &request.prompt),
            text: ContinuationText::new(codec, request),
            ends,
            scores: request.prompt_log_probs.map(|_| vec![first]),
            finished: Finished {
                reason: FinishReason::Length,
                stop: None,
                text: String::new(),
                generated_tokens: 0,
                cached_tokens: cached,
                reroutes: 0,
            },
            began: Instant::now(),
            last: Instant::now(),
            job,
        }
    }

    /// Gives up the modules of the path. Returns them, to be dropped outside of the engine's lock: they may be gigabytes.
    pub(crate) fn leave(&mut self) -> Option<ServedPath> {
        self.served.take()
    }

    /// Goes on with another path.
    pub(crate) fn arrive(&mut self, path: PathId, served: ServedPath) {
        self.finished.reroutes += 1;
        self.summary.reroutes = self.finished.reroutes;
        self.path = path;
        self.served = Some(served);
    }

    /// Gives up the modules of a sequence that ended.
    pub(crate) fn into_job(self) -> Job {
        self.job
    }

    /// The positions of planned rows whose logits the sequence needs.
    pub(crate) fn wanted(&self, rows: &PlannedRows) -> Positions {
        let end = rows.start + rows.tokens.len();
        match (&self.scores, rows.last) {
            // Rows that run again, after another path or a loss of pages, are scored already.
            (Some(scores), false) if end < scores.len() => Positions::None,
            (Some(_), _) => Positions::All,
            (None, true) => Positions::Last,
            (None, false) => Positions::None,
        }
    }

    /// Counts the tokens of the prompt up to the end of planned rows. Returns how many were not counted before.
    pub(crate) fn count_prompt(&mut self, rows: &PlannedRows) -> usize {
        let end = rows.start + rows.tokens.len();
        let new = end.min(self.summary.own_prompt_tokens()).saturating_sub(self.summary.read_tokens);
        self.summary.read_tokens += new;
        new
    }

    /// The action of a step, for errors.
    pub(crate) fn action(&self) -> String {
        let Self { path, .. } = self;
        if self.finished.generated_tokens == 0 {
            format!("reading the prompt on path {path}")
        } else {
            format!("a step of path {path}")
        }
    }

    /// Takes the logits of planned rows: those of the positions that [`Self::wanted`] named.
    pub(crate) fn advance(
        &mut self,
        rows: &PlannedRows,
        logits: &[f32],
        vocabulary: usize,
        codec: &dyn TextCodec,
        observer: &dyn Observer,
    ) -> Result<Next, EngineError> {
        if self.job.events.is_closed() {
            return Ok(Next::Gone);
        }
        if self.scores.is_some() && self.score_prompt(rows, logits, vocabulary)?.is_none() {
            return Ok(Next::Gone);
        }
        if !rows.last {
            return Ok(Next::Rows);
        }
        if self.summary.prefill.is_none() {
            self.summary.prefill = Some(self.began.elapsed());
        }
        if self.job.request.max_tokens == 0 {
            return Ok(Next::End(self.finished.clone()));
        }
        self.draw(&logits[logits.len() - vocabulary..], codec, observer)
    }

    /// Scores the prompt tokens that follow the rows, and sends the scores when they are complete. `None` when the caller
    /// is gone.
    fn score_prompt(
        &mut self,
        rows: &PlannedRows,
        logits: &[f32],
        vocabulary: usize,
    ) -> Result<Option<()>, EngineError> {
        let (prompt, path) = (&self.job.request.prompt, self.path);
        let Some(scores) = &mut self.scores else { return Ok(Some(())) };
        let top = self.job.request.prompt_log_probs.unwrap_or(0);
        for (position, row) in (rows.start + 1..).zip(logits.chunks_exact(vocabulary)) {
            // Rows that run again, after the sequence lost its pages, are scored already.
            if let Some(&token) = prompt.get(position).filter(|_| position == scores.len()) {
                scores.push(score(row, token, top).ok_or(EngineError::NotFinite { path })?);
            }
        }
        if scores.len() < prompt.len() {
            return Ok(Some(()));
        }
        let scores = self.scores.take().unwrap_or_default();
        Ok(self.job.send(Ok(GenerationEvent::Prompt(scores))).ok())
    }

    /// Draws the next token from logits (V).
    fn draw(
        &mut self,
        logits: &[f32],
        codec: &dyn TextCodec,
        observer: &dyn Observer,
    ) -> Result<Next, EngineError> {
        let Self { job, path, finished, text, .. } = self;
        let (request, path) = (&job.request, *path);
        // Before `min_tokens` no token may end the continuation, so the ending tokens are banned.
        let free = finished.generated_tokens >= request.min_tokens;
        let banned = if free { &[][..] } else { &self.ends };
        let token = self.sampler.choose(logits, banned).ok_or(EngineError::NotFinite { path })?;
        // From the raw logits: clients compare log-probabilities of runs with different sampling.
        let scored = request.log_probs.map(|top| score(logits, token, top));
        let score = scored.map(|score| score.ok_or(EngineError::NotFinite { path })).transpose()?;
        finished.generated_tokens += 1;
        self.summary.generated_tokens = finished.generated_tokens;
        if finished.generated_tokens == 1 {
            self.summary.first_token = Some(job.arrived.elapsed());
        } else {
            observer.token(self.last.elapsed());
        }
        self.last = Instant::now();

        let offset = text.characters;
        let mut piece = String::new();
        if self.ends.contains(&token) {
            finished.reason = FinishReason::Stop;
            let asked = request.stop_token_ids.contains(&token);
            finished.stop = asked.then_some(StopReason::Token(token));
            if asked && request.include_stop {
                text.held.push_str(&codec.token_text(token));
            }
        } else {
            let decoded = text.push(token, free).map_err(failed("decoding a token"))?;
            piece = decoded.0;
            if let Some(stop) = decoded.1 {
                finished.reason = FinishReason::Stop;
                if request.include_stop {
                    piece.push_str(&stop);
                }
                finished.stop = Some(StopReason::Text(stop));
            }
        }
        if job.send(Ok(GenerationEvent::Token { token, text: piece, offset, score })).is_err() {
            return Ok(Next::Gone);
        }
        if finished.reason == FinishReason::Length && finished.generated_tokens < request.max_tokens {
            return Ok(Next::Token(token));
        }
        // Text after a stop text is not part of the continuation.
        if !matches!(finished.stop, Some(StopReason::Text(_))) {
            finished.text = text.finish();
        }
        Ok(Next::End(finished.clone()))
    }
}

/// Makes the error of a failed action.
pub(crate) fn failed(action: impl Into<String>) -> impl FnOnce(BoxError) -> EngineError {
    let action = action.into();
    move |source| EngineError::Model { action, source }
}
