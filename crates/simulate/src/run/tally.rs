//! Measurements of a simulated run.

use std::collections::BTreeSet;
use std::time::Duration;

use dipaco_sync::OuterStep;
use dipaco_topology::PathId;

use super::Played;
use super::chips::OwnChips;
use super::learner::Learner;

/// Measurements from a start time on.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Start of the measurement.
    pub(crate) from: Duration,
    /// Number of learners that train.
    training: usize,
    up_since: Duration,
    /// Seconds of earlier intervals in which at least one learner trained.
    up: f64,
    outer_steps: u64,
    contributors: u64,
}

impl Tally {
    pub(crate) fn new(from: Duration) -> Self {
        Self { from, training: 0, up_since: Duration::ZERO, up: 0.0, outer_steps: 0, contributors: 0 }
    }

    /// Counts a learner that starts or stops training.
    pub(crate) fn trains(&mut self, now: Duration, before: bool, after: bool) {
        let any = self.training > 0;
        self.training = self.training + usize::from(after) - usize::from(before);
        match (any, self.training > 0) {
            (false, true) => self.up_since = now,
            (true, false) => self.up += self.since_up(now),
            _ => {}
        }
    }

    fn since_up(&self, now: Duration) -> f64 {
        now.saturating_sub(self.up_since.max(self.from)).as_secs_f64()
    }

    pub(crate) fn stepped(&mut self, now: Duration, step: &OuterStep) {
        if now >= self.from {
            let paths: BTreeSet<PathId> = step.contributions.iter().map(|c| c.path).collect();
            self.outer_steps += 1;
            self.contributors += paths.len() as u64;
        }
    }

    /// Results of the run. All learners must have [accounted](Learner::account) for their time.
    pub(crate) fn results(&self, now: Duration, learners: &[Learner]) -> Played {
        let up = self.up + if self.training > 0 { self.since_up(now) } else { 0.0 };
        let seconds = now.saturating_sub(self.from).as_secs_f64();
        let all = seconds * learners.len() as f64;
        let chips = learners.iter().filter_map(|learner| learner.chips.as_ref());
        Played {
            goodput: learners.iter().map(Learner::good).sum::<f64>() / all,
            utilisation: learners.iter().map(|learner| learner.trained).sum::<f64>() / all,
            uptime: up / seconds,
            failures: chips.map(OwnChips::failures).sum(),
            outer_steps: self.outer_steps,
            contributors: self.contributors as f64 / self.outer_steps.max(1) as f64,
            seconds,
        }
    }
}
