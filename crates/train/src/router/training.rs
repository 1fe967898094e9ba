//! Training of the transformer router: the seed is fine-tuned to predict, at each token, the path that continues the
//! document best (arXiv:2403.10616 §7.2.2).

mod data;

use std::ops::ControlFlow;

use dipaco_config::TransformerRouterConfig;
use dipaco_model::{ModelConfig, ModuleWeights, parameters, path_specs};
use dipaco_optim::Optimizer;
use dipaco_path::{InnerConfig, MomentSpecs, PathState, TrainDevice, Trainer};
use dipaco_routing::PathScores;
use dipaco_shards::{IGNORE, TokenSet};
use dipaco_topology::{PathId, Topology, TopologyConfig};

use crate::TrainError;
use crate::router::RouterError;
use data::{RouterData, Split, Window, window_at};

/// Inputs of a router's training.
pub struct RouterTraining<'a> {
    /// The settings.
    pub config: &'a TransformerRouterConfig,
    /// The seed's shape, with its vocabulary.
    pub model: &'a ModelConfig,
    /// The seed's weights.
    pub seed: &'a ModuleWeights,
    /// The reserved documents.
    pub tokens: &'a TokenSet,
    /// The scores of each path for the reserved documents, in the order of the paths.
    pub scores: &'a mut [PathScores],
    /// Random seed of the order of the sequences.
    pub order_seed: u64,
}

/// Progress of a router's training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterStep {
    /// Steps done.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// Mean of `-ln p(best path)` over the step's positions, in nats.
    pub loss: f32,
}

/// A trained router.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedRouter {
    /// The weights with the lowest held-out loss: the seed's transformer with one output for each path.
    pub weights: ModuleWeights,
    /// Steps that led to these weights.
    pub steps: u64,
    /// Mean of `-ln p(best path)` over the positions of the held-out documents, in nats; absent without held-out documents.
    pub held_out_loss: Option<f64>,
    /// The same mean for a guess from the frequencies of the best paths in the training documents.
    pub blind_loss: Option<f64>,
}

/// Weights after a number of steps, with their held-out loss.
struct Candidate {
    weights: ModuleWeights,
    steps: u64,
    loss: f64,
}

/// Trains a router on the CPU. Equal inputs give equal bits. Memory: the seed's training state, a copy of the best weights,
/// and one batch of scores.
///
/// The head starts at 0, which gives all paths the same probability. The other weights start as the seed's.
///
/// # Errors
/// When the reserved documents hold no sequence, the seed has another size than its model, scores can't be read, training
/// diverges, or `progress` breaks ([`TrainError::Cancelled`]).
pub fn train_router(
    training: RouterTraining<'_>,
    progress: &mut dyn FnMut(RouterStep) -> ControlFlow<()>,
) -> Result<TrainedRouter, RouterError> {
    let RouterTraining { config, model, seed, tokens, scores, order_seed } = training;
    let shape = model.with_outputs(scores.len());
    let mut data = RouterData { tokens, scores, window: model.context, score_tokens: config.score_tokens };
    let Split { train, held_out } = data.split(config.holdout_fraction);
    if train.is_empty() {
        return Err(TrainError::NoText { file: tokens.path().to_owned() }.into());
    }
    let mut trainer = trainer(config, model, &shape, seed)?;
    // Held-out text takes no more memory than a step.
    let at_once = if config.micro_batch == 0 { config.batch } else { config.micro_batch };
    let mut best: Option<Candidate> = None;
    // How often each path is the target: the frequencies of the blind guess.
    let mut counts = vec![0u64; data.scores.len()];
    while trainer.steps() < config.steps {
        let first = trainer.steps() * config.batch as u64;
        let windows: Vec<Window> =
            (0..config.batch as u64).map(|row| window_at(&train, first + row, order_seed)).collect();
        let batch = data.batch(&windows)?;
        for &target in batch.targets().iter().filter(|&&target| target != IGNORE) {
            counts[target as usize] += 1;
        }
        let report = trainer.step(&batch, PathId(0))?;
        let step = trainer.steps();
        if progress(RouterStep { step, steps: config.steps, loss: report.loss }).is_break() {
            return Err(TrainError::Cancelled.into());
        }
        if !held_out.is_empty() && (step.is_multiple_of(config.validate_every) || step == config.steps) {
            let loss = data.loss(&mut trainer, &held_out, at_once)?;
            tracing::debug!(step, loss, "held-out loss of the transformer router");
            if best.as_ref().is_none_or(|best| loss < best.loss) {
                best = Some(Candidate { weights: weights(&mut trainer)?, steps: step, loss });
            }
        }
    }
    let Some(Candidate { weights, steps, loss }) = best else {
        // Nothing is held out: no weights are known to be better than the last.
        let (weights, steps) = (weights(&mut trainer)?, trainer.steps());
        return Ok(TrainedRouter { weights, steps, held_out_loss: None, blind_loss: None });
    };
    let blind_loss = Some(data.blind_loss(&counts, &held_out)?);
    Ok(TrainedRouter { weights, steps, held_out_loss: Some(loss), blind_loss })
}

/// A trainer of the router, which begins with the seed's weights.
fn trainer(
    config: &TransformerRouterConfig,
    model: &ModelConfig,
    shape: &ModelConfig,
    seed: &ModuleWeights,
) -> Result<Trainer, RouterError> {
    let inner = InnerConfig {
        optimizer: Optimizer::AdamW,
        adamw: config.adamw.clone(),
        schedule: config.schedule.clone(),
        first_step: 0,
        rested: 0,
        total_steps: config.steps,
        batch: config.batch,
        micro_batch: config.micro_batch,
        sequence_tokens: shape.context,
        activation_checkpointing: false,
    };
    let weights = first_weights(model, shape, seed)?;
    let topology = Topology::new(&TopologyConfig::dense(model.blocks), model.blocks)?;
    let state = PathState::start(&MomentSpecs::whole(shape, inner.optimizer));
    Ok(Trainer::new(&TrainDevice::Cpu, shape, &topology, &[weights], state, inner)?)
}

/// The current weights of the router.
fn weights(trainer: &mut Trainer) -> Result<ModuleWeights, RouterError> {
    let lacking = || TrainError::Internal { what: "the dense path of the router has no module".to_owned() };
    Ok(trainer.weights()?.pop().ok_or_else(lacking)?)
}

/// The seed's weights with a head of zeros.
fn first_weights(
    model: &ModelConfig,
    shape: &ModelConfig,
    seed: &ModuleWeights,
) -> Result<ModuleWeights, RouterError> {
    let specs = path_specs(shape);
    // The head is the last tensor of the router. It is also the last tensor of a seed with a head of its own; a seed with
    // tied embeddings has none.
    let body = parameters(&specs[..specs.len() - 1]);
    let expected = parameters(&path_specs(model));
    let Some(values) = seed.values.get(..body).filter(|_| seed.values.len() == expected) else {
        return Err(RouterError::SeedLength { expected, found: seed.values.len() });
    };
    let mut values = values.to_vec();
    values.resize(parameters(&specs), 0.0);
    Ok(ModuleWeights::new(specs.into(), values)?)
}

#[cfg(test)]
mod tests;
