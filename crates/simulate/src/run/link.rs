//! The link of a learner.

use serde::{Deserialize, Serialize};

use crate::SimulateError;

/// Number of buckets of a send.
const BUCKETS: f64 = 128.0;
/// Share of a step in which the buckets become ready: the backward pass takes twice as long as the forward pass.
const BACKWARD: f64 = 2.0 / 3.0;

/// Link between a learner and the other learners.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Bits per second.
    pub bits_per_second: f64,
    /// Latency of each bucket in seconds, in addition to the time of its bits.
    pub latency_seconds: f64,
}

impl Link {
    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        SimulateError::positive("bits per second", self.bits_per_second)?;
        SimulateError::not_negative("seconds of latency", self.latency_seconds)
    }

    /// Arrival time of a step's send (arXiv:2501.18512 §3.1). The send consists of equal buckets, which become ready
    /// one after another in the backward pass of the step. The link carries them in order, from time `free` on. Times
    /// are in seconds.
    pub(crate) fn arrival(&self, free: f64, step_end: f64, step_seconds: f64, bits: f64) -> f64 {
        let each = self.latency_seconds + bits / BUCKETS / self.bits_per_second;
        // Buckets become ready at equal intervals. So either the link is busy from the first bucket on, or it was busy
        // with an earlier send, or the last bucket leaves as soon as it is ready: the latest of these times counts.
        let first = step_end - BACKWARD * step_seconds * (1.0 - 1.0 / BUCKETS);
        (free.max(first) + BUCKETS * each).max(step_end + each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference: simulates each bucket.
    fn played(link: &Link, mut free: f64, end: f64, step: f64, bits: f64) -> f64 {
        for bucket in 1..=128 {
            let ready = end - step + (1.0 / 3.0 + f64::from(bucket) / 128.0 * 2.0 / 3.0) * step;
            free = ready.max(free) + link.latency_seconds + bits / 128.0 / link.bits_per_second;
        }
        free
    }

    #[test]
    fn the_last_bucket_arrives_when_all_before_it_have() {
        for (free, seconds) in [(0.0, 0.1), (0.0, 2.0), (0.0, 50.0), (9.9, 0.1), (9.9, 2.0), (30.0, 0.1)] {
            for latency_seconds in [0.0, 1e-4] {
                let link = Link { bits_per_second: 1e9, latency_seconds };
                let arrival = link.arrival(free, 10.0, 3.0, 1e9 * seconds);
                let expected = played(&link, free, 10.0, 3.0, 1e9 * seconds);
                assert!((arrival - expected).abs() < 1e-9, "{free} {seconds}: {arrival} for {expected}");
            }
        }
    }
}
