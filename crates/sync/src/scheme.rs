//! Whom an outer step waits for.

use std::time::Duration;

/// How the paths through a module wait for each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheme {
    /// An outer step takes the contributions of all learners, and paths wait for it: DiLoCo, DiPaCo, Streaming DiLoCo.
    /// The result does not depend on time.
    Synchronous,
    /// An outer step takes what is there once enough learners have contributed and a grace period is over; paths take
    /// over the newest weights and wait for nobody: Decoupled DiLoCo, and with a quorum of one and no grace
    /// asynchronous Local SGD.
    Quorum(Quorum),
}

/// When an outer step is taken without waiting for all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quorum {
    /// K: learners that must have contributed; fewer when fewer are left that could.
    pub learners: u32,
    /// The longest time that is waited for further learners.
    pub grace: Duration,
    /// γ: the share of the measured slack that is waited, 0 to 1. See [`Grace`](crate::Grace).
    pub grace_share: f64,
    /// The time between two outer steps of a unit, at least, as a share of what the fastest path takes for H inner steps.
    /// With 1 each learner has contributed about once by then; with 0 a quorum of one takes an outer step for each.
    pub throttle: f64,
    /// Whether slower workers take fewer inner steps between two contributions (dynamic local updates,
    /// arXiv:2401.09135, equation 6). Needs one fragment and no overlap.
    pub dynamic_steps: bool,
}

impl Scheme {
    /// Whether paths wait for outer steps.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self, Self::Synchronous)
    }

    /// Whether leases are as long as their worker is fast.
    #[must_use]
    pub fn dynamic_steps(&self) -> bool {
        matches!(self, Self::Quorum(quorum) if quorum.dynamic_steps)
    }
}

/// Inner steps of a worker between two contributions (arXiv:2401.09135, equation 6): `inner_steps` for the fastest, for
/// the others in proportion to their speed, at least 1. Speeds are in inner steps per second.
#[must_use]
pub fn dynamic_steps(inner_steps: u64, speed: f64, fastest: f64) -> u64 {
    let ratio = speed / fastest;
    if !ratio.is_finite() || ratio >= 1.0 {
        return inner_steps;
    }
    // Numbers of inner steps are far below 2^53, and the ratio is between 0 and 1.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
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
