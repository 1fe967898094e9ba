//! The time that a request has.

use std::future::Future;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName};
use dipaco_infer::EngineError;

use crate::error::ApiError;
use crate::{ServerState, settings};

const TIMEOUT: HeaderName = HeaderName::from_static("x-dipaco-timeout");

/// The time of a request: the header `x-dipaco-timeout`, at most `serve.request_timeout`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    began: Instant,
    time: Duration,
}

impl Deadline {
    /// The deadline of a request that arrived at `began`.
    pub(crate) fn of(state: &ServerState, headers: &HeaderMap, began: Instant) -> Result<Self, ApiError> {
        let most = settings::seconds(state.config.request_timeout);
        let time = match headers.get(&TIMEOUT) {
            None => most,
            Some(value) => {
                let asked = value.to_str().ok().and_then(|text| text.trim().parse().ok());
                let asked = asked.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                let message = "the header x-dipaco-timeout is not a number of seconds";
                asked.ok_or_else(|| ApiError::field("x-dipaco-timeout", message))?.min(most)
            }
        };
        Ok(Self { began, time })
    }

    /// The time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.time.saturating_sub(self.began.elapsed())
    }

    /// Awaits a part of the request, or fails with 504 when the time is up.
    pub(crate) async fn bound<T>(
        &self,
        part: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let left = self.left();
        // A timeout lets a part that is ready at once pass, whatever the time.
        if left.is_zero() {
            return Err(self.passed());
        }
        tokio::time::timeout(left, part).await.map_err(|_| self.passed())?
    }

    /// The answer to a failure of the engine. The engine knows only the time that was left when the request reached it.
    pub(crate) fn failure(&self, error: EngineError) -> ApiError {
        match error {
            EngineError::Deadline { .. } => self.passed(),
            error => error.into(),
        }
    }

    fn passed(&self) -> ApiError {
        EngineError::Deadline { deadline: self.time }.into()
    }
}
