//! The cost of a training, and the settings that the literature advises for it.
//!
//! [`law`] has the scaling laws of DiLoCo, [`Plan`] compares them with the settings of a run, and [`MeasuredLaw`] is fitted to
//! runs that the user has measured. No I/O and no clock.

#![forbid(unsafe_code)]

pub mod law;
mod measured;
mod plan;
mod time;

pub use measured::{
    FitError, MeasuredLaw, MeasuredPrediction, MeasuredQuantity, MeasuredRun, OutsideOfRuns, RunSize,
};
pub use plan::{LevelPlan, MeasuredPlan, OuterRate, Plan, PlannedLevel, Setting, ShardPlan, TrainingPlan};
pub use time::{PlannedRounds, PlannedSeed, TimePlan, WorkerFleet, WorkerLink};
