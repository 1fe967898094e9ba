//! Errors of a simulation.

use dipaco_sync::{ProgressError, ScheduleError};
use thiserror::Error;

/// Reasons why a simulation of a run is impossible.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SimulateError {
    /// A setting is out of range.
    #[error("{what} = {value}: {problem}")]
    Setting {
        /// Name of the setting.
        what: &'static str,
        /// Value of the setting.
        value: f64,
        /// Reason why it is invalid.
        problem: &'static str,
    },
    /// A setting of the synchronisation is invalid.
    #[error("sync.{key} {problem}")]
    Sync {
        /// Key in section `[sync]`.
        key: &'static str,
        /// Reason why it is invalid.
        problem: String,
    },
    /// The settings do not make a schedule.
    #[error("inner steps, fragments and overlap do not fit together: {0}")]
    Schedule(#[from] ScheduleError),
    /// The core does not support this number of learners.
    #[error("{learners} learners are not supported: {problem}")]
    Learners {
        /// M.
        learners: u32,
        /// Reason of the core.
        problem: String,
    },
    /// The core refuses to start the run.
    #[error("the core refuses to start this run: {0}")]
    Progress(String),
    /// The core refuses a result of a learner.
    #[error("after {seconds} s the core refuses a result of learner {learner}: {problem}")]
    Refused {
        /// Virtual time.
        seconds: f64,
        /// Number of the learner.
        learner: usize,
        /// Reason of the core.
        problem: String,
    },
    /// The simulation has no further event.
    #[error(
        "the simulation has no further event after {seconds} s: the end of a transfer or of a pause is beyond representable time"
    )]
    Stuck {
        /// Virtual time.
        seconds: f64,
    },
    /// The run has more events than the limit.
    #[error(
        "the run is not over after {events} events: take longer inner steps, fewer learners or fragments, or a shorter \
         time"
    )]
    TooLong {
        /// Number of simulated events.
        events: u64,
    },
}

impl From<ProgressError> for SimulateError {
    fn from(error: ProgressError) -> Self {
        Self::Progress(error.to_string())
    }
}

impl SimulateError {
    /// Checks that a number is finite and above 0.
    pub(crate) fn positive(what: &'static str, value: f64) -> Result<(), Self> {
        if value.is_finite() && value > 0.0 {
            Ok(())
        } else {
            Err(Self::Setting { what, value, problem: "must be a number above 0" })
        }
    }

    /// Checks that a number is finite and at least 0.
    pub(crate) fn not_negative(what: &'static str, value: f64) -> Result<(), Self> {
        if value.is_finite() && value >= 0.0 {
            Ok(())
        } else {
            Err(Self::Setting { what, value, problem: "must be a number of at least 0" })
        }
    }
}
