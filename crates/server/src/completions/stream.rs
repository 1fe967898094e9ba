//! A completion's answer as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;

use crate::completions::answer::Answer;
use crate::completions::request::StreamUsage;
use crate::completions::response::{CompletionChoice, UsageField};
use crate::error::ApiError;

/// The last event of every stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

struct Chunks {
    answer: Answer,
    /// The first piece, which was read before the head of the answer was sent.
    first: Option<CompletionChoice>,
    usage: StreamUsage,
    keep_alive: Duration,
    over: bool,
}

/// The body: `first`, then an event per token, then the usage if `usage` asks for it, then `[DONE]`. When the client goes away,
/// the body is dropped, which cancels the running choices.
pub(crate) fn body(
    answer: Answer,
    first: Option<CompletionChoice>,
    usage: StreamUsage,
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
                // The client waits for text. A piece that completed no character is not shown.
                Ok(Some(choice)) if choice.is_empty() => continue,
                Ok(Some(choice)) => self.event(vec![choice], self.usage_so_far()),
                Ok(None) => self.end(),
                Err(error) => Err(error),
            };
            return Some(event.unwrap_or_else(|error| self.fail(&error)).into());
        }
        None
    }

    fn usage_so_far(&self) -> UsageField {
        match self.usage {
            StreamUsage::Nowhere => UsageField::Absent,
            StreamUsage::AtTheEnd => UsageField::Null,
            StreamUsage::Everywhere => UsageField::Counts(self.answer.usage()),
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
