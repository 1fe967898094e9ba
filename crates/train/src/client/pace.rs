//! Pacing: keeps transfers below a bandwidth.

use std::time::Duration;

/// Schedules transfers so that their mean rate stays below a bandwidth. Each transfer begins when the earlier transfers
/// would have ended at that bandwidth: the generic cell rate algorithm of ITU-T I.371, without a burst. An idle line earns
/// no credit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// 0 means no limit.
    bytes_per_second: u64,
    /// Time at which the line is free again.
    free: Duration,
}

impl Pace {
    /// A pace of so many megabits per second; 0 means no limit.
    pub(crate) fn new(megabits_per_second: u32) -> Self {
        Self { bytes_per_second: u64::from(megabits_per_second) * 1_000_000 / 8, free: Duration::ZERO }
    }

    /// Reserves the line for a transfer of so many bytes. Returns how long the transfer must wait from `now` on.
    pub(crate) fn wait(&mut self, now: Duration, bytes: u64) -> Duration {
        if self.bytes_per_second == 0 {
            return Duration::ZERO;
        }
        let begins = self.free.max(now);
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let lasts = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        self.free = begins.saturating_add(lasts);
        begins - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn simultaneous_transfers_are_spread_over_time() {
        let mut pace = Pace::new(8);
        // A megabyte a second: 500 kB take half a second.
        let waits = [0, 0, 0, 100].map(|now| pace.wait(ms(now), 500_000));
        assert_eq!(waits, [ms(0), ms(500), ms(1000), ms(1400)]);
    }

    #[test]
    fn an_idle_line_earns_no_credit() {
        let mut pace = Pace::new(8);
        assert_eq!(pace.wait(ms(0), 1_000_000), ms(0));
        assert_eq!(pace.wait(ms(60_000), 1_000_000), ms(0));
        assert_eq!(pace.wait(ms(60_000), 1_000_000), ms(1000));
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut pace = Pace::new(0);
        assert_eq!([0, 0].map(|now| pace.wait(ms(now), u64::MAX)), [ms(0); 2]);
    }
}
