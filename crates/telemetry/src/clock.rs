//! Time as an argument, so that tests can control it.

use std::time::{Duration, Instant, SystemTime};

/// A source of time.
pub trait RunClock: Send + Sync {
    /// Time since a fixed moment. Never decreases.
    fn elapsed(&self) -> Duration;
    /// The time of day.
    fn now(&self) -> SystemTime;
}

/// The time of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose [`RunClock::elapsed`] starts at 0 now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }
}

impl RunClock for SystemClock {
    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}
