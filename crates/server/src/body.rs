//! Reading the body of a request.

mod held;

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::BytesMut;
use futures::StreamExt;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ServeConfig;
use crate::error::ApiError;

pub(crate) use held::BodyBytes;
use held::HeldBytes;

/// Most values of a JSON body.
const MAX_VALUES: usize = 1 << 18;
/// Most lists and objects of a JSON body.
const MAX_CONTAINERS: usize = 1 << 14;
/// Memory of a decoded value in bytes, beside its text: 32 in a list, which has room for three times its values while it grows.
const VALUE: usize = 96;
/// Memory of a list or an object of few values in bytes. A node of a map has room for 11.
const CONTAINER: usize = 640;
/// Number of bodies of the largest size for which there is memory at a time.
const LARGE_BODIES: usize = 16;

/// Most memory of the bodies of all requests together, in bytes: their bytes, the prompts that were read from them, and
/// the bodies that are being decoded. A prompt that waits for the engine is not counted: `serve.queued_tokens` bounds
/// those.
#[must_use]
pub fn body_bytes(config: &ServeConfig) -> usize {
    // A token id has two bytes or more in a body, and four in a prompt.
    room(config.body_limit).saturating_mul(3).saturating_add(decoding_room(config.body_limit))
}

/// Bytes of all bodies together that are decoded at a time: one of the largest.
fn decoding_room(limit: usize) -> usize {
    decoded_bytes(MAX_VALUES, MAX_CONTAINERS, limit)
}

/// Most memory of a decoded body of so many values, lists and objects, and bytes.
fn decoded_bytes(values: usize, containers: usize, bytes: usize) -> usize {
    (values * VALUE + containers * CONTAINER).saturating_add(bytes)
}

/// Bytes of all bodies together, each of at most `limit` bytes.
fn room(limit: usize) -> usize {
    limit.saturating_mul(LARGE_BODIES)
}

/// Bytes of bodies that all requests together may hold.
#[derive(Clone, Debug)]
pub(crate) struct BodyMemory {
    held: HeldBytes,
    /// Bytes that decoded bodies may take.
    decoding: Arc<Semaphore>,
    /// Largest body in bytes.
    limit: usize,
}

/// A decoded body, and its shares of the memory for bodies.
pub(crate) struct JsonBody {
    pub(crate) value: Value,
    pub(crate) memory: BodyBytes,
    /// To be held as long as `value`. Whoever holds it may not wait for anything: other requests wait for it.
    pub(crate) decoded: Option<OwnedSemaphorePermit>,
}

impl BodyMemory {
    /// Memory for bodies of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let decoding = decoding_room(limit).min(Semaphore::MAX_PERMITS);
        Self { held: HeldBytes::new(room(limit)), decoding: Semaphore::new(decoding).into(), limit }
    }

    /// Waits until a body with this memory can be decoded.
    async fn decode(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        // The largest body takes all of the room. The semaphore is never closed.
        let bytes = u32::try_from(bytes.min(decoding_room(self.limit))).unwrap_or(u32::MAX);
        self.decoding.clone().acquire_many_owned(bytes).await.ok()
    }
}

/// Reads a JSON body of a client, of at most the limit of `memory`.
pub(crate) async fn json(
    request: Request,
    client: u64,
    memory: &BodyMemory,
    timeout: Duration,
) -> Result<JsonBody, ApiError> {
    check_type(request.headers())?;
    let mut held = memory.held.body(client);
    let reading = read(request.into_body(), memory.limit, &mut held);
    let body = tokio::time::timeout(timeout, reading).await.map_err(|_| {
        let message = format!("the body did not arrive within {} s", timeout.as_secs_f64());
        ApiError { code: Some("body_timeout"), ..ApiError::new(StatusCode::REQUEST_TIMEOUT, message) }
    })??;
    let decoded = memory.decode(check_size(&body)?).await;
    let value = serde_json::from_slice(&body).map_err(|error| {
        let message = format!("the body is not valid JSON: {error}");
        ApiError { code: Some("invalid_json"), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    })?;
    Ok(JsonBody { value, memory: held, decoded })
}

/// Refuses a body whose headers do not say that it is JSON.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let media = given.as_deref().and_then(|given| given.split(';').next()).unwrap_or("").trim();
    if media.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let found = match media {
        "" => "the request has no content type".to_owned(),
        media => format!("the content type is `{media}`"),
    };
    let message = format!("{found}: send JSON with the header `Content-Type: application/json`");
    let code = Some("unsupported_media_type");
    Err(ApiError { code, ..ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message) })
}

/// Counts the values of a body before they are decoded: decoded they take far more memory than their bytes. Returns the most
/// that they can take.
fn check_size(body: &[u8]) -> Result<usize, ApiError> {
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
        return Ok(decoded_bytes(values, containers, body.len()));
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

/// The refusal of a body that broke off: its client left, or it has a malformed chunk.
fn broken(error: &axum::Error) -> ApiError {
    // hyper gives these two kinds to what a client has sent. All others are of a connection that ended.
    let ended =
        |error: &io::Error| !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData);
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(next) = cause {
        if next.downcast_ref::<io::Error>().is_some_and(ended) {
            return ApiError::client_left();
        }
        cause = next.source();
    }
    ApiError {
        code: Some("broken_body"),
        ..ApiError::new(StatusCode::BAD_REQUEST, format!("the body broke off: {error}"))
    }
}

async fn read(body: Body, limit: usize, held: &mut BodyBytes) -> Result<BytesMut, ApiError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    let mut kept = BytesMut::new();
    let mut frames = body.into_data_stream();
    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(|error| broken(&error))?;
        if frame.len() > limit - kept.len() {
            return Err(too_large(limit));
        }
        held.take(frame.len())?;
        kept.extend_from_slice(&frame);
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
    fn a_decoded_body_takes_no_more_than_is_counted() {
        let lists = vec!["[1]"; 1000].join(",");
        let objects = vec!["{\"a\":1}"; 1000].join(",");
        let map: Vec<String> = (0..1000).map(|key| format!("\"{key}\":{key}")).collect();
        let texts = vec!["\"a\""; 1000].join(",");
        for body in [
            format!("[{}1]", "1,".repeat(1000)),
            format!("[{}1]", "1,".repeat(1024)),
            format!("[{lists}]"),
            format!("[{objects}]"),
            format!("[{texts}]"),
            format!("{{{}}}", map.join(",")),
            format!("\"{}\"", "a".repeat(10_000)),
            "[".repeat(100) + &"]".repeat(100),
        ] {
            let counted = check_size(body.as_bytes()).unwrap();
            let found = allocation_counter::measure(|| {
                drop(serde_json::from_str::<Value>(&body).unwrap());
            });
            assert!(found.bytes_max as usize <= counted, "{}: {found:?} {counted}", &body[..20]);
        }
    }

    #[tokio::test]
    async fn one_of_the_largest_bodies_is_decoded_at_a_time() {
        let memory = BodyMemory::new(100);
        let largest = decoding_room(100);
        let first = memory.decode(largest).await;
        assert!(first.is_some());
        let mut second = at_once(memory.decode(1));
        assert!(second.is_none(), "there is no room beside the largest");
        drop(first);
        second = at_once(memory.decode(1));
        assert!(second.is_some());
    }

    /// The share that can be had now.
    fn at_once(decode: impl Future<Output = Option<OwnedSemaphorePermit>>) -> Option<OwnedSemaphorePermit> {
        futures::FutureExt::now_or_never(decode).flatten()
    }

    #[test]
    fn bodies_of_all_requests_share_their_memory() {
        let memory = BodyMemory::new(100).held;
        let mut held = Vec::new();
        for _ in 0..LARGE_BODIES {
            let mut body = memory.body(0);
            body.take(60).unwrap();
            body.take(40).unwrap();
            held.push(body);
        }
        assert_eq!(memory.body(0).take(1).unwrap_err().status, 429);
        held.pop();
        memory.body(0).take(100).unwrap();
    }
}
