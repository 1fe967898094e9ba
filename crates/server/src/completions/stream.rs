//! A completion's answer as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use serde_json::Value;

use crate::completions::answer::Answer;
use crate::completions::source::Source;
use crate::error::ApiError;

struct Chunks {
    answer: Answer,
    source: Source,
    usage: bool,
    keep_alive: Duration,
    over: bool,
}

/// The body: an event per token, then the usage if `usage` is set, then `[DONE]`. When the client goes away, the body is
/// dropped, which cancels the running choices.
pub(crate) fn body(answer: Answer, source: Source, usage: bool, keep_alive: Duration) -> Body {
    let chunks = Chunks { answer, source, usage, keep_alive, over: false };
    Body::from_stream(futures::stream::unfold(chunks, |mut chunks| async move {
        let next = chunks.next().await?;
        Some((Ok::<_, Infallible>(next), chunks))
    }))
}

impl Chunks {
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        loop {
            let Ok(event) = tokio::time::timeout(self.keep_alive, self.source.next()).await else {
                return Some(Bytes::from_static(b": keep-alive\n\n"));
            };
            let Some((index, event)) = event else { return Some(self.end()) };
            let part = match self.answer.choices[index].take(event) {
                Ok(part) => part,
                Err(error) => return Some(self.fail(&error)),
            };
            if !part.is_empty() {
                return Some(match self.answer.choice(index, &part) {
                    Ok(choice) => data(&self.answer.head(vec![choice])),
                    Err(error) => self.fail(&error),
                });
            }
        }
    }

    fn end(&mut self) -> Bytes {
        self.over = true;
        self.answer.log.outcome = "done";
        let mut last = Vec::new();
        if self.usage {
            let mut chunk = self.answer.head(Vec::new());
            chunk["usage"] = self.answer.usage();
            last.extend_from_slice(&data(&chunk));
        }
        last.extend_from_slice(b"data: [DONE]\n\n");
        last.into()
    }

    fn fail(&mut self, error: &ApiError) -> Bytes {
        self.over = true;
        self.answer.log.outcome = "error";
        let mut last = data(&error.body()).to_vec();
        last.extend_from_slice(b"data: [DONE]\n\n");
        last.into()
    }
}

fn data(value: &Value) -> Bytes {
    // Compact JSON has no line breaks, so one `data:` line holds it.
    format!("data: {value}\n\n").into()
}
