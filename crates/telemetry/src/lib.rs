//! What a run tells its user: progress on a terminal or as plain lines, logs, and events as JSON lines.
//!
//! Everything for people goes to standard error, so that standard output stays for data; a closed standard error is
//! never a reason to fail. Drivers report through [`Progress`] and [`Events`] and know nothing of what becomes of it.
//! This package starts no thread of its own and decides nothing about the run.
//!
//! ```
//! use dipaco_telemetry::{Progress, Unit};
//!
//! let progress = Progress::hidden();
//! let task = progress.task("seed", Some(300), Unit::Count("steps"));
//! for _ in 0..300 {
//!     task.add(1);
//! }
//! task.finish();
//! ```

mod clock;
mod event;
mod events;
pub mod human;
mod logs;
mod progress;
mod stderr;
mod table;

pub use clock::{Clock, SystemClock};
pub use event::{Event, Record};
pub use events::{Events, EventsError, read_events};
pub use logs::{LogFormat, LogOptions, LogsError, init_logs};
pub use progress::{Progress, Task, Unit};
pub use table::{Align, Table};
