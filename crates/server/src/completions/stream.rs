//! A completion's answer as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;

use crate::completions::answer::Answer;
use crate::completions::response::{CompletionChoice, CompletionResponse};
use crate::error::ApiError;

/// The last event of every stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

struct Chunks {
    answer: Answer,
    /// The first piece, which was read before the head of the answer was sent.
    first: Option<CompletionChoice>,
    usage: bool,
    keep_alive: Duration,
    over: bool,
}

/// The body: `first`, then an event per token, then the usage if `usage` is set, then `[DONE]`. When the client goes away,
/// the body is dropped, which cancels the running choices.
pub(crate) fn body(
    answer: Answer,
    first: Option<CompletionChoice>,
    usage: bool,
    keep_alive: Duration,
) -> Body {
    let chunks = Chunks { answer, first, usage, keep_alive, over: false };
    Body::from_stream(futures::stream::unfold(chunks, |mut chunks| async move {
        let next = chunks.next().await?;
        Some((Ok::<_, Infallible>(next), chunks))
    }))
}

impl Chunks {
    async fn next(&mut self) -> Option<Bytes> {
        while !self.over {
            let piece = match self.first.take() {
                Some(first) => Ok(Some(first)),
                None => match tokio::time::timeout(self.keep_alive, self.answer.next()).await {
                    Ok(piece) => piece,
                    Err(_) => return Some(Bytes::from_static(b": keep-alive\n\n")),
                },
            };
            let event = match piece {
                // Such a piece completed no character. The client waits for text.
                Ok(Some(choice)) if choice.is_empty() => continue,
                Ok(Some(choice)) => event(&self.answer.body(&[choice], None)),
                Ok(None) => self.end(),
                Err(error) => Err(error),
            };
            return Some(event.unwrap_or_else(|error| self.fail(&error)).into());
        }
        None
    }

    fn end(&mut self) -> Result<Vec<u8>, ApiError> {
        self.over = true;
        let mut last = Vec::new();
        if self.usage {
            last = event(&self.answer.body(&[], Some(self.answer.usage())))?;
        }
        last.extend_from_slice(DONE);
        Ok(last)
    }

    /// The last events of a stream that failed. The status of the answer is sent already, so an event names the error.
    fn fail(&mut self, error: &ApiError) -> Vec<u8> {
        self.over = true;
        self.answer.log.outcome = "error";
        let mut last = format!("data: {}\n\n", error.body()).into_bytes();
        last.extend_from_slice(DONE);
        last
    }
}

/// A chunk as an event. Compact JSON has no line breaks, so one `data:` line holds it.
fn event(chunk: &CompletionResponse<'_>) -> Result<Vec<u8>, ApiError> {
    let mut event = b"data: ".to_vec();
    serde_json::to_writer(&mut event, chunk)
        .map_err(|error| ApiError::bug(format!("can't write a chunk as JSON: {error}")))?;
    event.extend_from_slice(b"\n\n");
    Ok(event)
}
