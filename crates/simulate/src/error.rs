//! Why something can't be simulated.

use dipaco_sync::{ProgressError, ScheduleError};
use thiserror::Error;

/// Why a run can't be simulated.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SimulateError {
    /// A setting that can't be.
    #[error("{what} = {value}: {problem}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: f64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A setting of the synchronisation that can't be.
    #[error("sync.{key} {problem}")]
    Sync {
        /// The key of section `[sync]`.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A schedule that can't be.
    #[error("inner steps, fragments and overlap do not fit together: {0}")]
    Schedule(#[from] ScheduleError),
    /// Learners that the core can't have.
    #[error("{learners} learners can't be: {problem}")]
    Learners {
        /// M.
        learners: u32,
        /// What is wrong with them.
        problem: String,
    },
    /// The core does not begin a run like this.
    #[error("the core does not begin this run: {0}")]
    Progress(String),
    /// The core refuses what a learner brings.
    #[error("after {seconds} s the core refuses learner {learner}: {problem}")]
    Refused {
        /// Virtual time.
        seconds: f64,
        /// Who is refused.
        learner: usize,
        /// Why.
        problem: String,
    },
    /// Nothing happens any more.
    #[error(
        "nothing happens any more after {seconds} s: a transfer or a stop takes longer than time is counted"
    )]
    Stuck {
        /// Virtual time.
        seconds: f64,
    },
    /// More events than are played.
    #[error(
        "{events} events are played and the run is not over: take longer inner steps, fewer learners or fragments, or a \
         shorter time"
    )]
    TooLong {
        /// Events that were played.
        events: u64,
    },
}

impl From<ProgressError> for SimulateError {
    fn from(error: ProgressError) -> Self {
        Self::Progress(error.to_string())
    }
}

impl SimulateError {
    /// Checks that a number is finite and more than 0.
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
