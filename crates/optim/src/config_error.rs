//! Configuration values that can't work.

use thiserror::Error;

/// A number of an optimizer's configuration is out of its range.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{key} is {value}: it must be {range}")]
pub struct OptimConfigError {
    /// The key, relative to its section.
    pub key: &'static str,
    /// The value given.
    pub value: f64,
    /// What is allowed, in words.
    pub range: &'static str,
}

/// Refuses a value that `allowed` is false for.
pub(crate) fn require(
    allowed: bool,
    key: &'static str,
    value: f64,
    range: &'static str,
) -> Result<(), OptimConfigError> {
    if allowed { Ok(()) } else { Err(OptimConfigError { key, value, range }) }
}
