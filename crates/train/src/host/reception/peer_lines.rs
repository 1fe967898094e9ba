//! Lines in the log that peers with a token cause.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use dipaco_net::RareWarning;

/// Lines of a token from which on its lines are rare.
const FIRST_LINES: u32 = 10_000;

/// Lets the first 10,000 lines of each token through, and then one in ten seconds. A peer may connect and leave under as
/// many names as it likes, but only the operator makes tokens.
#[derive(Debug, Default)]
pub(crate) struct PeerLines {
    tokens: Mutex<BTreeMap<String, TokenLines>>,
}

#[derive(Debug, Default)]
struct TokenLines {
    first: u32,
    rest: RareWarning,
}

impl PeerLines {
    /// Returns whether a line about a peer with this token may be written at `now`. Before a line that follows
    /// suppressed ones, another tells their number.
    pub(crate) fn allow(&self, token: &str, now: Instant) -> bool {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = tokens.entry(token.to_owned()).or_default();
        if lines.first < FIRST_LINES {
            lines.first += 1;
            return true;
        }
        let due = lines.rest.due(now);
        drop(tokens);
        if let Some(suppressed @ 1..) = due {
            tracing::warn!(
                token,
                suppressed,
                "the peers of a token cause very many lines; some are left out"
            );
        }
        due.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_of_lines_is_a_line_in_ten_seconds_for_its_token_alone() {
        let (lines, begin) = (PeerLines::default(), Instant::now());
        let allowed = |from: u64, to: u64| {
            (from..to).filter(|&i| lines.allow("flood", begin + Duration::from_millis(i))).count()
        };
        assert_eq!(allowed(0, 10_000), 10_000);
        assert_eq!(allowed(10_000, 110_000), 10);
        assert!(lines.allow("other", begin + Duration::from_millis(110_000)));
    }
}
