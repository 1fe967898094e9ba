//! The configuration of a run, section by section.

use std::path::PathBuf;

use dipaco_codec::Compression;
use dipaco_eval::EvaluationConfig;
use dipaco_model::ModelConfig;
use dipaco_optim::{AdamWConfig, DelayedNesterovConfig, NesterovConfig, ScheduleConfig};
use dipaco_routing::RouterConfig;
use dipaco_server::ServeConfig;
use dipaco_shards::PrepareConfig;
use dipaco_sync::{Rescale, SyncConfig, Weighting};
use dipaco_topology::{LevelConfig, Modules, TopologyConfig};
use serde::{Deserialize, Serialize};

/// Everything that a run depends on besides its text. The default is a 2 × 2 run that a laptop finishes in minutes.
///
/// The keys are documented in one place, [`crate::keys`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// The run itself.
    pub run: RunSection,
    /// Widths and numbers of the transformer.
    pub model: ModelConfig,
    /// Levels, modules and paths.
    pub topology: TopologyConfig,
    /// Text to tokens.
    pub prepare: PrepareConfig,
    /// Pretraining of the dense path that every path starts from.
    pub seed_model: SeedConfig,
    /// The router and its fitting.
    pub routing: RouterConfig,
    /// Fine-tuning of the router that decides during a text.
    pub transformer_router: TransformerRouterConfig,
    /// Training of the paths.
    pub train: TrainConfig,
    /// When paths synchronise their modules, and who waits for whom.
    pub sync: SyncConfig,
    /// The outer step of each module.
    pub outer: OuterConfig,
    /// Perplexity on validation text.
    pub evaluation: EvaluationConfig,
    /// The HTTP server.
    pub serve: ServeConfig,
}

impl Default for RunConfig {
    fn default() -> Self {
        let level = |blocks: &str, embedding, head| LevelConfig {
            modules: Modules::Count(2),
            blocks: blocks.into(),
            embedding,
            head,
        };
        Self {
            run: RunSection::default(),
            model: ModelConfig::default(),
            topology: TopologyConfig {
                replicas: 1,
                levels: vec![level("0..2", true, false), level("2..4", false, true)],
            },
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

/// Section `[run]`: what the run is called and where it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunSection {
    /// Name of the run and of the model that it serves.
    pub name: String,
    /// Seed of every random choice: initial weights, order of the text.
    pub seed: u64,
    /// The run's directory; `runs/<name>` when it is not given.
    pub directory: Option<PathBuf>,
    /// The folder of the prepared text; `data` in the run's directory when it is not given.
    pub data: Option<PathBuf>,
}

impl Default for RunSection {
    fn default() -> Self {
        Self { name: "tiny".into(), seed: 1, directory: None, data: None }
    }
}

impl RunSection {
    /// The run's directory: `directory`, or `runs/<name>`.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| PathBuf::from("runs").join(&self.name))
    }
}

/// Section `[seed_model]`: pretraining of the dense path that every path starts from (arXiv:2403.10616 §3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SeedConfig {
    /// Optimizer steps.
    pub steps: u64,
    /// B, sequences per step.
    pub batch: usize,
    /// T, tokens per sequence.
    pub sequence_tokens: usize,
    /// Sequences per forward and backward pass; 0 takes the whole batch at once.
    pub micro_batch: usize,
    /// Whether blocks keep only their input for the backward pass.
    pub activation_checkpointing: bool,
    /// Steps between two measurements of the validation loss; 0 measures at the end only.
    pub validate_every: u64,
    /// Validation sequences that are measured each time.
    pub validation_sequences: u64,
    /// Steps between two checkpoints.
    pub checkpoint_every: u64,
    /// AdamW's numbers.
    pub adamw: AdamWConfig,
    /// The learning rate over the steps.
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
            adamw: AdamWConfig::default(),
            schedule: ScheduleConfig::default(),
        }
    }
}

impl SeedConfig {
    /// What the weights depend on: keys that only say when to measure and save, or trade time for memory, are at their
    /// defaults.
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

/// What the learning rate does where a phase of routing begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleAtPhase {
    /// One schedule spans the whole run, whatever the shards (arXiv:2311.08105 §6.1 counts the steps of all rounds).
    #[default]
    Continue,
    /// The schedule begins anew, warm-up included, and spans the rest of the run (arXiv:2403.10616, Fig. 10).
    Restart,
}

/// Section `[transformer_router]`: fine-tuning the seed to a router that decides at any token which path goes on
/// (arXiv:2403.10616 §7.2.2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransformerRouterConfig {
    /// Optimizer steps; the paper takes about 2,000.
    pub steps: u64,
    /// B, sequences per step.
    pub batch: usize,
    /// Lw, tokens over which the paths' scores are summed up; 0 sums to the end of the sequence, as in the paper.
    pub score_tokens: usize,
    /// Share of the reserved documents on which the loss is measured, from 0 to below 1.
    pub holdout_fraction: f64,
    /// Steps between two measurements of the held-out loss; the best weights are kept.
    pub validate_every: u64,
    /// AdamW's numbers.
    pub adamw: AdamWConfig,
    /// The learning rate over the steps; no warm-up in the paper.
    pub schedule: ScheduleConfig,
}

impl Default for TransformerRouterConfig {
    fn default() -> Self {
        Self {
            steps: 400,
            batch: 8,
            score_tokens: 0,
            holdout_fraction: 0.1,
            validate_every: 50,
            adamw: AdamWConfig::default(),
            schedule: ScheduleConfig { warmup_steps: 0, ..ScheduleConfig::default() },
        }
    }
}

/// Section `[train]`: rounds of inner steps of every path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Rounds (outer steps).
    pub rounds: u32,
    /// H, inner steps of a path per round.
    pub inner_steps: u64,
    /// B, sequences per inner step.
    pub batch: usize,
    /// T, tokens per sequence.
    pub sequence_tokens: usize,
    /// Sequences per forward and backward pass; 0 takes the whole batch at once.
    pub micro_batch: usize,
    /// Whether blocks keep only their input for the backward pass.
    pub activation_checkpointing: bool,
    /// Share of each shard's documents that is held out for early stopping, from 0 to below 1.
    pub holdout_fraction: f64,
    /// Held-out sequences that are measured after each round; 0 turns early stopping off.
    pub holdout_sequences: u64,
    /// Whether sequences run across document borders, without padding; the seed is trained the same way.
    pub packing: bool,
    /// Seconds after which a worker that was not heard of loses its path to another.
    pub lease_seconds: u64,
    /// Leases of a path between two states (moments, data position) that its worker brings.
    pub state_every: u32,
    /// Paths whose states a worker keeps in memory.
    pub held_paths: usize,
    /// Earlier rounds that the run can go back to when an object of its store is damaged.
    pub checkpoints: usize,
    /// Threads of one worker process; 0 shares the cores evenly among the workers of the machine.
    pub threads_per_worker: usize,
    /// What the learning rate does where a phase of routing begins.
    pub schedule_at_phase: ScheduleAtPhase,
    /// AdamW's numbers.
    pub adamw: AdamWConfig,
    /// The learning rate over all inner steps of the run.
    pub schedule: ScheduleConfig,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            rounds: 10,
            inner_steps: 30,
            batch: 8,
            sequence_tokens: 256,
            micro_batch: 0,
            activation_checkpointing: false,
            holdout_fraction: 0.02,
            holdout_sequences: 16,
            packing: false,
            lease_seconds: 60,
            state_every: 1,
            held_paths: 1,
            checkpoints: 2,
            threads_per_worker: 0,
            schedule_at_phase: ScheduleAtPhase::default(),
            adamw: AdamWConfig::default(),
            schedule: ScheduleConfig::default(),
        }
    }
}

impl TrainConfig {
    /// What the weights depend on: keys that only say how the work is handed out, or trade time for memory, are at their
    /// defaults.
    #[must_use]
    pub fn of_weights(&self) -> Self {
        let Self {
            lease_seconds,
            state_every,
            held_paths,
            checkpoints,
            threads_per_worker,
            activation_checkpointing,
            ..
        } = Self::default();
        Self {
            lease_seconds,
            state_every,
            held_paths,
            checkpoints,
            threads_per_worker,
            activation_checkpointing,
            ..self.clone()
        }
    }
}

/// Section `[outer]`: how the outer gradients of a module's paths become its step (arXiv:2403.10616 §2.7).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OuterConfig {
    /// How the paths through a module are weighted.
    pub weighting: Weighting,
    /// What the weighted mean is multiplied by.
    pub rescale: Rescale,
    /// How outer gradients are written on their way to the synchronizer.
    pub compression: Compression,
    /// β, the share of what writing an outer gradient has lost that is added to the path's next one; 0 adds nothing.
    pub error_feedback: f32,
    /// How many times as long as the last ones of its module an outer gradient may be; 0 for any length.
    pub guard: f64,
    /// How the change of the global weights is written on its way to the workers.
    pub broadcast: Compression,
    /// N, after how many contributions the momentum changes; 0 for once an outer step.
    pub delay: u32,
    /// c, the share of the momentum that each of the other contributions applies, 0 to 1/N.
    pub delay_share: f64,
    /// Nesterov's numbers.
    pub nesterov: NesterovConfig,
}

impl Default for OuterConfig {
    fn default() -> Self {
        Self {
            weighting: Weighting::default(),
            rescale: Rescale::default(),
            compression: Compression::default(),
            error_feedback: 0.0,
            guard: 100.0,
            broadcast: Compression::default(),
            delay: 0,
            delay_share: 0.0,
            nesterov: NesterovConfig::default(),
        }
    }
}

impl OuterConfig {
    /// The numbers of delayed Nesterov momentum, when it is asked for.
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
