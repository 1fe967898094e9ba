//! Error answers, in OpenAI's format.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use dipaco_infer::EngineError;
use dipaco_telemetry::causes;
use serde_json::{Value, json};

/// Status of a request in the metrics and in the log whose client left before the answer began.
pub(crate) const LEFT: u16 = 499;
/// Code of a request whose client left while it sent the body.
pub(crate) const CLIENT_LEFT: &str = "client_left";

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    pub(crate) retry_after: Option<u64>,
    /// True if the log has the end of the request already.
    pub(crate) logged: bool,
}

/// Why a request was refused: a part of the answer that only the server sees.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, retry_after: None, logged: false }
    }

    /// An error of one field of the request, with status 400.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            code: Some("invalid_value"),
            ..Self::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// The end of a request whose client left while it sent the body. Only a client that ends nothing but its sending side
    /// can see it.
    pub(crate) fn client_left() -> Self {
        let message = "the body broke off: the connection ended before the body did";
        Self { code: Some(CLIENT_LEFT), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    pub(crate) fn shutting_down() -> Self {
        let message = "the server is shutting down: try another server, or try again later";
        Self {
            code: Some("shutting_down"),
            retry_after: Some(5),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// The answer while `loaded` of `modules` modules are in memory, `seconds` after the start.
    pub(crate) fn loading(loaded: usize, modules: usize, seconds: u64) -> Self {
        let done = match modules {
            0 => "the server is loading the run".to_owned(),
            _ => format!("the server is loading the run: {loaded} of {modules} modules are in memory"),
        };
        Self {
            code: Some("loading"),
            retry_after: Some(1),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{done}, {seconds} s after the start: try again soon"),
            )
        }
    }

    /// A failure whose reason is for the log only: it may name files and addresses.
    pub(crate) fn internal() -> Self {
        Self::bug(
            "the request failed for a reason inside of the server, which its log has with the id of this request",
        )
    }

    pub(crate) fn bug(message: impl Into<String>) -> Self {
        Self { code: Some("internal_error"), ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, message) }
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "unavailable_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The JSON body: `{"error": {message, type, param, code}}`.
    pub(crate) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind(), "param": self.param, "code": self.code}})
    }
}

/// An error with all its causes, on one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let what = error.to_string();
    let because = causes(&what, error.source());
    [vec![what], because].concat().join(": ")
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if !self.logged {
            response.extensions_mut().insert(Refusal { param: self.param, code: self.code });
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        let bad = |param: &str, code| Self { code: Some(code), ..Self::field(param, message.clone()) };
        match &error {
            EngineError::Overloaded { retry_after, .. } => Self {
                code: Some("queue_full"),
                retry_after: Some(retry_after.as_secs().max(1)),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, message)
            },
            EngineError::TooLarge { .. } => bad("prompt", "request_too_large"),
            EngineError::EmptyPrompt => bad("prompt", "empty_prompt"),
            EngineError::Context { prompt, context, .. } => {
                bad(if prompt >= context { "prompt" } else { "max_tokens" }, "context_length_exceeded")
            }
            EngineError::Token { field, .. } | EngineError::Parameter { field, .. } => {
                bad(field, "invalid_value")
            }
            EngineError::Path { .. } => bad("path", "path_not_found"),
            EngineError::Deadline { .. } => {
                Self { code: Some("deadline_exceeded"), ..Self::new(StatusCode::GATEWAY_TIMEOUT, message) }
            }
            EngineError::ShuttingDown => Self::shutting_down(),
            EngineError::ThreadEnded { .. } => {
                Self { code: Some("engine_failed"), message, ..Self::shutting_down() }
            }
            _ => {
                tracing::error!(error = with_causes(&error), "a request failed");
                Self::internal()
            }
        }
    }
}
