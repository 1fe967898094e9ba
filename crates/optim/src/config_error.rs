//! The error for configuration values out of range.

use thiserror::Error;

/// A number of an optimizer's configuration is out of its range.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{key} is {value}: it must be {range}")]
pub struct OptimConfigError {
    /// The key, relative to its section.
    pub key: &'static str,
    /// The given value.
    pub value: f64,
    /// The allowed range, in words.
    pub range: &'static str,
}

/// Returns an error unless `allowed` is true.
pub(crate) fn require(
    allowed: bool,
    key: &'static str,
    value: f64,
    range: &'static str,
) -> Result<(), OptimConfigError> {
    if allowed { Ok(()) } else { Err(OptimConfigError { key, value, range }) }
}
