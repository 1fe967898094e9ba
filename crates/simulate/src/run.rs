//! A large run in virtual time.
//!
//! Learners are the paths through one module. Each asks the core for leases, trains with the chips that it has, sends what
//! the lease asks for over its link, and completes it; the core ([`dipaco_sync`]) says who trains what from where to where,
//! which outer step is due and who waits. What happens to chips and links is played; nothing is trained.

mod chips;
mod learner;
mod link;
mod tally;
mod world;

use std::time::Duration;

use serde::Serialize;

pub use self::chips::Chips;
pub use self::link::Link;
use self::world::{End, World};
use crate::{Scheme, SimulateError};

/// The most learners.
const MOST_LEARNERS: u32 = 4096;
/// Inner steps of each learner that are played at least when no chips fail.
const STEPS: u64 = 2000;
/// Failures that are played at least, for each learner that fails on its own, when nothing else says how long to play.
const FAILURES: f64 = 4000.0;
/// And how often chips must have returned.
const RETURNS: f64 = 2.0;

/// A large run. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LargeRun {
    /// M, learners; 1 is data parallel training.
    pub learners: u32,
    /// What they send when, and who waits for whom.
    pub scheme: Scheme,
    /// Parameters that are synchronised.
    pub parameters: f64,
    /// Time of an inner step of a learner with all its chips.
    pub step_seconds: f64,
    /// How much longer the steps of every second learner take, as a share.
    pub speed_gap: f64,
    /// The standard deviation of the time of a step, as a share of it.
    pub step_variation: f64,
    /// Time of an outer step.
    pub outer_seconds: f64,
    /// Whether the state of a path (moments, data) stays with the learner that trains it, as `train.state_every` and
    /// `train.held_paths` have it: then the path waits for it while it is around. Otherwise whoever is free takes the path
    /// that is furthest behind.
    pub state_stays: bool,
    /// The link of each learner; without one, nothing that is sent takes time.
    pub link: Option<Link>,
    /// The chips; without them, nothing fails.
    pub chips: Option<Chips>,
    /// Virtual time that is measured; 0 takes as long as it takes for the numbers to settle.
    pub seconds: f64,
    /// Seed of what happens.
    pub seed: u64,
}

impl LargeRun {
    /// Learners that nothing happens to.
    #[must_use]
    pub fn new(learners: u32, scheme: Scheme, parameters: f64, step_seconds: f64) -> Self {
        Self {
            learners,
            scheme,
            parameters,
            step_seconds,
            speed_gap: 0.0,
            step_variation: 0.0,
            outer_seconds: 0.0,
            state_stays: true,
            link: None,
            chips: None,
            seconds: 0.0,
            seed: 0,
        }
    }

    /// Bits that the link of a learner carries for each fragment: in a ring it sends and receives everything but its own
    /// part, twice.
    fn fragment_bits(&self) -> f64 {
        let ring = 2.0 * (1.0 - 1.0 / f64::from(self.learners));
        self.parameters * self.scheme.value_bits * ring / f64::from(self.scheme.sync.fragments)
    }

    fn check(&self) -> Result<(), SimulateError> {
        SimulateError::positive("learners", f64::from(self.learners))?;
        if self.learners > MOST_LEARNERS {
            let problem = "must be at most 4096";
            return Err(SimulateError::Setting {
                what: "learners",
                value: f64::from(self.learners),
                problem,
            });
        }
        SimulateError::positive("parameters", self.parameters)?;
        SimulateError::positive("seconds of a step", self.step_seconds)?;
        for (what, value) in [
            ("speed gap", self.speed_gap),
            ("variation of a step", self.step_variation),
            ("seconds of an outer step", self.outer_seconds),
            ("seconds to play", self.seconds),
        ] {
            SimulateError::not_negative(what, value)?;
        }
        self.link.iter().try_for_each(Link::check)?;
        self.chips.iter().try_for_each(|chips| chips.check(self.learners))
    }

    /// From when on it is measured, and until when it is played.
    fn time(&self) -> Result<(Duration, End), SimulateError> {
        let time = |what, seconds| {
            let problem = "time is not counted for so long";
            let error = SimulateError::Setting { what, value: seconds, problem };
            Duration::try_from_secs_f64(seconds).map_err(|_| error)
        };
        // From then on as many chips are away as ever.
        let from = self.chips.filter(|chips| chips.elastic).map_or(0.0, |chips| chips.return_seconds);
        let seconds = match self.chips {
            _ if self.seconds > 0.0 => self.seconds,
            Some(chips) => {
                let failures = FAILURES / f64::from(self.learners);
                (failures * chips.failure_seconds / chips.count as f64).max(RETURNS * chips.return_seconds)
            }
            None => {
                let cycle = u64::from(self.scheme.inner_steps);
                return Ok((Duration::ZERO, End::Step(STEPS.div_ceil(cycle).max(10) * cycle)));
            }
        };
        let end = time("seconds to play", from + seconds)?;
        Ok((time("seconds until chips return", from)?, End::At(end)))
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Played {
    /// Share of all chips' time that is spent on training that counts, from 0 to 1.
    pub goodput: f64,
    /// Share of the time in which a learner trains, with however many chips, from 0 to 1.
    pub utilisation: f64,
    /// Share of the time in which at least one learner trains, from 0 to 1.
    pub uptime: f64,
    /// Failures of chips.
    pub failures: u64,
    /// Outer steps of fragments.
    pub outer_steps: u64,
    /// Learners that an outer step takes something from, in the mean.
    pub contributors: f64,
    /// Virtual seconds that were measured.
    pub seconds: f64,
}

/// Plays a run. It is a function of its arguments: the same seed gives the same numbers.
///
/// # Errors
///
/// [`SimulateError`] for a run that can't be played.
pub fn play(run: &LargeRun) -> Result<Played, SimulateError> {
    run.check()?;
    let (from, end) = run.time()?;
    World::new(run, from, end)?.play()
}

#[cfg(test)]
mod tests;
