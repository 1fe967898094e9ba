//! Id of a request.

use std::sync::{Arc, OnceLock};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::random::Random;

/// Most characters of an id.
pub(crate) const MAX_ID: usize = 128;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Id of a request: from its body, from its header, or random. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct RequestId {
    /// The id of the header, or a random one.
    own: Arc<str>,
    /// The id of the body.
    named: Arc<OnceLock<String>>,
}

impl RequestId {
    /// The id of the header of a request, or a random one.
    pub(crate) fn of(headers: &HeaderMap, random: &Random) -> Self {
        let given = headers.get(&HEADER).and_then(|value| value.to_str().ok());
        given.filter(|id| usable_id(id)).map_or_else(|| Self::new(&random.id()), Self::new)
    }

    /// The id of a request whose body names no other.
    pub(crate) fn new(own: &str) -> Self {
        Self { own: own.into(), named: Arc::default() }
    }

    /// Takes the field `request_id` of a body. From then on it is the id in the log and in the head of the answer, too.
    pub(crate) fn read(&self, fields: &mut Fields) -> Result<(), ApiError> {
        let Some(id) = fields.string("request_id")? else { return Ok(()) };
        if !usable_id(&id) {
            let message = format!("request_id must have 1 to {MAX_ID} visible characters of ASCII");
            return Err(ApiError::field("request_id", message));
        }
        // A request has one body, so there is no other id.
        let _ = self.named.set(id);
        tracing::Span::current().record("id", self.as_str());
        Ok(())
    }

    /// Puts the id into the head of an answer.
    pub(crate) fn name(&self, answer: &mut Response) {
        if let Ok(id) = HeaderValue::from_str(self.as_str()) {
            answer.headers_mut().insert(HEADER, id);
        }
    }

    /// The id.
    pub(crate) fn as_str(&self) -> &str {
        self.named.get().map_or(&*self.own, String::as_str)
    }
}

/// Returns whether an id from a client can stand in headers, in bodies and in the log.
fn usable_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_ID && id.bytes().all(|byte| byte.is_ascii_graphic())
}
