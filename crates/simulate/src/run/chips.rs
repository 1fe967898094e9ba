//! The chips of a learner, and how they fail.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::SimulateError;

/// Chips, how they fail, and what is done about it (arXiv:2604.21428, the failure simulation). Each fails at random,
/// independently of the others. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Chips {
    /// Chips of all learners together, divided among them evenly.
    pub count: u64,
    /// Whether a learner goes on with the chips that are left. One that is not dies with any of its chips.
    pub elastic: bool,
    /// Mean time between failures of one chip; default one year.
    pub failure_seconds: f64,
    /// Chips that one failure takes away: those that share its host and its network; default 64.
    pub slice: u64,
    /// Time until they are back; default 4 hours.
    pub return_seconds: f64,
    /// How long an elastic learner stops to go on without them, the step that was interrupted included; default 10 s.
    pub downscale_seconds: f64,
    /// How long it stops to take them back; default 10 s.
    pub upscale_seconds: f64,
    /// How long it takes until a learner that is not elastic has been started again, on spare chips; default 75 s. What
    /// it had not brought when it died comes on top.
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
            let problem = "there must be a chip for each learner at least";
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

/// What happens to the chips of a learner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Incident {
    /// It goes on with other chips after so many seconds.
    Stops(f64),
    /// It is gone, and is there again after so many seconds.
    Dies(f64),
    /// It is gone, and stays so until chips return.
    Gone,
}

/// The chips of one learner.
#[derive(Clone, Debug)]
pub(crate) struct OwnChips {
    chips: Chips,
    /// How many it has when all are there.
    all: f64,
    slice: f64,
    alive: f64,
    /// When slices return. The bits of a number above 0 are in its order.
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

    /// Draws when the next of the chips that are there fails.
    fn draw(&mut self, now: f64, random: &mut ChaCha8Rng) {
        let fragment: f64 = random.random();
        self.failure = now - (1.0 - fragment).ln() * self.chips.failure_seconds / self.alive;
    }

    fn back(&self) -> f64 {
        self.away.peek().map_or(f64::INFINITY, |&Reverse(bits)| f64::from_bits(bits))
    }

    /// When something happens to them next.
    pub(crate) fn next(&self) -> f64 {
        self.failure.min(self.back())
    }

    /// Failures up to now.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// The share of them that is there.
    pub(crate) fn share(&self) -> f64 {
        self.alive / self.all
    }

    /// Lets happen what happens [next](Self::next).
    pub(crate) fn happen(&mut self, random: &mut ChaCha8Rng) -> Incident {
        let now = self.next();
        let incident = if self.back() <= self.failure {
            self.away.pop();
            self.alive = (self.alive + self.slice).min(self.all);
            Incident::Stops(self.chips.upscale_seconds)
        } else {
            self.failures += 1;
            if self.chips.elastic {
                self.alive = (self.alive - self.slice).max(0.0);
                self.away.push(Reverse((now + self.chips.return_seconds).to_bits()));
                if self.alive > 0.0 { Incident::Stops(self.chips.downscale_seconds) } else { Incident::Gone }
            } else {
                Incident::Dies(self.chips.restart_seconds)
            }
        };
        self.draw(now, random);
        incident
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// Half of two chips fails; it is away for its time, and chips that are not there do not fail.
    #[test]
    fn chips_go_and_return() {
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let chips =
            Chips { count: 2, slice: 1, failure_seconds: 1e6, return_seconds: 1.0, ..Chips::default() };
        let mut own = OwnChips::new(chips, 1, &mut random);
        let mut last = 0.0;
        for _ in 0..10 {
            let fails = own.next();
            assert_eq!((own.happen(&mut random), own.share()), (Incident::Stops(10.0), 0.5));
            assert_eq!(own.next(), fails + 1.0);
            assert_eq!((own.happen(&mut random), own.share()), (Incident::Stops(10.0), 1.0));
            assert!(own.next() > fails && fails > last);
            last = fails;
        }
        assert_eq!(own.failures, 10);
        // About 5 × 10⁵ s between two failures of either.
        assert!((1e6..2e7).contains(&last), "{last}");
        let mut alone = OwnChips::new(Chips { count: 1, ..chips }, 1, &mut random);
        assert_eq!((alone.happen(&mut random), alone.share()), (Incident::Gone, 0.0));
        let mut brittle = OwnChips::new(Chips { elastic: false, ..chips }, 1, &mut random);
        assert_eq!((brittle.happen(&mut random), brittle.share()), (Incident::Dies(75.0), 1.0));
    }
}
