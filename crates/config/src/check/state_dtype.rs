//! Checks of `train.state_dtype`.

use super::Problems;
use crate::RunConfig;

impl RunConfig {
    /// Checks that moments fade in each lease by more than the rounding at its end can undo: by two of the largest errors of
    /// a rounding. Otherwise moments that once were large would stay large, and so would the bounds that
    /// the coordinator has for them.
    pub(super) fn check_state_dtype(&self, problems: &mut Problems) {
        let train = &self.train;
        // In synchronous training a path has no moments.
        if train.state_dtype.is_f32() || !self.outer.optimizer.is_nesterov() {
            return;
        }
        let steps = self.sync.shortest_lease(train.inner_steps);
        let left = 1.0 - 2.0 * train.state_dtype.rounding();
        for (key, beta) in [("beta1", train.adamw.beta1), ("beta2", train.adamw.beta2)] {
            // A decay that is out of range has a message of its own.
            if !(0.0..1.0).contains(&beta) || beta.powf(steps as f64) <= left {
                continue;
            }
            let needed = (left.ln() / beta.ln()).ceil();
            problems.add(format!(
                "train.state_dtype is \"{}\", but with train.adamw.{key} = {beta} a moment hardly fades in the {steps} step{} of the \
                 shortest lease, so that rounding would keep it as it is: take leases of at least {needed} steps (more \
                 train.inner_steps, fewer sync.fragments, no sync.dynamic_steps), a lower {key}, or \"f32\"",
                train.state_dtype,
                if steps == 1 { "" } else { "s" },
            ));
        }
    }
}
