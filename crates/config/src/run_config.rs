//! The configuration of a run, section by section.
//!
//! Each field is one key. [`keys()`](crate::keys()) has the documentation of all keys, so the fields only name theirs.

use std::path::{Path, PathBuf};

use dipaco_model::{Dtype, ModelConfig};
use dipaco_optim::{AdamWConfig, Optimizer, ScheduleConfig};
use dipaco_routing::RouterConfig;
use dipaco_settings::{EvaluationConfig, ServeConfig};
use dipaco_shards::PrepareConfig;
use dipaco_sync::{Numerics, SyncConfig};
use dipaco_topology::{LevelConfig, Modules, TopologyConfig};
use serde::{Deserialize, Serialize};

use crate::PathsPerRound;

mod outer;

pub use outer::OuterConfig;

/// Everything that a run depends on besides its text. The default is a 2 × 2 run that takes minutes on a laptop.
///
/// [`keys()`](crate::keys()) documents every key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Section `[run]`.
    pub run: RunSection,
    /// Section `[model]`.
    pub model: ModelConfig,
    /// Section `[topology]`.
    pub topology: TopologyConfig,
    /// Section `[prepare]`.
    pub prepare: PrepareConfig,
    /// Section `[seed_model]`.
    pub seed_model: SeedConfig,
    /// Section `[routing]`.
    pub routing: RouterConfig,
    /// Section `[transformer_router]`.
    pub transformer_router: TransformerRouterConfig,
    /// Section `[train]`.
    pub train: TrainConfig,
    /// Section `[sync]`.
    pub sync: SyncConfig,
    /// Section `[outer]`.
    pub outer: OuterConfig,
    /// Section `[evaluation]`.
    pub evaluation: EvaluationConfig,
    /// Section `[serve]`.
    pub serve: ServeConfig,
}

impl Default for RunConfig {
    fn default() -> Self {
        let level = |blocks: &str, embedding, head| LevelConfig {
            modules: Modules::Count(2),
            blocks: blocks.into(),
            embedding,
            head,
            frozen: false,
        };
        Self {
            run: RunSection::default(),
            model: ModelConfig::default(),
            topology: TopologyConfig::grid(1, vec![level("0..2", true, false), level("2..4", false, true)]),
            prepare: PrepareConfig::default(),
            seed_model: SeedConfig::default(),
            routing: RouterConfig::default(),
            transformer_router: TransformerRouterConfig::default(),
            train: TrainConfig::default(),
            sync: SyncConfig::default(),
            outer: OuterConfig::default(),
            evaluation: EvaluationConfig::default(),
            serve: ServeConfig::default(),
        }
    }
}

/// Section `[run]`: name, seed and folders of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunSection {
    /// Key `run.name`.
    pub name: String,
    /// Key `run.seed`.
    pub seed: u64,
    /// Key `run.directory`.
    pub directory: Option<PathBuf>,
    /// Key `run.data`.
    pub data: Option<PathBuf>,
    /// Key `run.store`.
    pub store: Option<String>,
    /// Key `run.links`.
    pub links: bool,
}

impl Default for RunSection {
    fn default() -> Self {
        Self { name: "tiny".into(), seed: 1, directory: None, data: None, store: None, links: true }
    }
}

impl RunSection {
    /// Largest number of letters of `run.name`.
    pub const NAME_LETTERS: usize = 64;

    /// True for a letter that `run.name` may have. A name does not begin with a dot.
    #[must_use]
    pub fn is_name_letter(letter: char) -> bool {
        letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.')
    }

    /// The name of a run in a folder: the folder's own, with `-` in place of letters that a name can't have. Nothing if the
    /// path ends without a name.
    #[must_use]
    pub fn name_of(folder: &Path) -> Option<String> {
        let of_folder = folder.file_name()?.to_string_lossy();
        let letters = of_folder.chars().map(|letter| if Self::is_name_letter(letter) { letter } else { '-' });
        let name: String = letters.skip_while(|&letter| letter == '.').take(Self::NAME_LETTERS).collect();
        (!name.is_empty()).then_some(name)
    }

    /// The directory of the run: `run.directory`, or `runs/<name>`.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| PathBuf::from("runs").join(&self.name))
    }
}

/// AdamW for seed and paths. Of DiPaCo's 4e-4, which is for 150M parameters, 1e-3 and 2e-3 the second is the best rate for the
/// default run, of 5.3M parameters (docs/results/training-settings.md, "The default learning rate").
fn of_random_weights() -> AdamWConfig {
    AdamWConfig { learning_rate: 1e-3, ..AdamWConfig::default() }
}

/// Section `[seed_model]`: pretraining of the seed, the dense path that every path starts from (arXiv:2403.10616 §3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SeedConfig {
    /// Key `seed_model.steps`.
    pub steps: u64,
    /// Key `seed_model.batch`.
    pub batch: usize,
    /// Key `seed_model.sequence_tokens`.
    pub sequence_tokens: usize,
    /// Key `seed_model.micro_batch`.
    pub micro_batch: usize,
    /// Key `seed_model.activation_checkpointing`.
    pub activation_checkpointing: bool,
    /// Key `seed_model.validate_every`.
    pub validate_every: u64,
    /// Key `seed_model.validation_sequences`.
    pub validation_sequences: u64,
    /// Key `seed_model.checkpoint_every`.
    pub checkpoint_every: u64,
    /// Key `seed_model.optimizer`. Left out of the written configuration when it is AdamW.
    #[serde(skip_serializing_if = "Optimizer::is_adamw")]
    pub optimizer: Optimizer,
    /// Section `[seed_model.adamw]`.
    pub adamw: AdamWConfig,
    /// Section `[seed_model.schedule]`.
    pub schedule: ScheduleConfig,
}

impl Default for SeedConfig {
    fn default() -> Self {
        Self {
            steps: 300,
            batch: 8,
            sequence_tokens: 256,
            micro_batch: 0,
            activation_checkpointing: false,
            validate_every: 100,
            validation_sequences: 32,
            checkpoint_every: 100,
            optimizer: Optimizer::default(),
            adamw: of_random_weights(),
            schedule: ScheduleConfig::default(),
        }
    }
}

impl SeedConfig {
    /// The values that influence the weights. Keys that only set when to measure and save, or trade time for memory, have
    /// their defaults.
    #[must_use]
    pub fn of_weights(&self) -> Self {
        let Self { validate_every, validation_sequences, checkpoint_every, activation_checkpointing, .. } =
            Self::default();
        Self {
            validate_every,
            validation_sequences,
            checkpoint_every,
            activation_checkpointing,
            ..self.clone()
        }
    }
}

/// Learning rate at the beginning of a phase of routing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleAtPhase {
    /// One schedule spans the whole run (arXiv:2311.08105 §6.1 counts the steps of all rounds).
    #[default]
    Continue,
    /// The schedule starts again with a warm-up and spans the rest of the run (arXiv:2403.10616, Fig. 10).
    Restart,
}

/// Section `[transformer_router]`: fine-tuning the seed to a router that can choose a path at any token
/// (arXiv:2403.10616 §7.2.2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransformerRouterConfig {
    /// Key `transformer_router.steps`.
    pub steps: u64,
    /// Key `transformer_router.batch`.
    pub batch: usize,
    /// Key `transformer_router.micro_batch`. Left out of the written configuration when it is 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub micro_batch: usize,
    /// Key `transformer_router.score_tokens`.
    pub score_tokens: usize,
    /// Key `transformer_router.holdout_fraction`.
    pub holdout_fraction: f64,
    /// Key `transformer_router.validate_every`.
    pub validate_every: u64,
    /// Section `[transformer_router.adamw]`.
    pub adamw: AdamWConfig,
    /// Section `[transformer_router.schedule]`.
    pub schedule: ScheduleConfig,
}

impl Default for TransformerRouterConfig {
    fn default() -> Self {
        Self {
            steps: 400,
            batch: 8,
            micro_batch: 0,
            score_tokens: 0,
            holdout_fraction: 0.1,
            validate_every: 50,
            adamw: AdamWConfig::default(),
            schedule: ScheduleConfig { warmup_steps: 0, ..ScheduleConfig::default() },
        }
    }
}

/// True for a number that earlier programs did not write.
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Section `[train]`: rounds of inner steps of every path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Key `train.rounds`.
    pub rounds: u32,
    /// Key `train.inner_steps`.
    pub inner_steps: u64,
    /// Key `train.paths_per_round`. Left out of the written configuration when all paths train.
    #[serde(skip_serializing_if = "PathsPerRound::all")]
    pub paths_per_round: PathsPerRound,
    /// Key `train.batch`.
    pub batch: usize,
    /// Key `train.sequence_tokens`.
    pub sequence_tokens: usize,
    /// Key `train.micro_batch`.
    pub micro_batch: usize,
    /// Key `train.activation_checkpointing`.
    pub activation_checkpointing: bool,
    /// Key `train.holdout_fraction`.
    pub holdout_fraction: f64,
    /// Key `train.holdout_sequences`.
    pub holdout_sequences: u64,
    /// Key `train.validate_every`.
    pub validate_every: u32,
    /// Key `train.validation_documents`.
    pub validation_documents: u64,
    /// Key `train.packing`.
    pub packing: bool,
    /// Key `train.lease_seconds`.
    pub lease_seconds: u64,
    /// Key `train.max_workers`.
    pub max_workers: usize,
    /// Key `train.token_leases`.
    pub token_leases: usize,
    /// Key `train.numerics`.
    pub numerics: Numerics,
    /// Key `train.standstill_seconds`.
    pub standstill_seconds: u64,
    /// Key `train.quarantine_after`.
    pub quarantine_after: usize,
    /// Key `train.state_every`.
    pub state_every: u32,
    /// Key `train.state_dtype`. Left out of the written configuration when it is f32.
    #[serde(skip_serializing_if = "Dtype::is_f32")]
    pub state_dtype: Dtype,
    /// Key `train.held_paths`.
    pub held_paths: usize,
    /// Key `train.checkpoints`.
    pub checkpoints: usize,
    /// Key `train.threads_per_worker`.
    pub threads_per_worker: usize,
    /// Key `train.schedule_at_phase`.
    pub schedule_at_phase: ScheduleAtPhase,
    /// Key `train.optimizer`. Left out of the written configuration when it is AdamW.
    #[serde(skip_serializing_if = "Optimizer::is_adamw")]
    pub optimizer: Optimizer,
    /// Section `[train.adamw]`.
    pub adamw: AdamWConfig,
    /// Section `[train.schedule]`.
    pub schedule: ScheduleConfig,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            rounds: 10,
            inner_steps: 30,
            paths_per_round: PathsPerRound::default(),
            batch: 8,
            sequence_tokens: 256,
            micro_batch: 0,
            activation_checkpointing: false,
            holdout_fraction: 0.02,
            holdout_sequences: 128,
            validate_every: 0,
            validation_documents: 32,
            packing: false,
            lease_seconds: 60,
            max_workers: 1024,
            token_leases: 0,
            numerics: Numerics::default(),
            standstill_seconds: 1800,
            quarantine_after: 2,
            state_every: 5,
            state_dtype: Dtype::default(),
            held_paths: 16,
            checkpoints: 2,
            threads_per_worker: 0,
            schedule_at_phase: ScheduleAtPhase::default(),
            optimizer: Optimizer::default(),
            adamw: of_random_weights(),
            schedule: ScheduleConfig::default(),
        }
    }
}

impl TrainConfig {
    /// Most threads of a worker.
    pub const MOST_THREADS: usize = 1024;

    /// The values that influence the weights. Keys that only set how work is distributed, or trade time for memory, have
    /// their defaults.
    #[must_use]
    pub fn of_weights(&self) -> Self {
        let Self {
            validate_every,
            validation_documents,
            lease_seconds,
            max_workers,
            token_leases,
            numerics,
            standstill_seconds,
            quarantine_after,
            state_every,
            held_paths,
            checkpoints,
            threads_per_worker,
            activation_checkpointing,
            ..
        } = Self::default();
        Self {
            validate_every,
            validation_documents,
            lease_seconds,
            max_workers,
            token_leases,
            numerics,
            standstill_seconds,
            quarantine_after,
            state_every,
            held_paths,
            checkpoints,
            threads_per_worker,
            activation_checkpointing,
            ..self.clone()
        }
    }
}
