//! Rules for the contributions for which an outer step waits.

use std::time::Duration;

/// The rule by which the paths through a module wait for each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheme {
    /// An outer step merges one contribution of each learner, and paths wait for it: DiLoCo, DiPaCo, Streaming DiLoCo.
    /// The result does not depend on time.
    Synchronous,
    /// An outer step merges the existing contributions once a quorum of learners has contributed and a grace period is
    /// over. Paths take over the newest weights and never wait: Decoupled DiLoCo; with a quorum of one and no grace,
    /// asynchronous Local SGD.
    Quorum(Quorum),
}

/// The quorum of an outer step that does not wait for all learners.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quorum {
    /// K: number of learners that must contribute; fewer if fewer can still contribute.
    pub learners: u32,
    /// Longest waiting time for further learners.
    pub grace: Duration,
    /// γ: share of the measured slack to wait, 0 to 1. See [`Grace`](crate::Grace).
    pub grace_share: f64,
    /// Shortest time between two outer steps of a fragment, as a share of the time of H inner steps on the fastest
    /// path. With 1 each learner contributes about once in this time; with 0 and a quorum of one every contribution
    /// gets an outer step of its own.
    pub throttle: f64,
    /// True if slower workers take fewer inner steps between two contributions (dynamic local updates,
    /// arXiv:2401.09135, equation 6). Needs one fragment and no overlap.
    pub dynamic_steps: bool,
}

impl Scheme {
    /// True if paths wait for outer steps.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self, Self::Synchronous)
    }

    /// True if the length of a lease follows the speed of its worker.
    #[must_use]
    pub fn dynamic_steps(&self) -> bool {
        matches!(self, Self::Quorum(quorum) if quorum.dynamic_steps)
    }
}

/// Inner steps of a worker between two contributions (arXiv:2401.09135, equation 6): `inner_steps` for the fastest
/// worker, in proportion to speed for the others, at least 1. Speeds are in inner steps per second.
#[must_use]
pub fn dynamic_steps(inner_steps: u64, speed: f64, fastest: f64) -> u64 {
    let ratio = speed / fastest;
    if !ratio.is_finite() || ratio >= 1.0 {
        return inner_steps;
    }
    let steps = (ratio * inner_steps as f64).floor() as u64;
    steps.clamp(1, inner_steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_of_half_the_speed_takes_half_the_steps() {
        assert_eq!(dynamic_steps(50, 2.0, 2.0), 50);
        assert_eq!(dynamic_steps(50, 1.0, 2.0), 25);
        assert_eq!(dynamic_steps(50, 1.0, 3.0), 16);
        assert_eq!(dynamic_steps(50, 1e-9, 3.0), 1);
        assert_eq!(dynamic_steps(50, f64::NAN, 3.0), 50);
        // The workers of the paper's toy: 0.58, 0.75, 1.51 and 3.33 seconds a step, H = 20.
        let steps = |seconds: f64| dynamic_steps(20, 1.0 / seconds, 1.0 / 0.58);
        assert_eq!([steps(0.58), steps(0.75), steps(1.51), steps(3.33)], [20, 15, 7, 3]);
    }
}
