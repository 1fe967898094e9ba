//! A training seen from outside: its history, metrics, and a page over HTTP.
//!
//! [`RunHistory`] is the sum of the events in `metrics.jsonl`. It survives a restart of the coordinator, because the file
//! does. [`LiveRun`](dipaco_telemetry::LiveRun) is the present state, from the coordinator. [`serve`] answers with both.
//! [`TensorBoard`] writes the events for another program. Nothing here changes a run.

#![forbid(unsafe_code)]

mod event_file;
mod event_tail;
mod history;
mod metrics;
mod page;
mod serve;
mod tensorboard;

pub use event_tail::EventTail;
pub use history::{LossPoint, PathHistory, RunHistory, WorkerHistory};
pub use serve::{Monitor, serve};
pub use tensorboard::{TensorBoard, TensorBoardError, follow};
