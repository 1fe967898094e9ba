//! The text of a task's progress, for bars and plain lines.

use std::time::Duration;

use super::ProgressUnit;
use crate::human;

/// State of a task at a moment.
pub(super) struct Snapshot<'a> {
    pub(super) name: &'a str,
    pub(super) unit: ProgressUnit,
    pub(super) first: u64,
    pub(super) done: u64,
    pub(super) total: Option<u64>,
    pub(super) elapsed: Duration,
    pub(super) note: String,
}

impl Snapshot<'_> {
    /// `12.4 of 20.1 MB  3.1 MB/s  remaining 2 s  loss 3.2`
    pub(super) fn running(&self) -> String {
        let mut parts = vec![self.position()];
        parts.extend(self.rate_text());
        parts.extend(self.remaining().map(|left| format!("remaining {}", human::remaining(left))));
        self.joined(parts)
    }

    /// `20.1 MB in 6.4 s  3.1 MB/s  loss 3.2`
    pub(super) fn completed(&self) -> String {
        let took = human::duration(self.elapsed);
        // A task of an unknown size may count nothing.
        let uncounted = self.done == 0 && self.total.is_none();
        let mut parts = vec![if uncounted { took } else { format!("{} in {took}", self.amount(self.done)) }];
        parts.extend(self.rate_text());
        self.joined(parts)
    }

    /// `stopped at 12.4 of 20.1 MB`
    pub(super) fn stopped(&self) -> String {
        self.joined(vec![format!("stopped at {}", self.position())])
    }

    /// Logs the state, with its numbers as fields.
    pub(super) fn log(&self) {
        let rate = self.rate();
        let remaining = self.remaining().map(|left| left.as_secs_f64());
        let (task, note) = (self.name, self.note.as_str());
        tracing::info!(
            task,
            done = self.done,
            total = self.total,
            rate,
            remaining,
            note,
            "{}",
            self.running()
        );
    }

    fn joined(&self, mut parts: Vec<String>) -> String {
        if !self.note.is_empty() {
            parts.push(self.note.clone());
        }
        parts.join("  ")
    }

    fn position(&self) -> String {
        match (self.unit, self.total) {
            (_, None) => self.amount(self.done),
            (ProgressUnit::Bytes, Some(total)) => human::bytes_of(self.done, total),
            (ProgressUnit::Count(things), Some(total)) => {
                format!("{} of {} {things}", human::integer(self.done), human::integer(total))
            }
        }
    }

    fn amount(&self, amount: u64) -> String {
        match self.unit {
            ProgressUnit::Bytes => human::bytes(amount),
            ProgressUnit::Count(things) => format!("{} {things}", human::integer(amount)),
        }
    }

    /// Units per second since the task began; `None` before the first unit.
    fn rate(&self) -> Option<f64> {
        let done = self.done.saturating_sub(self.first);
        let seconds = self.elapsed.as_secs_f64();
        (done > 0 && seconds > 0.0).then(|| done as f64 / seconds)
    }

    fn rate_text(&self) -> Option<String> {
        self.rate().map(|rate| match self.unit {
            ProgressUnit::Bytes => human::byte_rate(rate),
            ProgressUnit::Count(things) => human::rate(rate, things),
        })
    }

    fn remaining(&self) -> Option<Duration> {
        let left = self.total?.checked_sub(self.done).filter(|&left| left > 0)?;
        Duration::try_from_secs_f64(left as f64 / self.rate()?).ok()
    }
}
