//! The time of day, passed in.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// Certificates are valid from this long before their issue, for machines with a slow clock.
pub(crate) const CLOCK_SLACK: Duration = Duration::from_secs(3600);

/// Tells the time of day. Certificates are checked and renewed by it.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::from_fn(SystemTime::now)
    }

    /// A clock that shows what `now` returns.
    pub fn from_fn(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        (self.0)()
    }

    /// True if the clock showed `then` and has been set back since, so far that a certificate of then is not valid yet.
    #[must_use]
    pub fn set_back_since(&self, then: SystemTime) -> bool {
        self.now() + CLOCK_SLACK < then
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").finish_non_exhaustive()
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let since_1970 = self.now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(UnixTime::since_unix_epoch(since_1970))
    }
}
