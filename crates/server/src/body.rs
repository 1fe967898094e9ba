//! Reading the body of a request.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use bytes::BytesMut;
use futures::StreamExt;
use serde_json::Value;

use crate::error::ApiError;

/// Bytes beyond the limit that are read and discarded. A client that is still sending when the connection closes would
/// see a reset instead of the answer.
const DISCARDED: usize = 64 << 20;

/// Reads a JSON body of at most `limit` bytes.
pub(crate) async fn json(request: Request, limit: usize, timeout: Duration) -> Result<Value, ApiError> {
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
    let body = tokio::time::timeout(timeout, read(request.into_body(), limit)).await.map_err(|_| {
        let message = format!("the body did not arrive within {} s", timeout.as_secs_f64());
        ApiError { code: Some("body_timeout"), ..ApiError::new(StatusCode::REQUEST_TIMEOUT, message) }
    })??;
    serde_json::from_slice(&body).map_err(|error| {
        let message = format!("the body is not valid JSON: {error}");
        ApiError { code: Some("invalid_json"), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    })
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the body is over the limit of {limit} bytes: send fewer prompts at a time");
    ApiError { code: Some("body_too_large"), ..ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message) }
}

async fn read(body: Body, limit: usize) -> Result<BytesMut, ApiError> {
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
