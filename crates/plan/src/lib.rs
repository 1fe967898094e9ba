//! The cost of a training, and the settings that the literature advises for it.
//!
//! [`law`] has the scaling laws of DiLoCo, [`Plan`] compares them with the settings of a run. No I/O and no clock.

#![forbid(unsafe_code)]

pub mod law;
mod plan;
mod time;

pub use plan::{LevelPlan, Plan, PlannedLevel, Setting, ShardPlan, TrainingPlan};
pub use time::{TimePlan, WorkerFleet, WorkerLink};
