//! Why something can't be simulated.

use thiserror::Error;

/// A setting that can't be simulated.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{what} = {value}: {problem}")]
pub struct SimulateError {
    /// The setting.
    pub what: &'static str,
    /// Its value.
    pub value: f64,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl SimulateError {
    /// Checks that a number is finite and more than 0.
    pub(crate) fn positive(what: &'static str, value: f64) -> Result<(), Self> {
        if value.is_finite() && value > 0.0 {
            Ok(())
        } else {
            Err(Self { what, value, problem: "must be a number above 0" })
        }
    }

    /// Checks that a number is finite and at least 0.
    pub(crate) fn not_negative(what: &'static str, value: f64) -> Result<(), Self> {
        if value.is_finite() && value >= 0.0 {
            Ok(())
        } else {
            Err(Self { what, value, problem: "must be a number of at least 0" })
        }
    }
}
