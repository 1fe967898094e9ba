//! A completion's answer as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use crate::completions::answer::Answer;
use crate::completions::name_paths;
use crate::completions::request::StreamUsage;
use crate::completions::response::{CompletionChoice, UsageField};
use crate::error::ApiError;
use crate::settings;

/// The last event of every stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// A piece of a choice with the usage at its time.
type Piece = (CompletionChoice, UsageField);

struct Chunks {
    answer: Answer,
    /// The pieces that were read before the head of the answer was sent.
    first: VecDeque<Piece>,
    usage: StreamUsage,
    keep_alive: Duration,
    over: bool,
}

/// The answer as server-sent events: an event per token, then the usage if `usage` asks for it, then `[DONE]`. When the client
/// goes away, the body is dropped, which cancels the running choices.
pub(super) async fn answer(mut answer: Answer, usage: StreamUsage) -> Result<Response, ApiError> {
    let keep_alive = settings::seconds(answer.state.config.keep_alive);
    let first = until_paths(&mut answer, usage, keep_alive).await?;
    answer.log.begun();
    let mut response = (
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")],
        // Proxies such as nginx would otherwise collect the events of a stream.
        [(HeaderName::from_static("x-accel-buffering"), "no")],
    )
        .into_response();
    name_paths(&mut response, &answer);
    let chunks = Chunks { answer, first, usage, keep_alive, over: false };
    *response.body_mut() = Body::from_stream(futures::stream::unfold(chunks, |mut chunks| async move {
        let next = chunks.next().await?;
        Some((Ok::<_, Infallible>(next), chunks))
    }));
    Ok(response)
}

/// Reads pieces until the path of every prompt is known. The head of the answer names the paths, and an error before the head
/// still has its own status. In a long queue the head comes after `keep_alive`, whatever is known: proxies cut connections
/// that stay silent.
async fn until_paths(
    answer: &mut Answer,
    usage: StreamUsage,
    keep_alive: Duration,
) -> Result<VecDeque<Piece>, ApiError> {
    let mut pieces = VecDeque::new();
    let late = Instant::now().checked_add(keep_alive).map(tokio::time::Instant::from_std);
    while pieces.is_empty() || answer.paths().any(|path| path.is_none()) {
        let next = match late {
            Some(late) => match tokio::time::timeout_at(late, answer.next()).await {
                Ok(next) => next?,
                Err(_) => break,
            },
            None => answer.next().await?,
        };
        let Some(piece) = next else { break };
        let usage = usage_so_far(answer, usage);
        pieces.push_back((piece, usage));
    }
    Ok(pieces)
}

fn usage_so_far(answer: &Answer, usage: StreamUsage) -> UsageField {
    match usage {
        StreamUsage::Nowhere => UsageField::Absent,
        StreamUsage::AtTheEnd => UsageField::Null,
        StreamUsage::Everywhere => UsageField::Counts(answer.usage()),
    }
}

impl Chunks {
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        // Tokens that show nothing send nothing, so they do not put off the comment.
        let Ok(piece) = tokio::time::timeout(self.keep_alive, self.shown()).await else {
            return Some(Bytes::from_static(b": keep-alive\n\n"));
        };
        let event = match piece {
            Ok(Some((choice, usage))) => self.event(vec![choice], usage),
            Ok(None) => self.end(),
            Err(error) => Err(error),
        };
        Some(event.unwrap_or_else(|error| self.fail(&error)).into())
    }

    /// Waits for the next piece that shows something; `None` when all choices are complete. Dropping the future
    /// loses no such piece.
    async fn shown(&mut self) -> Result<Option<Piece>, ApiError> {
        loop {
            let (choice, usage) = if let Some(first) = self.first.pop_front() {
                first
            } else {
                let Some(choice) = self.answer.next().await? else { return Ok(None) };
                (choice, usage_so_far(&self.answer, self.usage))
            };
            // The client waits for text. A piece that completed no character is not shown.
            if !choice.is_empty() {
                return Ok(Some((choice, usage)));
            }
        }
    }

    fn end(&mut self) -> Result<Vec<u8>, ApiError> {
        self.over = true;
        let mut last = Vec::new();
        if self.usage != StreamUsage::Nowhere {
            last = self.event(Vec::new(), UsageField::Counts(self.answer.usage()))?;
        }
        last.extend_from_slice(DONE);
        Ok(last)
    }

    /// A chunk as an event. Compact JSON has no line breaks, so one `data:` line holds it.
    fn event(&self, choices: Vec<CompletionChoice>, usage: UsageField) -> Result<Vec<u8>, ApiError> {
        let chunk = self.answer.json(choices, usage, false)?;
        Ok([b"data: ", chunk.as_slice(), b"\n\n"].concat())
    }

    /// The last events of a stream that failed. The status of the answer is sent already, so an event names the error.
    fn fail(&mut self, error: &ApiError) -> Vec<u8> {
        self.over = true;
        self.answer.log.failed(error);
        let mut last = format!("data: {}\n\n", error.body()).into_bytes();
        last.extend_from_slice(DONE);
        last
    }
}
