//! The finding of a check.

use std::error::Error;

use dipaco_telemetry::causes;
use serde::Serialize;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FindingStatus {
    Ok,
    Warn,
    Fail,
}

/// The finding of a check.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) status: FindingStatus,
    pub(super) found: String,
    /// The remedy; absent when the check succeeded.
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, status: FindingStatus::Ok, found: found.into(), remedy: None }
    }

    pub(super) fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, status: FindingStatus::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, status: FindingStatus::Fail, found: found.into(), remedy: Some(remedy.into()) }
    }
}

/// An error with all its causes, on one line.
pub(super) fn with_causes(error: &dyn Error) -> String {
    let what = error.to_string();
    let because: String =
        causes(&what, error.source()).iter().map(|cause| format!("; because: {cause}")).collect();
    what + &because
}
