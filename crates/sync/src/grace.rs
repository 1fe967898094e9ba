//! Waiting time of an outer step for contributions beyond its quorum.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_topology::PathId;

/// Weight of the newest measurement in a running mean.
const NEWEST: f64 = 0.5;

/// The adaptive grace window of Decoupled DiLoCo (arXiv:2604.21428, equation 3). A path trains τ inner steps between a
/// send and its receive. Gathering the quorum and the outer step use a part of this time; the rest is slack. A share
/// of the slack may be spent on waiting for slower learners. Without an estimate the window is the longest one.
#[derive(Clone, Debug, PartialEq)]
pub struct Grace {
    longest: Duration,
    share: f64,
    overlap: u64,
    /// Seconds of an inner step, by path.
    steps: BTreeMap<PathId, f64>,
    /// The same in order, as the bits of positive numbers are.
    ordered: BTreeSet<(u64, PathId)>,
    /// Seconds from the first contribution to the quorum.
    quorum: Option<f64>,
    /// Seconds of an outer step.
    outer: Option<f64>,
}

fn average(mean: Option<f64>, newest: f64) -> f64 {
    mean.map_or(newest, |mean| mean + NEWEST * (newest - mean))
}

impl Grace {
    /// A window of at most `longest`, and at most γ = `share` (0 to 1) of the slack of τ = `overlap` inner steps.
    #[must_use]
    pub fn new(longest: Duration, share: f64, overlap: u64) -> Self {
        Self {
            longest,
            share,
            overlap,
            steps: BTreeMap::new(),
            ordered: BTreeSet::new(),
            quorum: None,
            outer: None,
        }
    }

    /// Records the duration of a path's inner step.
    pub fn inner_step(&mut self, path: PathId, seconds: f64) {
        if seconds.is_finite() && seconds > 0.0 {
            let mean = average(self.steps.get(&path).copied(), seconds);
            if let Some(before) = self.steps.insert(path, mean) {
                self.ordered.remove(&(before.to_bits(), path));
            }
            self.ordered.insert((mean.to_bits(), path));
        }
    }

    /// Records the time from the first contribution to the quorum.
    pub fn quorum(&mut self, took: Duration) {
        self.quorum = Some(average(self.quorum, took.as_secs_f64()));
    }

    /// Records the duration of an outer step.
    pub fn outer_step(&mut self, took: Duration) {
        self.outer = Some(average(self.outer, took.as_secs_f64()));
    }

    /// Time of `steps` inner steps on the fastest path; zero before the first measurement.
    #[must_use]
    pub fn fastest(&self, steps: f64) -> Duration {
        let seconds = self.ordered.first().map_or(0.0, |&(bits, _)| f64::from_bits(bits)) * steps;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Waiting time after the quorum.
    #[must_use]
    pub fn window(&self) -> Duration {
        // The slowest learner decides how long the τ steps take.
        let slowest = self.ordered.last().map(|&(bits, _)| f64::from_bits(bits));
        // With τ = 0 every path waits for the outer step: there is no slack to measure.
        let (Some(step), true) = (slowest, self.overlap > 0) else { return self.longest };
        let slack = self.overlap as f64 * step - (self.quorum.unwrap_or(0.0) + self.outer.unwrap_or(0.0));
        let window = self.share * slack;
        if window <= 0.0 {
            Duration::ZERO
        } else {
            Duration::try_from_secs_f64(window).map_or(self.longest, |w| w.min(self.longest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_window_is_a_share_of_the_slack() {
        let mut grace = Grace::new(seconds(100.0), 0.5, 10);
        assert_eq!(grace.window(), seconds(100.0), "nothing is known yet");
        grace.inner_step(PathId(0), 1.0);
        grace.inner_step(PathId(1), 2.0);
        grace.quorum(seconds(6.0));
        grace.outer_step(seconds(2.0));
        // (10 × 2 - (6 + 2)) / 2.
        assert_eq!(grace.window(), seconds(6.0));
        grace.quorum(seconds(30.0));
        // The mean of 6 and 30 is 18: no slack is left.
        assert_eq!(grace.window(), Duration::ZERO);
        grace.inner_step(PathId(1), f64::NAN);
        grace.inner_step(PathId(1), 40.0);
        // 10 × 21 - (18 + 2), halved, is 95; with 44 seconds a step it would be longer than the longest.
        assert_eq!(grace.window(), seconds(95.0));
        grace.inner_step(PathId(1), 67.0);
        assert_eq!(grace.window(), seconds(100.0));
        // A path that was the slowest and is not any more.
        (0..9).for_each(|_| grace.inner_step(PathId(1), 1.0));
        grace.inner_step(PathId(0), 3.0);
        assert!(grace.window() < seconds(3.0), "{:?}", grace.window());
        assert!((1.0..1.2).contains(&grace.fastest(1.0).as_secs_f64()), "{:?}", grace.fastest(1.0));
    }

    #[test]
    fn without_overlap_the_window_is_fixed() {
        let mut grace = Grace::new(seconds(3.0), 0.5, 0);
        grace.inner_step(PathId(0), 1.0);
        assert_eq!(grace.window(), seconds(3.0));
    }
}
