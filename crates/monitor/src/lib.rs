//! A training seen from outside: its history, metrics, and a page over HTTP.
//!
//! [`RunHistory`] is the sum of the events in `metrics.jsonl`. It survives a restart of the coordinator, because the file
//! does. [`CostMeter`] adds up seconds and bytes over the coordinators of a run, [`PathRounds`] the leases of a path over a
//! round.
//! [`LiveRun`](dipaco_telemetry::LiveRun) is the present state, from the coordinator. [`Monitor`] shows both, and
//! [`SynchronizerMonitor`] the present state of a synchronizer. [`serve`] answers with one of them.
//! [`TensorBoard`] writes the events for another program. Nothing here changes a run.

#![forbid(unsafe_code)]

mod coordinator;
mod cost;
mod event_file;
mod event_tail;
mod event_time;
mod history;
mod metrics;
mod page;
mod path_rounds;
mod serve;
mod synchronizer;
mod tensorboard;

pub use coordinator::Monitor;
pub use cost::{CostMeter, TrainingCost};
pub use event_tail::EventTail;
pub use history::{LossPoint, PathHistory, RunHistory, WorkerHistory};
pub use path_rounds::{PathRound, PathRounds};
pub use serve::{Watched, serve};
pub use synchronizer::SynchronizerMonitor;
pub use tensorboard::{TensorBoard, TensorBoardError, follow};
