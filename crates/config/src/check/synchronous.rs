//! Checks of synchronous training, where modules take the steps of AdamW.

use dipaco_codec::Compression;

use super::Problems;
use crate::{RunConfig, ScheduleAtPhase};

impl RunConfig {
    /// Checks that nothing else keeps or changes what the outer AdamW keeps and changes.
    pub(super) fn check_synchronous(&self, problems: &mut Problems) {
        if self.outer.optimizer.is_nesterov() {
            return;
        }
        let mut against = |wrong: bool, problem: &str| {
            if wrong {
                problems.add(format!("outer.optimizer is \"adamw\", but {problem}"));
            }
        };
        against(
            self.train.inner_steps != 1,
            "a gradient is that of one step: set train.inner_steps = 1, and train.rounds to the number of steps",
        );
        against(
            !self.train.optimizer.is_adamw(),
            "train.optimizer is another one: the modules take the steps of AdamW, so leave the key out",
        );
        against(
            self.train.schedule_at_phase == ScheduleAtPhase::Restart && !self.routing.phases.is_empty(),
            "with train.schedule_at_phase = \"restart\" the modules would still follow one schedule over all phases: use \
             train.schedule_at_phase = \"continue\"",
        );
        against(
            self.outer.delay > 0,
            "outer.delay delays the momentum, which AdamW does not have: use outer.delay = 0",
        );
        against(
            self.outer.broadcast != Compression::F32,
            "outer.broadcast rounds changes of weights: use \"f32\"",
        );
        against(
            !self.outer.level_learning_rates.is_empty(),
            "outer.level_learning_rates are rates of the momentum: leave them out, train.adamw.learning_rate is the rate of all \
             levels",
        );
        against(
            self.sync.eager || self.sync.overlap_steps > 0 || self.sync.fragments > 1,
            "a step needs the weights after the step before: use sync.eager = false, sync.overlap_steps = 0 and \
             sync.fragments = 1",
        );
        against(
            self.sync.blend > 0.0,
            "with sync.blend a path computes its gradient at weights that no module has: use sync.blend = 0",
        );
        against(
            self.sync.drop_rate > 0.0,
            "with sync.drop_rate a path drops a gradient and sends it with the next one, so that a step has the gradients of \
             several: use sync.drop_rate = 0",
        );
        against(
            self.sync.quorum > 0,
            "with sync.quorum a module takes other steps than its paths, at gradients of older weights, and their number decides \
             about learning rate and bias correction: use sync.quorum = 0",
        );
        against(
            !self.train.paths_per_round.all(),
            "with train.paths_per_round a module whose paths all rest takes no step, and its bias correction would count it: \
             use train.paths_per_round = 0",
        );
    }
}
