//! Warnings that a stranger can cause: a bounded number of log lines, whatever the stranger sends.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Lets one warning in ten seconds through, and counts the others.
#[derive(Debug, Default)]
pub struct RareWarning {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

impl RareWarning {
    /// Returns the number of suppressed warnings if this warning is due at `now`, and counts it otherwise.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_warnings_is_a_line_in_ten_seconds() {
        let (warning, begin) = (RareWarning::default(), Instant::now());
        let lines = (0..10_000).filter_map(|i| warning.due(begin + Duration::from_millis(10 * i)));
        assert_eq!(lines.collect::<Vec<_>>(), [vec![0], vec![999; 9]].concat());
    }
}
