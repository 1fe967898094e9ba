//! Checks of `sync.eager`.

use dipaco_sync::{Rescale, Weighting};

use super::Problems;
use crate::RunConfig;

impl RunConfig {
    /// Checks that a path can compute its own part of an outer step.
    pub(super) fn check_eager(&self, problems: &mut Problems) {
        if !self.sync.eager {
            return;
        }
        if self.sync.overlap_steps != self.train.inner_steps {
            problems.add(
                "sync.eager needs sync.overlap_steps = train.inner_steps, an overlap of one round".to_owned(),
            );
        }
        if self.outer.rescale == Rescale::Rda || self.outer.weighting == Weighting::Tokens {
            problems.add(
                "sync.eager can't be combined with outer.rescale = \"rda\", because that is not linear, nor with \
                 outer.weighting = \"tokens\", because a path does not know those weights beforehand"
                    .to_owned(),
            );
        }
        if self.outer.delay > 0 {
            problems.add(
                "sync.eager can't be combined with outer.delay, because a path does not know in which place its \
                 contribution is applied, so it can't compute its part of a delayed momentum: use outer.delay = 0"
                    .to_owned(),
            );
        }
    }
}
