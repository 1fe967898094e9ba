//! Eager updates: a path does not wait for the others to see its own part of an outer step.

/// How far a path is ahead of the global weights of a fragment with eager updates (arXiv:2502.12996, algorithm 3).
///
/// There, each replica takes outer steps of its own, with an outer gradient in which its part of the delayed mean is
/// replaced by its fresh one: `mean(t - H) + w (D(t) - D(t - H))`. The outer optimizer is linear, so the replica is at all
/// times the global weights after `mean(t - H)`, which every path takes over anyway, and what the optimizer makes of the
/// second term alone. Only that is kept here: nothing but weights goes over the wire, and what a path is ahead by can't
/// drift away from what the synchronizer does.
#[derive(Clone, Debug, PartialEq)]
pub struct Ahead {
    /// What to add to the global weights.
    pub weights: Vec<f32>,
    /// The outer momentum of the difference.
    pub momentum: Vec<f32>,
    /// D(t - H): what the path sent last, as the synchronizer decodes it.
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
    /// At the beginning of a phase: the global weights have everything that the path has sent.
    #[must_use]
    pub fn start(values: usize) -> Self {
        Self { weights: vec![0.0; values], momentum: vec![0.0; values], sent: vec![0.0; values] }
    }

    /// Takes in what the path sends now, as the synchronizer decodes it. `share` is the path's factor in the merged outer
    /// gradient: its weight times what the mean is rescaled by, 1 / M when all count alike. All have one length.
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

    /// One value of the outer optimizer as arXiv:2502.12996 has it for each replica.
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

    /// Algorithm 3 as it is written, in f64, against the global weights one round late plus what a path is ahead by.
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
        // Without momentum and with a learning rate of 1 it is where it went by itself.
        let rule = OuterRule { learning_rate: 1.0, momentum: 0.0 };
        let mut ahead = Ahead::start(1);
        ahead.send(&[2.0], 1.0, rule);
        assert_eq!(ahead.weights, [-2.0]);
        // By then the global weights have made the first step: ahead is what the second one is more than it.
        ahead.send(&[0.5], 1.0, rule);
        assert_eq!(ahead.weights, [-0.5]);
    }
}
