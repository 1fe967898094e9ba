//! When the coordinator did not run.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest time between two looks at the clock of a coordinator that runs.
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);

/// The looks of a coordinator at its clock. A late look shows that it did not run meanwhile: somebody stopped its process or its
/// virtual machine, or the machine was far too busy. It heard no worker in this time, whatever the workers did.
///
/// The clock of leases stands still while a Linux or macOS machine sleeps, so a sleep takes no time from a lease.
#[derive(Debug)]
pub(crate) struct ClockLooks {
    /// Longest time between two looks. A look is late after twice this time, so a stop that nobody notices takes at most half of
    /// the time of a lease.
    pub(super) every: Duration,
    /// Time of the last look.
    last: Mutex<Duration>,
}

impl ClockLooks {
    /// The looks from `now` on of a coordinator whose leases end after `silence` without a heartbeat.
    pub(crate) fn new(silence: Duration, now: Duration) -> Self {
        Self { every: BETWEEN_LOOKS.min(silence / 4), last: Mutex::new(now) }
    }

    /// Notes a look. Returns the time since the last one if this one is late.
    pub(super) fn look(&self, now: Duration) -> Option<Duration> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let without = now.saturating_sub(*last);
        *last = now.max(*last);
        (without > self.every * 2).then_some(without)
    }
}
