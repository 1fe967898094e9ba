//! The chips of a learner, and their failures.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::SimulateError;

/// Chips, their failures and the recovery (arXiv:2604.21428, the failure simulation). Each chip fails at random,
/// independently of the others. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Chips {
    /// Chips of all learners together, divided evenly.
    pub count: u64,
    /// True if a learner continues with its remaining chips. Otherwise it dies with any of its chips.
    pub elastic: bool,
    /// Mean time between failures of one chip; default one year.
    pub failure_seconds: f64,
    /// Chips lost by a failure: all chips that share a host and a network; default 64.
    pub slice: u64,
    /// Time until lost chips return; default 4 hours.
    pub return_seconds: f64,
    /// Pause of an elastic learner after a failure, including the interrupted step; default 10 s.
    pub downscale_seconds: f64,
    /// Pause of an elastic learner to take chips back; default 10 s.
    pub upscale_seconds: f64,
    /// Time until a learner that is not elastic has restarted on spare chips; default 75 s. The repeated training of
    /// its lost lease comes in addition.
    pub restart_seconds: f64,
}

impl Default for Chips {
    fn default() -> Self {
        Self {
            count: 150_000,
            elastic: true,
            failure_seconds: 365.25 * 86_400.0,
            slice: 64,
            return_seconds: 4.0 * 3600.0,
            downscale_seconds: 10.0,
            upscale_seconds: 10.0,
            restart_seconds: 75.0,
        }
    }
}

impl Chips {
    pub(crate) fn check(&self, learners: u32) -> Result<(), SimulateError> {
        SimulateError::positive("chips", self.count as f64)?;
        SimulateError::positive("chips of a slice", self.slice as f64)?;
        if self.count < u64::from(learners) {
            let problem = "must be at least the number of learners";
            return Err(SimulateError::Setting { what: "chips", value: self.count as f64, problem });
        }
        SimulateError::positive("seconds between failures of a chip", self.failure_seconds)?;
        for (what, value) in [
            ("seconds until chips return", self.return_seconds),
            ("seconds to go on with fewer chips", self.downscale_seconds),
            ("seconds to take chips back", self.upscale_seconds),
            ("seconds to restart", self.restart_seconds),
        ] {
            SimulateError::not_negative(what, value)?;
        }
        Ok(())
    }
}

/// An event of a learner's chips.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ChipEvent {
    /// The learner pauses for so many seconds and continues with a different number of chips.
    Stops(f64),
    /// The learner dies and restarts after so many seconds.
    Dies(f64),
    /// The learner has lost all chips. It restarts when chips return.
    Gone,
}

/// Chips of a learner.
#[derive(Clone, Debug)]
pub(crate) struct OwnChips {
    chips: Chips,
    /// Number of chips without failures.
    all: f64,
    slice: f64,
    alive: f64,
    /// Return times of lost slices, as bits: the bits of positive floats have the order of the floats.
    away: BinaryHeap<Reverse<u64>>,
    failure: f64,
    failures: u64,
}

impl OwnChips {
    pub(crate) fn new(chips: Chips, learners: u32, random: &mut ChaCha8Rng) -> Self {
        let all = chips.count as f64 / f64::from(learners);
        let slice = (chips.slice as f64).min(all);
        let mut own =
            Self { chips, all, slice, alive: all, away: BinaryHeap::new(), failure: 0.0, failures: 0 };
        own.draw(0.0, random);
        own
    }

    /// Draws the time of the next failure among the available chips.
    fn draw(&mut self, now: f64, random: &mut ChaCha8Rng) {
        let uniform: f64 = random.random();
        self.failure = now - (1.0 - uniform).ln() * self.chips.failure_seconds / self.alive;
    }

    fn back(&self) -> f64 {
        self.away.peek().map_or(f64::INFINITY, |&Reverse(bits)| f64::from_bits(bits))
    }

    /// Time of the next event.
    pub(crate) fn next(&self) -> f64 {
        self.failure.min(self.back())
    }

    /// Failures so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Share of available chips.
    pub(crate) fn share(&self) -> f64 {
        self.alive / self.all
    }

    /// Carries out the [next](Self::next) event.
    pub(crate) fn advance(&mut self, random: &mut ChaCha8Rng) -> ChipEvent {
        let now = self.next();
        let event = if self.back() <= self.failure {
            self.away.pop();
            self.alive = (self.alive + self.slice).min(self.all);
            ChipEvent::Stops(self.chips.upscale_seconds)
        } else {
            self.failures += 1;
            if self.chips.elastic {
                self.alive = (self.alive - self.slice).max(0.0);
                self.away.push(Reverse((now + self.chips.return_seconds).to_bits()));
                if self.alive > 0.0 {
                    ChipEvent::Stops(self.chips.downscale_seconds)
                } else {
                    ChipEvent::Gone
                }
            } else {
                ChipEvent::Dies(self.chips.restart_seconds)
            }
        };
        self.draw(now, random);
        event
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// One of two chips fails and returns after its time; absent chips do not fail.
    #[test]
    fn chips_go_and_return() {
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let chips =
            Chips { count: 2, slice: 1, failure_seconds: 1e6, return_seconds: 1.0, ..Chips::default() };
        let mut own = OwnChips::new(chips, 1, &mut random);
        let mut last = 0.0;
        for _ in 0..10 {
            let fails = own.next();
            assert_eq!((own.advance(&mut random), own.share()), (ChipEvent::Stops(10.0), 0.5));
            assert_eq!(own.next(), fails + 1.0);
            assert_eq!((own.advance(&mut random), own.share()), (ChipEvent::Stops(10.0), 1.0));
            assert!(own.next() > fails && fails > last);
            last = fails;
        }
        assert_eq!(own.failures, 10);
        // About 5 × 10⁵ s between two failures of any chip.
        assert!((1e6..2e7).contains(&last), "{last}");
        let mut alone = OwnChips::new(Chips { count: 1, ..chips }, 1, &mut random);
        assert_eq!((alone.advance(&mut random), alone.share()), (ChipEvent::Gone, 0.0));
        let mut brittle = OwnChips::new(Chips { elastic: false, ..chips }, 1, &mut random);
        assert_eq!((brittle.advance(&mut random), brittle.share()), (ChipEvent::Dies(75.0), 1.0));
    }
}
