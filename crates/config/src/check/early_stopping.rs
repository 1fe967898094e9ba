//! What a user of early stopping should know.

use crate::RunConfig;

impl RunConfig {
    /// Tells that documents are held out for early stopping, while paths never measure them, or only where a phase of routing
    /// begins and where the run ends. A path measures global weights, because only those can be served. With some schemes a
    /// lease begins with them nowhere else.
    #[must_use]
    pub fn early_stopping_note(&self) -> Option<String> {
        let (train, sync) = (&self.train, &self.sync);
        if train.holdout_fraction == 0.0 || train.holdout_sequences == 0 {
            return None;
        }
        let (sequence, prefix) = (train.sequence_tokens, self.evaluation.prefix_tokens);
        if sequence < prefix {
            return Some(format!(
                "early stopping has nothing to choose among: train.sequence_tokens is {sequence}, and the first {prefix} \
                 tokens of a held-out sequence (evaluation.prefix_tokens) do not count; take longer sequences or a shorter \
                 prefix, or set train.holdout_fraction = 0 and train.holdout_sequences = 0"
            ));
        }
        let why = if sync.fragments > 1 {
            format!(
                "sync.fragments is {}, so a path takes over a part of its weights at a time",
                sync.fragments
            )
        } else if sync.blend > 0.0 {
            format!("sync.blend is {}, so a path goes on from a blend with its own weights", sync.blend)
        } else if sync.eager {
            "sync.eager is true, so a path is ahead of the global weights".to_owned()
        } else {
            return None;
        };
        Some(format!(
            "early stopping can choose among few versions: {why}, and held-out losses are measured only at the start of each \
             phase of routing and at the end of the run; to train on the held-out documents too, set train.holdout_fraction = \
             0 and train.holdout_sequences = 0"
        ))
    }
}
