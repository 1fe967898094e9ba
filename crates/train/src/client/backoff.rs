//! Pauses between attempts.

use std::time::Duration;

use crate::client::ClientError;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// The pauses between attempts at something of which nothing announces that it will work: 100 ms at first, and twice as long
/// each time, up to five seconds.
pub(crate) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// The next pause.
    pub(crate) fn next(&self) -> Duration {
        self.next
    }

    /// Pauses.
    ///
    /// # Errors
    /// When `cancelled` is ready meanwhile.
    pub(crate) async fn pause(&mut self, cancelled: impl Future<Output = ()>) -> Result<(), ClientError> {
        tokio::select! {
            () = tokio::time::sleep(self.next) => {}
            () = cancelled => return Err(ClientError::cancelled()),
        }
        self.next = (self.next * 2).min(LONGEST);
        Ok(())
    }
}
