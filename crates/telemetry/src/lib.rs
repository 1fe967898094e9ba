//! Output of a run for its user: progress on a terminal or as plain lines, logs, and events as JSON lines.
//!
//! Text for people goes to standard error, so that standard output stays free for data. A closed standard error is never an
//! error. Drivers report through [`Progress`] and [`Events`] and do not know the form of the output. This package starts
//! no thread of its own and makes no decision about the run.
//!
//! ```
//! use dipaco_telemetry::{Progress, ProgressUnit};
//!
//! let progress = Progress::hidden();
//! let task = progress.task("seed", Some(300), ProgressUnit::Count("steps"));
//! for _ in 0..300 {
//!     task.add(1);
//! }
//! task.finish();
//! ```

#![forbid(unsafe_code)]

mod causes;
mod clock;
mod event;
mod events;
mod exposition;
pub mod human;
mod live;
mod logs;
mod progress;
mod stderr;
mod table;

pub use causes::causes;
pub use clock::{RunClock, SystemClock};
pub use event::{Event, EventRecord, WireBytes};
pub use events::{Events, EventsError, WireCounter, read_events};
pub use exposition::{EXPOSITION_TYPE, Exposition, Histogram, MetricKind, label};
pub use live::{
    LiveLease, LiveModule, LivePath, LiveRun, LiveSource, LiveSynchronizer, LiveSynchronizerSource,
};
pub use logs::{LogFormat, LogOptions, LogsError, init_logs};
pub use progress::{Progress, ProgressUnit, Task};
pub use table::{Align, Table};
