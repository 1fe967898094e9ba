//! The computation of pretraining: inner steps and validation between two snapshots.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use dipaco_config::RunConfig;
use dipaco_model::ModuleWeights;
use dipaco_path::{InnerConfig, MomentSpecs, PathState, StepReport, Trainer, mean_loss, module_files};
use dipaco_routing::{RouterConfig, is_router_document};
use dipaco_shards::{DocumentSet, Sampler, SamplerConfig, ShardsError, TokenSet};
use dipaco_telemetry::{Event, Events, Task};
use dipaco_topology::{PathId, Topology, TopologyConfig};

use super::{SeedError, SeedOptions};
use crate::TrainError;

/// Weights and state from which pretraining begins.
pub(super) struct SeedStart {
    pub(super) weights: ModuleWeights,
    pub(super) state: PathState,
}

/// Reports of pretraining, and the request to stop.
pub(super) struct Monitor {
    pub(super) events: Arc<Events>,
    pub(super) task: Task,
    pub(super) cancel: Arc<AtomicBool>,
}

/// The encoded seed after some step.
pub(super) struct SeedSnapshot {
    pub(super) step: u64,
    pub(super) weights: Bytes,
    pub(super) state: Bytes,
    /// Mean loss at this step, in nats per token, if the step is one that is validated.
    pub(super) validation_loss: Option<f64>,
}

/// A seed that is being trained.
pub(super) struct Pretraining {
    config: RunConfig,
    trainer: Trainer,
    sampler: Sampler,
    validation: Option<Arc<TokenSet>>,
    monitor: Monitor,
    /// Tokens trained on by this process, without padding.
    tokens: u64,
}

/// Draws the documents that are not reserved for routers.
fn sampler(
    file: &Arc<TokenSet>,
    order: SamplerConfig,
    routing: &RouterConfig,
) -> Result<Sampler, ShardsError> {
    if routing.router_share == 0.0 {
        return Sampler::new(file.clone(), 0..file.documents(), order);
    }
    let reserved =
        |document| is_router_document(&file.document(document).to_vec(), routing.seed, routing.router_share);
    let documents = DocumentSet::of(file.documents(), |document| !reserved(document));
    Sampler::selected(file.clone(), documents, order)
}

impl Pretraining {
    pub(super) fn new(options: &SeedOptions, start: SeedStart, monitor: Monitor) -> Result<Self, SeedError> {
        let config = options.config.clone();
        let seed = &config.seed_model;
        let inner = InnerConfig {
            optimizer: seed.optimizer,
            adamw: seed.adamw.clone(),
            schedule: seed.schedule.clone(),
            first_step: 0,
            rested: 0,
            total_steps: seed.steps,
            batch: seed.batch,
            micro_batch: seed.micro_batch,
            sequence_tokens: seed.sequence_tokens,
            activation_checkpointing: seed.activation_checkpointing,
        };
        let topology = Topology::new(&TopologyConfig::dense(config.model.blocks), config.model.blocks)?;
        let SeedStart { weights, state } = start;
        let trainer = Trainer::new(&options.device, &config.model, &topology, &[weights], state, inner)?;
        let order = SamplerConfig {
            sequence_length: seed.sequence_tokens,
            seed: config.run.seed,
            packing: config.train.packing,
        };
        let sampler = sampler(&options.train, order, &config.routing)?;
        if sampler.sequences() == 0 {
            return Err(TrainError::NoText { file: options.train.path().to_owned() }.into());
        }
        let validation = options.validation.clone();
        Ok(Self { config, trainer, sampler, validation, monitor, tokens: 0 })
    }

    /// Inner steps done, including those of earlier processes.
    pub(super) fn step(&self) -> u64 {
        self.trainer.steps()
    }

    /// Tokens trained on by this process, without padding.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns whether steps are left and the user has not asked to stop.
    pub(super) fn goes_on(&self) -> bool {
        self.step() < self.config.seed_model.steps && !self.cancelled()
    }

    fn cancelled(&self) -> bool {
        self.monitor.cancel.load(Ordering::Relaxed)
    }

    /// Trains up to the next snapshot, and validates if the step asks for it. A user who asks to stop gets the snapshot
    /// early.
    pub(super) fn train_to_snapshot(&mut self) -> Result<SeedSnapshot, SeedError> {
        let until = self.next_snapshot();
        while self.step() < until && !self.cancelled() {
            let begun = Instant::now();
            let batch = self.sampler.batch(self.trainer.position(), self.config.seed_model.batch)?;
            let report = self.trainer.step(&batch, PathId(0))?;
            self.tokens += report.tokens;
            self.note(&report, begun.elapsed().as_secs_f64());
        }
        let validated = if self.validates() { self.validate()? } else { None };
        if let Some((loss, tokens)) = validated {
            let step = self.step();
            self.monitor.events.note(Event::SeedValidated { step, loss, tokens });
        }
        self.snapshot(validated.map(|(loss, _)| loss))
    }

    /// The step of the next snapshot. Every validation gets one, so that the manifest has the loss of its own weights.
    fn next_snapshot(&self) -> u64 {
        let seed = &self.config.seed_model;
        // An interval of 0 means never.
        let next = |every: u64| self.step().checked_div(every).map_or(seed.steps, |done| (done + 1) * every);
        next(seed.validate_every).min(next(seed.checkpoint_every.max(1))).min(seed.steps)
    }

    /// Returns whether the loss is measured at the current step. A snapshot of a user's stop is between these steps.
    fn validates(&self) -> bool {
        let (step, every) = (self.step(), self.config.seed_model.validate_every);
        step == self.config.seed_model.steps || (every > 0 && step.is_multiple_of(every))
    }

    /// Mean loss on the validation text, in nats per token, and the number of tokens that count.
    fn validate(&mut self) -> Result<Option<(f64, u64)>, SeedError> {
        let Some(file) = self.validation.clone() else { return Ok(None) };
        let seed = &self.config.seed_model;
        let in_file_order = SamplerConfig {
            sequence_length: seed.sequence_tokens,
            seed: self.config.run.seed,
            packing: false,
        };
        let documents = 0..file.documents();
        let sampler = Sampler::new(file, documents, in_file_order)?;
        let sequences = sampler.sequences().min(seed.validation_sequences);
        Ok(mean_loss(&mut self.trainer, &sampler, sequences, self.config.evaluation.prefix_tokens)?)
    }

    /// Reports an inner step of so many seconds.
    fn note(&self, report: &StepReport, seconds: f64) {
        let Monitor { events, task, .. } = &self.monitor;
        task.note(format!("loss {:.3}", report.loss));
        task.set(self.step());
        events.note(Event::SeedStep {
            step: self.step(),
            loss: report.loss.into(),
            learning_rate: report.learning_rate,
            gradient_norm: report.gradient_norm,
            tokens_per_second: report.tokens as f64 / seconds,
        });
    }

    fn snapshot(&mut self, validation_loss: Option<f64>) -> Result<SeedSnapshot, SeedError> {
        let step = self.step();
        let weights = self.trainer.weights()?.pop().ok_or_else(|| TrainError::Internal {
            what: "the dense path of the seed has no module".to_owned(),
        })?;
        let weights = module_files::encode(&weights)?;
        let state = self
            .trainer
            .state()?
            .encode(&MomentSpecs::whole(&self.config.model, self.config.seed_model.optimizer))?
            .into();
        Ok(SeedSnapshot { step, weights, state, validation_loss })
    }
}
