//! Reading the body of a request.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use bytes::BytesMut;
use futures::StreamExt;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ServeConfig;
use crate::error::ApiError;

/// Bytes beyond the limit that are read and discarded. A client that is still sending when the connection closes would
/// see a reset instead of the answer.
const DISCARDED: usize = 64 << 20;

/// Most values of a JSON body. A value of two bytes takes 32 bytes of memory or more.
const MAX_VALUES: usize = 1 << 18;
/// Most lists and objects of a JSON body. An empty one takes as much memory as several numbers.
const MAX_CONTAINERS: usize = 1 << 14;
/// Number of bodies of the largest size whose bytes fit into memory at a time.
const LARGE_BODIES: usize = 16;

/// Most memory of the bodies of all requests together, in bytes.
#[must_use]
pub fn body_bytes(config: &ServeConfig) -> usize {
    room(config.body_limit)
}

/// Bytes of all bodies together, each of at most `limit` bytes.
fn room(limit: usize) -> usize {
    limit.saturating_mul(LARGE_BODIES).clamp(1, Semaphore::MAX_PERMITS)
}

/// Bytes of bodies that all requests together may hold.
#[derive(Clone, Debug)]
pub(crate) struct BodyMemory {
    free: Arc<Semaphore>,
    /// Largest body in bytes.
    limit: usize,
}

/// A decoded body, and its bytes' share of the memory for bodies.
pub(crate) struct JsonBody {
    pub(crate) value: Value,
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

impl BodyMemory {
    /// Memory for bodies of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(room(limit))), limit }
    }

    /// Takes the memory for more bytes of a body, or refuses the request. Nobody waits here: requests that wait for each
    /// other's memory with half a body would wait for ever.
    fn take(&self, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<(), ApiError> {
        let full = || ApiError {
            code: Some("bodies_full"),
            retry_after: Some(1),
            ..ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too many large bodies arrive at a time: try again",
            )
        };
        let bytes = u32::try_from(bytes).map_err(|_| too_large(self.limit))?;
        let more = self.free.clone().try_acquire_many_owned(bytes).map_err(|_| full())?;
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

/// Reads a JSON body of at most the limit of `memory`.
pub(crate) async fn json(
    request: Request,
    memory: &BodyMemory,
    timeout: Duration,
) -> Result<JsonBody, ApiError> {
    let given =
        request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media = given.split(';').next().unwrap_or("").trim();
    if !media.eq_ignore_ascii_case("application/json") {
        let message = format!(
            "the content type is `{media}`: send JSON with the header `Content-Type: application/json`"
        );
        let code = Some("unsupported_media_type");
        return Err(ApiError { code, ..ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message) });
    }
    let mut held = None;
    let reading = read(request.into_body(), memory, &mut held);
    let body = tokio::time::timeout(timeout, reading).await.map_err(|_| {
        let message = format!("the body did not arrive within {} s", timeout.as_secs_f64());
        ApiError { code: Some("body_timeout"), ..ApiError::new(StatusCode::REQUEST_TIMEOUT, message) }
    })??;
    check_size(&body)?;
    let value = serde_json::from_slice(&body).map_err(|error| {
        let message = format!("the body is not valid JSON: {error}");
        ApiError { code: Some("invalid_json"), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    })?;
    Ok(JsonBody { value, memory: held })
}

/// Counts the values of a body before they are decoded: decoded they take far more memory than their bytes.
fn check_size(body: &[u8]) -> Result<(), ApiError> {
    let (mut values, mut containers) = (0usize, 0usize);
    let (mut in_string, mut escaped) = (false, false);
    for &byte in body {
        if in_string {
            in_string = byte != b'"' || escaped;
            escaped = byte == b'\\' && !escaped;
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b',' | b':' => values += 1,
            b'[' | b'{' => (values, containers) = (values + 1, containers + 1),
            _ => {}
        }
    }
    if values <= MAX_VALUES && containers <= MAX_CONTAINERS {
        return Ok(());
    }
    let message = format!(
        "the body has more than {MAX_VALUES} values or {MAX_CONTAINERS} lists and objects: send fewer prompts at a time"
    );
    Err(ApiError { code: Some("body_too_large"), ..ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message) })
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the body is over the limit of {limit} bytes: send fewer prompts at a time");
    ApiError { code: Some("body_too_large"), ..ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message) }
}

async fn read(
    body: Body,
    memory: &BodyMemory,
    held: &mut Option<OwnedSemaphorePermit>,
) -> Result<BytesMut, ApiError> {
    let limit = memory.limit;
    // Reading on would not help: the announced length is more than is ever discarded.
    if body.size_hint().lower() > limit.saturating_add(DISCARDED) as u64 {
        return Err(too_large(limit));
    }
    let mut kept = BytesMut::new();
    let mut length = 0usize;
    let mut frames = body.into_data_stream();
    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(|error| ApiError {
            code: Some("broken_body"),
            ..ApiError::new(StatusCode::BAD_REQUEST, format!("the body broke off: {error}"))
        })?;
        length = length.saturating_add(frame.len());
        if length <= limit {
            memory.take(held, frame.len())?;
            kept.extend_from_slice(&frame);
        } else if length > limit.saturating_add(DISCARDED) {
            break;
        }
    }
    if length > limit {
        return Err(too_large(limit));
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_bytes_that_become_many_values_are_refused() {
        let lists = "[1],".repeat(500_000);
        assert_eq!(check_size(format!("{{\"prompt\":[{lists}[1]]}}").as_bytes()).unwrap_err().status, 413);
        let numbers = "1,".repeat(MAX_VALUES);
        assert_eq!(check_size(format!("[{numbers}1]").as_bytes()).unwrap_err().status, 413);
        // Text is one value, whatever it holds.
        let text = "[,:{\\\"".repeat(MAX_VALUES);
        assert!(check_size(format!("{{\"prompt\":\"{text}\"}}").as_bytes()).is_ok());
    }

    #[test]
    fn bodies_of_all_requests_share_their_memory() {
        let memory = BodyMemory::new(100);
        let mut held = Vec::new();
        for _ in 0..LARGE_BODIES {
            let mut body = None;
            memory.take(&mut body, 60).unwrap();
            memory.take(&mut body, 40).unwrap();
            held.push(body);
        }
        assert_eq!(memory.take(&mut None, 1).unwrap_err().status, 429);
        held.pop();
        memory.take(&mut None, 100).unwrap();
    }
}
