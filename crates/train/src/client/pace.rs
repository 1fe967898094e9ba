//! Keeps transfers below a bandwidth.

use std::time::Duration;

/// Says when bytes may begin to travel, so that over time no more than a bandwidth is used: each transfer begins when
/// those before it would have ended at that bandwidth (the generic cell rate algorithm of ITU-T I.371, without a burst).
/// Time that went by unused is not made up for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// 0 is no limit.
    bytes_per_second: u64,
    /// When the line is free again.
    free: Duration,
}

impl Pace {
    /// A pace of so many megabits per second; 0 is no limit.
    pub(crate) fn new(megabits_per_second: u32) -> Self {
        Self { bytes_per_second: u64::from(megabits_per_second) * 1_000_000 / 8, free: Duration::ZERO }
    }

    /// How long a transfer of so many bytes must wait that could begin `now`. Its time on the line is taken from then on.
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
    fn transfers_that_come_at_once_are_spread_over_the_time_that_they_need() {
        let mut pace = Pace::new(8);
        // A megabyte a second: 500 kB take half a second.
        let waits = [0, 0, 0, 100].map(|now| pace.wait(ms(now), 500_000));
        assert_eq!(waits, [ms(0), ms(500), ms(1000), ms(1400)]);
    }

    #[test]
    fn silence_is_not_made_up_for() {
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
