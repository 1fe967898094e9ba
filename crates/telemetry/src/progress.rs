//! Progress of tasks: bars on a terminal, otherwise a plain line every few seconds.

mod line;

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use self::line::Snapshot;
use crate::stderr::{Stderr, Terminal};
use crate::{RunClock, SystemClock};

/// Unit of a task's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressUnit {
    /// Bytes, shown as kB, MB and so on.
    Bytes,
    /// Things with this name in the plural, as in `"steps"`.
    Count(&'static str),
}

/// Time between two plain lines of a task.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two drawings of a bar.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// Output of progress. Cheap to clone.
#[derive(Clone)]
pub struct Progress {
    output: Arc<Output>,
    clock: Arc<dyn RunClock>,
}

enum Output {
    Hidden,
    Plain(Mutex<Box<dyn Write + Send>>),
    Logged,
    Bars(MultiProgress),
}

impl Progress {
    /// Shows nothing.
    #[must_use]
    pub fn hidden() -> Self {
        Self { output: Arc::new(Output::Hidden), clock: Arc::new(SystemClock::start()) }
    }

    /// Bars when standard error is a terminal that can move its cursor, plain lines on standard error otherwise.
    #[must_use]
    pub fn stderr() -> Self {
        let terminal = std::io::stderr().is_terminal() && console::Term::stderr().features().is_attended();
        if terminal && std::env::var_os("TERM").is_none_or(|term| term != "dumb") {
            let target = ProgressDrawTarget::term_like_with_hz(Box::new(Terminal::stderr()), 20);
            let output = Output::Bars(MultiProgress::with_draw_target(target));
            return Self { output: Arc::new(output), clock: Arc::new(SystemClock::start()) };
        }
        Self::plain(Box::new(Stderr), Arc::new(SystemClock::start()))
    }

    /// Plain lines to `writer`: at most one per task every five seconds, and one at its end.
    #[must_use]
    pub fn plain(writer: Box<dyn Write + Send>, clock: Arc<dyn RunClock>) -> Self {
        Self { output: Arc::new(Output::Plain(Mutex::new(writer))), clock }
    }

    /// The plain lines as log events of level INFO, with their numbers as fields. For logs in JSON.
    #[must_use]
    pub fn logged() -> Self {
        Self { output: Arc::new(Output::Logged), clock: Arc::new(SystemClock::start()) }
    }

    /// Begins a task of `total` units; `None` for an unknown total.
    #[must_use]
    pub fn task(&self, name: &str, total: Option<u64>, unit: ProgressUnit) -> Task {
        let now = self.clock.elapsed();
        let bar = match &*self.output {
            Output::Bars(bars) => Some(bars.add(new_bar(name, total))),
            _ => None,
        };
        let state = TaskState {
            progress: self.clone(),
            name: name.to_owned(),
            unit,
            begin: now,
            first: AtomicU64::new(0),
            done: AtomicU64::new(0),
            total,
            ended: AtomicBool::new(false),
            shown: Mutex::new(Shown { at: now, note: String::new() }),
            bar,
        };
        state.show(now, true);
        Task { state: Arc::new(state) }
    }

    /// Hides the bars while `write` writes to standard error.
    pub fn suspend<R>(&self, write: impl FnOnce() -> R) -> R {
        match &*self.output {
            Output::Bars(bars) => bars.suspend(write),
            _ => write(),
        }
    }

    /// Writes a line of text to the output of progress, above the bars. Writes nothing if progress is hidden.
    pub fn line(&self, text: &str) {
        match &*self.output {
            Output::Hidden => {}
            Output::Plain(writer) => write_line(writer, text),
            Output::Logged => tracing::info!("{text}"),
            Output::Bars(bars) => bars.suspend(|| write_line(&Mutex::new(Box::new(Stderr)), text)),
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &*self.output {
            Output::Hidden => "hidden",
            Output::Plain(_) => "plain",
            Output::Logged => "logged",
            Output::Bars(_) => "bars",
        };
        f.debug_struct("Progress").field("output", &kind).finish_non_exhaustive()
    }
}

fn new_bar(name: &str, total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::new(total.unwrap_or(0)).with_prefix(name.to_owned());
    let template =
        if total.is_some() { "{prefix:<10} [{bar:24}] {wide_msg}" } else { "{prefix:<10} {wide_msg}" };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

fn write_line(writer: &Mutex<Box<dyn Write + Send>>, text: &str) {
    let mut writer = lock(writer);
    // An error here means that the reader of the output is gone, which must not end the run.
    let _ = writeln!(writer, "{text}");
    let _ = writer.flush();
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running task. Clones count into the same task, from any thread. If the last clone is dropped before
/// [`Task::finish`], the task is shown as stopped.
#[derive(Clone)]
pub struct Task {
    state: Arc<TaskState>,
}

struct TaskState {
    progress: Progress,
    name: String,
    unit: ProgressUnit,
    /// Time of the task's begin.
    begin: Duration,
    /// Number of units done before the task began.
    first: AtomicU64,
    done: AtomicU64,
    total: Option<u64>,
    ended: AtomicBool,
    shown: Mutex<Shown>,
    bar: Option<ProgressBar>,
}

struct Shown {
    at: Duration,
    note: String,
}

impl Task {
    /// Adds `units` to the number of units done.
    pub fn add(&self, units: u64) {
        self.state.done.fetch_add(units, Ordering::Relaxed);
        self.state.tick();
    }

    /// Sets the number of units done.
    pub fn set(&self, done: u64) {
        self.state.done.store(done, Ordering::Relaxed);
        self.state.tick();
    }

    /// Sets the number of units that were done before the task began. They count neither for the rate nor for the remaining
    /// time.
    pub fn resume_at(&self, done: u64) {
        self.state.first.store(done, Ordering::Relaxed);
        self.state.done.store(done, Ordering::Relaxed);
    }

    /// Sets a short text that is shown after the numbers, as in `loss 3.214`.
    pub fn note(&self, text: impl Into<String>) {
        lock(&self.state.shown).note = text.into();
        self.state.tick();
    }

    /// Ends the task.
    pub fn finish(&self) {
        self.state.end(true);
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = self.state.done.load(Ordering::Relaxed);
        f.debug_struct("Task").field("name", &self.state.name).field("done", &done).finish_non_exhaustive()
    }
}

impl TaskState {
    fn snapshot(&self, now: Duration, note: &str) -> Snapshot<'_> {
        Snapshot {
            unit: self.unit,
            first: self.first.load(Ordering::Relaxed),
            done: self.done.load(Ordering::Relaxed),
            total: self.total,
            elapsed: now.saturating_sub(self.begin),
            note: note.to_owned(),
            name: &self.name,
        }
    }

    fn tick(&self) {
        if !matches!(&*self.progress.output, Output::Hidden) {
            self.show(self.progress.clock.elapsed(), false);
        }
    }

    fn show(&self, now: Duration, first: bool) {
        let interval = if self.bar.is_some() { BAR_INTERVAL } else { PLAIN_INTERVAL };
        if self.ended.load(Ordering::Relaxed) || (first && self.bar.is_none()) {
            return;
        }
        let mut shown = lock(&self.shown);
        if !first && now.saturating_sub(shown.at) < interval {
            return;
        }
        shown.at = now;
        let snapshot = self.snapshot(now, &shown.note);
        match (&*self.progress.output, &self.bar) {
            (Output::Plain(writer), _) => {
                write_line(writer, &format!("{}  {}", self.name, snapshot.running()));
            }
            (Output::Logged, _) => snapshot.log(),
            (_, Some(bar)) => {
                bar.set_position(snapshot.done);
                bar.set_message(snapshot.running());
            }
            _ => {}
        }
    }

    fn end(&self, completed: bool) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let shown = lock(&self.shown);
        let snapshot = self.snapshot(self.progress.clock.elapsed(), &shown.note);
        let text = if completed { snapshot.completed() } else { snapshot.stopped() };
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.progress.line(&format!("{}  {text}", self.name));
    }
}

impl Drop for TaskState {
    fn drop(&mut self) {
        self.end(false);
    }
}

#[cfg(test)]
mod tests;
