//! Fine-tuning the seed to a router that decides at any token which path goes on (arXiv:2403.10616 §7.2.2).

use std::ops::ControlFlow;

use dipaco_config::TransformerRouterConfig;
use dipaco_model::{ModelConfig, ModuleWeights, parameters, path_specs};
use dipaco_routing::{PathScores, router_targets};
use dipaco_shards::{IGNORE, Permutation, TokenFile};
use dipaco_topology::{PathId, Topology, TopologyConfig};

use crate::TrainError;
use dipaco_path::PathState;
use dipaco_path::TrainDevice;
use dipaco_path::{InnerConfig, Trainer};

/// What a router is fine-tuned from and on.
pub struct RouterTraining<'a> {
    /// The settings.
    pub config: &'a TransformerRouterConfig,
    /// The seed's shape, with its vocabulary.
    pub model: &'a ModelConfig,
    /// The seed's weights.
    pub seed: &'a ModuleWeights,
    /// The reserved documents.
    pub tokens: &'a TokenFile,
    /// What each path makes of them, in the order of the paths.
    pub scores: &'a mut [PathScores],
    /// Seed of the order of the sequences.
    pub order_seed: u64,
}

/// How far a router's training is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterStep {
    /// Steps that are done.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// Mean of `-ln p(best path)` over the step's positions, in nats.
    pub loss: f32,
}

/// A fine-tuned router.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedRouter {
    /// The weights of the seed's transformer with one output for each path: those with the lowest held-out loss.
    pub weights: ModuleWeights,
    /// Steps behind these weights.
    pub steps: u64,
    /// Mean of `-ln p(best path)` over the positions of held-out documents, in nats; absent when none are held out.
    pub held_out_loss: Option<f64>,
    /// The same of guessing by how often each path is best in the training documents.
    pub blind_loss: Option<f64>,
}

/// A part of a document.
#[derive(Clone, Copy)]
struct Window {
    document: u64,
    /// Place of its first token in the document.
    start: u64,
}

/// Fine-tunes a router, on the CPU. The same inputs give the same bits. Memory: the seed's training state, a copy of the
/// best weights, and one batch of scores.
///
/// The head starts at 0, which says that all paths are alike; everything else is the seed's.
///
/// # Errors
/// When there is nothing to train on, the seed does not fit its shape, scores can't be read, training diverges, or
/// `progress` breaks ([`TrainError::Cancelled`]).
pub fn train_router(
    training: RouterTraining<'_>,
    progress: &mut dyn FnMut(RouterStep) -> ControlFlow<()>,
) -> Result<TrainedRouter, TrainError> {
    let RouterTraining { config, model, seed, tokens, scores, order_seed } = training;
    let shape = model.with_outputs(scores.len());
    let mut data = RouterData { tokens, scores, window: model.context, score_tokens: config.score_tokens };
    let held_out = held_out_documents(tokens.documents(), config.holdout_fraction);
    let border = tokens.documents() - held_out;
    let (train, held_out) = (data.windows(0..border), data.windows(border..tokens.documents()));
    if train.is_empty() {
        return Err(TrainError::NoText { file: tokens.path().to_owned() });
    }
    let inner = InnerConfig {
        adamw: config.adamw.clone(),
        schedule: config.schedule.clone(),
        first_step: 0,
        total_steps: config.steps,
        batch: config.batch,
        micro_batch: 0,
        activation_checkpointing: false,
    };
    let weights = first_weights(model, &shape, seed)?;
    let topology = Topology::new(&TopologyConfig::dense(model.blocks), model.blocks)?;
    let state = PathState::start(weights.values.len());
    let mut trainer = Trainer::new(&TrainDevice::Cpu, &shape, &topology, &[weights], state, inner)?;

    let mut best: Option<(f64, u64, ModuleWeights)> = None;
    let mut counts = vec![0u64; data.scores.len()];
    while trainer.steps() < config.steps {
        let step = trainer.steps();
        let windows: Vec<Window> = (0..config.batch as u64)
            .map(|row| drawn(&train, step * config.batch as u64 + row, order_seed))
            .collect();
        let (inputs, targets) = data.batch(&windows)?;
        for &target in targets.iter().filter(|&&target| target != IGNORE) {
            counts[target as usize] += 1;
        }
        let done = trainer.step_batch(&inputs, &targets, PathId(0))?;
        let step = trainer.steps();
        if progress(RouterStep { step, steps: config.steps, loss: done.loss }).is_break() {
            return Err(TrainError::Cancelled);
        }
        if !held_out.is_empty() && (step.is_multiple_of(config.validate_every) || step == config.steps) {
            let loss = data.loss(&mut trainer, &held_out, config.batch)?;
            tracing::debug!(step, loss, "held-out loss of the transformer router");
            if best.as_ref().is_none_or(|(lowest, ..)| loss < *lowest) {
                best = Some((loss, step, one(trainer.weights()?)?));
            }
        }
    }
    Ok(match best {
        Some((loss, steps, weights)) => TrainedRouter {
            weights,
            steps,
            held_out_loss: Some(loss),
            blind_loss: Some(data.blind_loss(&counts, &held_out)?),
        },
        None => TrainedRouter {
            steps: trainer.steps(),
            weights: one(trainer.weights()?)?,
            held_out_loss: None,
            blind_loss: None,
        },
    })
}

fn one(mut weights: Vec<ModuleWeights>) -> Result<ModuleWeights, TrainError> {
    weights.pop().ok_or(TrainError::NoSeed)
}

/// The seed's weights with a head of zeros.
fn first_weights(
    model: &ModelConfig,
    shape: &ModelConfig,
    seed: &ModuleWeights,
) -> Result<ModuleWeights, TrainError> {
    let specs = path_specs(shape);
    // A seed with tied embeddings has no head; the head is the last tensor of one that has its own.
    let body = parameters(&specs[..specs.len() - 1]);
    let expected = parameters(&path_specs(model));
    let Some(values) = seed.values.get(..body).filter(|_| seed.values.len() == expected) else {
        return Err(TrainError::PathStateLength { expected, found: seed.values.len() });
    };
    let mut values = values.to_vec();
    values.resize(parameters(&specs), 0.0);
    Ok(ModuleWeights::new(specs.into(), values)?)
}

/// The window at a place of the training order, which goes through all windows again and again, each time in another
/// order.
fn drawn(windows: &[Window], position: u64, seed: u64) -> Window {
    let count = windows.len() as u64;
    let place = Permutation::new(count, seed, position / count).apply(position % count);
    windows[place as usize]
}

/// How many documents are held out: at least one when any are asked for, and never more than half.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "far below 2^53"
)]
fn held_out_documents(documents: u64, fraction: f64) -> u64 {
    if fraction <= 0.0 {
        return 0;
    }
    ((documents as f64 * fraction).round() as u64).max(1).min(documents / 2)
}

/// Sequences of the reserved documents, with the best path at each of their positions.
struct RouterData<'a> {
    tokens: &'a TokenFile,
    scores: &'a mut [PathScores],
    /// The most tokens of a sequence.
    window: usize,
    score_tokens: usize,
}

impl RouterData<'_> {
    /// The windows of some documents; those of one token have no token that could be routed.
    fn windows(&self, documents: std::ops::Range<u64>) -> Vec<Window> {
        let of = |document| {
            let range = self.tokens.document_range(document);
            let length = range.end - range.start;
            (0..length)
                .step_by(self.window)
                .filter(move |start| length - start > 1)
                .map(move |start| Window { document, start })
        };
        documents.flat_map(of).collect()
    }

    /// Tokens and targets (B, T) of windows, padded to the longest of them.
    fn batch(&mut self, windows: &[Window]) -> Result<(Vec<u32>, Vec<u32>), TrainError> {
        let mut rows = Vec::with_capacity(windows.len());
        for window in windows {
            let text = self.tokens.document(window.document);
            let range = window.start..window.start + self.window as u64;
            let tokens = text.slice(range.clone()).to_vec();
            let mut scores = Vec::with_capacity(self.scores.len());
            for path in self.scores.iter_mut() {
                scores.push(path.document(self.tokens, window.document)?);
            }
            let (start, end) = (window.start as usize, window.start as usize + tokens.len());
            let own: Vec<&[f32]> = scores.iter().map(|scores| &scores[start..end]).collect();
            let ahead = if self.score_tokens == 0 { usize::MAX } else { self.score_tokens };
            rows.push((tokens, router_targets(&own, ahead)));
        }
        let width = rows.iter().map(|(tokens, _)| tokens.len()).max().unwrap_or(0);
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for (mut tokens, mut best) in rows {
            tokens.resize(width, self.tokens.end_of_text());
            best.resize(width, IGNORE);
            inputs.extend(tokens);
            targets.extend(best);
        }
        Ok((inputs, targets))
    }

    /// Mean loss over all positions of windows, in nats.
    fn loss(&mut self, trainer: &mut Trainer, windows: &[Window], batch: usize) -> Result<f64, TrainError> {
        let (mut sum, mut counted) = (0.0, 0u64);
        for windows in windows.chunks(batch) {
            let (inputs, targets) = self.batch(windows)?;
            let log_probs = trainer.token_log_probs(&inputs, &targets, windows.len())?;
            for (log_prob, _) in log_probs.iter().zip(&targets).filter(|&(_, &target)| target != IGNORE) {
                sum -= f64::from(*log_prob);
                counted += 1;
            }
        }
        Ok(mean(sum, counted))
    }

    /// Mean loss over all positions of windows of guessing by counts, each one larger than it is, in nats.
    fn blind_loss(&mut self, counts: &[u64], windows: &[Window]) -> Result<f64, TrainError> {
        let all = counts.iter().sum::<u64>() + counts.len() as u64;
        let (mut sum, mut counted) = (0.0, 0u64);
        for &window in windows {
            let (_, targets) = self.batch(&[window])?;
            for target in targets {
                sum -= mean((counts[target as usize] + 1) as f64, all).ln();
                counted += 1;
            }
        }
        Ok(mean(sum, counted))
    }
}

fn mean(sum: f64, counted: u64) -> f64 {
    sum / counted.max(1) as f64
}

#[cfg(test)]
mod tests {
    use dipaco_model::init;
    use dipaco_shards::{TokenFileInfo, TokenFileWriter};

    use super::*;

    const VOCABULARY: u32 = 32;

    fn model() -> ModelConfig {
        ModelConfig {
            hidden_size: 16,
            blocks: 1,
            heads: 2,
            head_dim: 8,
            ffn_size: 24,
            vocab_size: VOCABULARY as usize,
            context: 24,
            tie_embeddings: true,
            init_std: 0.2,
            ..ModelConfig::default()
        }
    }

    /// Documents whose topic changes in the middle, and the scores of three paths, of which each knows one topic.
    fn data(folder: &std::path::Path) -> (TokenFile, Vec<PathScores>) {
        let name = folder.join("router.h5");
        let info = TokenFileInfo {
            tokenizer_hash: "tokenizer".into(),
            vocab_size: VOCABULARY,
            ..TokenFileInfo::default()
        };
        let mut writer = TokenFileWriter::create(&name, info).unwrap();
        let mut topics: Vec<u32> = Vec::new();
        for document in 0..120u32 {
            let topic = |place: u32| if place < 12 { document % 3 } else { document / 3 % 3 };
            let token = |place| 1 + topic(place) * 10 + (document * 7 + place * 3) % 10;
            let length = if document % 10 == 0 { 40 } else { 24 };
            let tokens: Vec<u32> = (0..length - 1).map(token).chain([0]).collect();
            writer.push_document(&tokens).unwrap();
            topics.extend((0..length).map(topic));
        }
        writer.finish().unwrap();
        let tokens = TokenFile::open(name).unwrap();
        let scores = (0..3u32).map(|path| {
            let of = |&topic: &u32| if topic == path { -1f32 } else { -3.0 };
            let bytes: Vec<u8> = topics.iter().flat_map(|topic| of(topic).to_le_bytes()).collect();
            std::fs::write(folder.join(format!("path-{path:03}.f32")), bytes).unwrap();
            let header = serde_json::json!({
                "format": "dipaco-path-scores/1", "path": path, "tokens_hash": tokens.content_hash(),
                "tokens": tokens.tokens(), "sequence_tokens": 24, "modules": [], "hash": "",
            });
            std::fs::write(folder.join(format!("path-{path:03}.json")), header.to_string()).unwrap();
            PathScores::open(folder, PathId(path), &tokens).unwrap()
        });
        let scores = scores.collect();
        (tokens, scores)
    }

    fn train(config: &TransformerRouterConfig) -> Result<TrainedRouter, TrainError> {
        let folder = tempfile::tempdir().unwrap();
        let (tokens, mut scores) = data(folder.path());
        let seed = init(&model(), 1).unwrap();
        let training = RouterTraining {
            config,
            model: &model(),
            seed: &seed,
            tokens: &tokens,
            scores: &mut scores,
            order_seed: 1,
        };
        let mut steps = 0;
        let trained = train_router(training, &mut |step| {
            steps += 1;
            assert_eq!((step.step, step.steps), (steps, config.steps));
            ControlFlow::Continue(())
        });
        if trained.is_ok() {
            assert_eq!(steps, config.steps);
        }
        trained
    }

    fn config() -> TransformerRouterConfig {
        let mut config =
            TransformerRouterConfig { steps: 60, score_tokens: 1, validate_every: 20, ..Default::default() };
        config.adamw.learning_rate = 2e-2;
        config
    }

    #[test]
    fn a_router_learns_which_path_goes_on_and_the_same_bits_again() {
        let trained = train(&config()).unwrap();
        let (found, blind) = (trained.held_out_loss.unwrap(), trained.blind_loss.unwrap());
        // The path of a token is that of its topic, which the token tells.
        assert!(found < 0.3 && blind > 1.0, "{found} nats, blind {blind}");
        assert_eq!(trained.weights.specs.last().unwrap().shape, [3, 16]);
        assert_eq!(train(&config()).unwrap(), trained);
    }

    #[test]
    fn without_held_out_documents_the_last_weights_are_kept() {
        let trained =
            train(&TransformerRouterConfig { steps: 5, holdout_fraction: 0.0, ..config() }).unwrap();
        assert_eq!((trained.steps, trained.held_out_loss, trained.blind_loss), (5, None, None));
    }

    #[test]
    fn a_seed_of_another_shape_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (tokens, mut scores) = data(folder.path());
        let seed = init(&ModelConfig { ffn_size: 32, ..model() }, 1).unwrap();
        let (config, model) = (config(), model());
        let training = RouterTraining {
            config: &config,
            model: &model,
            seed: &seed,
            tokens: &tokens,
            scores: &mut scores,
            order_seed: 1,
        };
        let refused = train_router(training, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(refused, Err(TrainError::PathStateLength { .. })));
    }
}
