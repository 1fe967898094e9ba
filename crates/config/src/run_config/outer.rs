//! The settings of outer steps.

use dipaco_codec::Compression;
use dipaco_optim::{DelayedNesterovConfig, NesterovConfig, Optimizer, OuterOptimizer};
use dipaco_sync::{EmbeddingMean, FoldRule, Merge, Rescale, Weighting};
use serde::{Deserialize, Serialize};

use super::RunConfig;

/// Section `[outer]`: the outer step of a module from the outer gradients of its paths (arXiv:2403.10616 §2.7).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OuterConfig {
    /// Key `outer.optimizer`.
    #[serde(skip_serializing_if = "OuterOptimizer::is_nesterov")]
    pub optimizer: OuterOptimizer,
    /// Key `outer.weighting`.
    pub weighting: Weighting,
    /// Key `outer.merge`.
    pub merge: Merge,
    /// Key `outer.clip_radius`.
    pub clip_radius: f64,
    /// Key `outer.trim_share`.
    pub trim_share: f64,
    /// Key `outer.rescale`.
    pub rescale: Rescale,
    /// Key `outer.embedding_mean`.
    pub embedding_mean: EmbeddingMean,
    /// Key `outer.compression`.
    pub compression: Compression,
    /// Key `outer.error_feedback`.
    pub error_feedback: f32,
    /// Key `outer.guard`.
    pub guard: f64,
    /// Key `outer.broadcast`.
    pub broadcast: Compression,
    /// Key `outer.delay`.
    pub delay: u32,
    /// Key `outer.delay_share`.
    pub delay_share: f64,
    /// Key `outer.level_learning_rates`.
    pub level_learning_rates: Vec<f64>,
    /// Section `[outer.nesterov]`.
    pub nesterov: NesterovConfig,
}

impl Default for OuterConfig {
    fn default() -> Self {
        Self {
            optimizer: OuterOptimizer::default(),
            weighting: Weighting::default(),
            merge: Merge::default(),
            clip_radius: 1.0,
            trim_share: 0.25,
            rescale: Rescale::default(),
            embedding_mean: EmbeddingMean::default(),
            compression: Compression::default(),
            error_feedback: 0.0,
            guard: 100.0,
            broadcast: Compression::default(),
            delay: 0,
            delay_share: 0.0,
            level_learning_rates: Vec::new(),
            nesterov: NesterovConfig::default(),
        }
    }
}

impl RunConfig {
    /// The optimizer of the paths' inner steps: `train.optimizer`, or plain steps in synchronous training.
    #[must_use]
    pub fn inner_optimizer(&self) -> Optimizer {
        self.outer.optimizer.inner(self.train.optimizer)
    }
}

impl OuterConfig {
    /// The rules for the modules of a level, whose outer learning rate is `nesterov.learning_rate` of the result.
    #[must_use]
    pub fn of_level(&self, level: u16) -> Self {
        let mut outer = self.clone();
        if let Some(&rate) = self.level_learning_rates.get(usize::from(level)) {
            outer.nesterov.learning_rate = rate;
        }
        outer
    }

    /// How outer gradients are merged.
    #[must_use]
    pub fn fold_rule(&self) -> FoldRule {
        FoldRule { rescale: self.rescale, embedding_mean: self.embedding_mean }
    }

    /// The parameters of delayed Nesterov momentum; `None` if `outer.delay` is 0.
    #[must_use]
    pub fn delayed(&self) -> Option<DelayedNesterovConfig> {
        let Self { delay, delay_share: share, nesterov, .. } = self;
        (*delay > 0).then(|| DelayedNesterovConfig {
            nesterov: nesterov.clone(),
            delay: *delay,
            share: *share,
        })
    }
}
