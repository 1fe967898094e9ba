//! Simulation of a large run in virtual time.
//!
//! Learners are the paths through one module. Each learner asks the core for leases, trains with its available chips,
//! sends the scheduled fragments over its link, and completes the lease. The core ([`dipaco_sync`]) grants leases and
//! decides about outer steps and waits. Chips and links are simulated; nothing is trained.

mod chips;
mod learner;
mod link;
mod tally;
mod world;

use std::time::Duration;

use serde::Serialize;

pub use self::chips::Chips;
pub use self::link::Link;
use self::world::{RunEnd, RunWorld};
use crate::{SimulateError, SimulatedScheme};

/// Largest number of learners.
const MOST_LEARNERS: u32 = 4096;
/// Fewest inner steps of each learner in a simulation without chip failures.
const STEPS: u64 = 2000;
/// Fewest chip failures in a simulation, divided by the number of learners, if the run gives no duration.
const FAILURES: f64 = 4000.0;
/// Fewest returns of chips, under the same condition.
const RETURNS: f64 = 2.0;

/// A large run. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LargeRun {
    /// M: number of learners; 1 is data parallel training.
    pub learners: u32,
    /// Synchronisation scheme.
    pub scheme: SimulatedScheme,
    /// Number of synchronised parameters.
    pub parameters: f64,
    /// Seconds of an inner step of a learner with all its chips.
    pub step_seconds: f64,
    /// Additional time of the inner steps of every second learner, as a share.
    pub speed_gap: f64,
    /// Standard deviation of the time of an inner step, as a share of the mean.
    pub step_variation: f64,
    /// Seconds of an outer step.
    pub outer_seconds: f64,
    /// True if the state of a path (moments, data) stays with its learner, as with `train.state_every` and
    /// `train.held_paths`: then the path waits for this learner while it is alive. Otherwise any free learner gets the
    /// path that is furthest behind.
    pub state_stays: bool,
    /// Link of each learner; without a link, sends take no time.
    pub link: Option<Link>,
    /// Chips; without chips, nothing fails.
    pub chips: Option<Chips>,
    /// Measured virtual time; 0 chooses a duration that makes the numbers stable.
    pub seconds: f64,
    /// Seed of all random events.
    pub seed: u64,
}

impl LargeRun {
    /// A run without failures, links or variation.
    #[must_use]
    pub fn new(learners: u32, scheme: SimulatedScheme, parameters: f64, step_seconds: f64) -> Self {
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

    /// Bits on the link of a learner for each fragment: in a ring reduction a learner sends and receives all parts but
    /// its own, twice.
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

    /// Start of the measurement, and end of the simulation.
    fn time(&self) -> Result<(Duration, RunEnd), SimulateError> {
        let time = |what, seconds| {
            let problem = "must be a representable time";
            let error = SimulateError::Setting { what, value: seconds, problem };
            Duration::try_from_secs_f64(seconds).map_err(|_| error)
        };
        // The number of absent chips becomes stationary at this time, so measure from here.
        let from = self.chips.filter(|chips| chips.elastic).map_or(0.0, |chips| chips.return_seconds);
        let seconds = match self.chips {
            _ if self.seconds > 0.0 => self.seconds,
            Some(chips) => {
                let failures = FAILURES / f64::from(self.learners);
                (failures * chips.failure_seconds / chips.count as f64).max(RETURNS * chips.return_seconds)
            }
            None => {
                let cycle = u64::from(self.scheme.inner_steps);
                return Ok((Duration::ZERO, RunEnd::Step(STEPS.div_ceil(cycle).max(10) * cycle)));
            }
        };
        let end = time("seconds to play", from + seconds)?;
        Ok((time("seconds until chips return", from)?, RunEnd::At(end)))
    }
}

/// Results of a simulated run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Played {
    /// Share of the chips' time in accepted training, from 0 to 1.
    pub goodput: f64,
    /// Share of the time in which a learner trains, with any number of chips, from 0 to 1.
    pub utilisation: f64,
    /// Share of the time in which at least one learner trains, from 0 to 1.
    pub uptime: f64,
    /// Failures of chips.
    pub failures: u64,
    /// Outer steps of fragments.
    pub outer_steps: u64,
    /// Mean number of contributing learners per outer step.
    pub contributors: f64,
    /// Measured virtual seconds.
    pub seconds: f64,
}

/// Simulates a run. The result is a function of the arguments: the same seed gives the same numbers.
///
/// # Errors
///
/// [`SimulateError`] if a setting is invalid or the run does not end.
pub fn play(run: &LargeRun) -> Result<Played, SimulateError> {
    run.check()?;
    let (from, end) = run.time()?;
    RunWorld::new(run, from, end)?.play()
}

#[cfg(test)]
mod tests;
