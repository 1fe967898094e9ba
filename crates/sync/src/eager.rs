//! Eager updates: a path applies its own part of an outer step at once.

/// Lead of a path over the global weights of a fragment, with eager updates (arXiv:2502.12996, algorithm 3).
///
/// In the paper each replica takes outer steps of its own. Its outer gradient replaces its part of the delayed mean by
/// the fresh part: `mean(t - H) + w (D(t) - D(t - H))`. The outer optimizer is linear, so a replica is always the sum
/// of two parts: the global weights after `mean(t - H)`, which every path receives anyway, and the outer step of the
/// second term alone. This type keeps the second part. So only weights go over the wire, and the lead cannot drift
/// away from the synchronizer.
#[derive(Clone, Debug, PartialEq)]
pub struct Ahead {
    /// Values to add to the global weights.
    pub weights: Vec<f32>,
    /// The outer momentum of the difference.
    pub momentum: Vec<f32>,
    /// D(t - H): the path's last outer gradient, as the synchronizer decodes it.
    pub sent: Vec<f32>,
}

/// The outer optimizer, Nesterov momentum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterRule {
    /// The outer learning rate.
    pub learning_rate: f32,
    /// The outer momentum.
    pub momentum: f32,
}

impl Ahead {
    /// The lead at the beginning of a phase: zero, because the global weights contain everything that the path has
    /// sent.
    #[must_use]
    pub fn start(values: usize) -> Self {
        Self { weights: vec![0.0; values], momentum: vec![0.0; values], sent: vec![0.0; values] }
    }

    /// The weights with which a path goes on from these global weights. Both have one length.
    #[must_use]
    pub fn over(&self, global: &[f32]) -> Vec<f32> {
        global.iter().zip(&self.weights).map(|(global, ahead)| global + ahead).collect()
    }

    /// Adds the path's new outer gradient, as the synchronizer decodes it. `share` is the path's factor in the merged
    /// outer gradient: its weight times the rescaling of the mean, 1 / M for equal weights. All slices have one
    /// length.
    pub fn send(&mut self, sent: &[f32], share: f32, rule: OuterRule) {
        let OuterRule { learning_rate, momentum } = rule;
        let state = self.weights.iter_mut().zip(&mut self.momentum).zip(&mut self.sent);
        for (((ahead, speed), before), &sent) in state.zip(sent) {
            let difference = share * (sent - *before);
            *speed = momentum * *speed + difference;
            *ahead -= learning_rate * (difference + momentum * *speed);
            *before = sent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One value of a replica's outer optimizer (arXiv:2502.12996).
    #[derive(Clone, Copy)]
    struct Replica {
        weight: f64,
        momentum: f64,
    }

    impl Replica {
        fn step(&mut self, gradient: f64) {
            self.momentum = 0.9 * self.momentum + gradient;
            self.weight -= 0.7 * (gradient + 0.9 * self.momentum);
        }
    }

    /// Algorithm 3 of the paper in f64, against the global weights one round late plus the lead.
    #[test]
    fn a_path_is_where_its_replica_of_algorithm_3_is() {
        let shares = [0.2, 0.5, 0.3];
        let gradient = |path: usize, round: usize| ((path * 7 + round * 3) % 11) as f64 / 10.0 - 0.4;
        let mean = |round: usize| {
            shares.iter().enumerate().map(|(path, share)| share * gradient(path, round)).sum::<f64>()
        };
        let rule = OuterRule { learning_rate: 0.7, momentum: 0.9 };
        for (path, &share) in shares.iter().enumerate() {
            let mut replica = Replica { weight: 1.0, momentum: 0.0 };
            let mut global = replica;
            let mut ahead = Ahead::start(1);
            for round in 0..20 {
                let (delayed, stale) =
                    if round == 0 { (0.0, 0.0) } else { (mean(round - 1), gradient(path, round - 1)) };
                replica.step(delayed + share * (gradient(path, round) - stale));
                if round > 0 {
                    global.step(delayed);
                }
                ahead.send(&[gradient(path, round) as f32], share as f32, rule);
                let found = global.weight + f64::from(ahead.weights[0]);
                assert!((found - replica.weight).abs() < 1e-5, "{round}: {found} {}", replica.weight);
            }
        }
    }

    #[test]
    fn the_only_path_of_a_module_sees_its_own_step_at_once() {
        // Without momentum and with a learning rate of 1 the path is at its own weights.
        let rule = OuterRule { learning_rate: 1.0, momentum: 0.0 };
        let mut ahead = Ahead::start(1);
        ahead.send(&[2.0], 1.0, rule);
        assert_eq!(ahead.weights, [-2.0]);
        // The global weights contain the first step by then: the lead is the difference of the second step.
        ahead.send(&[0.5], 1.0, rule);
        assert_eq!(ahead.weights, [-0.5]);
    }
}
