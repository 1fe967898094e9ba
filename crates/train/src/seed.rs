//! Pretraining of the seed: the dense path that every path starts from (arXiv:2403.10616 §2.5).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dipaco_config::RunConfig;
use dipaco_model::{ModelConfig, path_specs};
use dipaco_shards::{Sampler, SamplerConfig, TokenFile};
use dipaco_store::{ObjectRef, RunManifest, RunStore, SeedRecord, names};
use dipaco_telemetry::{Event, Events, Progress, ProgressUnit};
use dipaco_topology::{PathId, Topology, TopologyConfig};
use serde::Serialize;

use crate::TrainError;
use crate::blocking::blocking;
use crate::open_run::OpenRun;
use crate::stored_modules::read_module;
use dipaco_path::PathState;
use dipaco_path::TrainDevice;
use dipaco_path::mean_loss;
use dipaco_path::module_files;
use dipaco_path::{InnerConfig, Trainer};

/// What pretraining works with.
#[derive(Debug)]
pub struct SeedOptions {
    /// The run's configuration, with the vocabulary set.
    pub config: RunConfig,
    /// The run's store.
    pub store: RunStore,
    /// The training text.
    pub train: Arc<TokenFile>,
    /// The text that the loss is measured on, if there is any.
    pub validation: Option<Arc<TokenFile>>,
    /// Start over when the store holds a seed of another configuration or data.
    pub restart: bool,
    /// Where to train; it enters nothing that is saved.
    pub device: TrainDevice,
}

/// What pretraining did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeedSummary {
    /// Whether all steps are done.
    pub finished: bool,
    /// Inner steps done, those of earlier calls included.
    pub step: u64,
    /// Steps done by this call.
    pub new_steps: u64,
    /// Loss on the validation text at the end, in nats per token.
    pub validation_loss: Option<f64>,
    /// Tokens trained on by this call, padding not counted.
    pub tokens: u64,
    /// Seconds of this call.
    pub seconds: f64,
}

/// Trains the seed until its steps are done or `cancel` is set, which saves it first. A seed that is done is left as
/// it is, and one that was interrupted continues where it was saved, bit for bit.
///
/// # Errors
/// When the data or the store can't be used, training diverges, or the store holds another seed.
pub async fn train_seed(
    options: SeedOptions,
    started: OpenRun,
    events: Arc<Events>,
    progress: &Progress,
    cancel: Arc<AtomicBool>,
) -> Result<(SeedSummary, OpenRun), TrainError> {
    let begun = Instant::now();
    let OpenRun { mut manifest, mut sequence } = started;
    let (config, store) = (&options.config, &options.store);
    let topology = Topology::new(&TopologyConfig::dense(config.model.blocks), config.model.blocks)?;
    let origin = origin(config, options.train.content_hash())?;
    let specs: Arc<[_]> = path_specs(&config.model).into();
    let steps = config.seed_model.steps;

    let saved = manifest.seed.clone().filter(|_| !options.restart);
    let (weights, state) = match saved {
        Some(seed) if seed.origin != origin => return Err(TrainError::OtherSeed),
        Some(seed) if seed.finished() => {
            let summary = SeedSummary {
                finished: true,
                step: seed.step,
                new_steps: 0,
                validation_loss: seed.validation_loss,
                tokens: 0,
                seconds: begun.elapsed().as_secs_f64(),
            };
            return Ok((summary, OpenRun { manifest, sequence }));
        }
        Some(SeedRecord { weights, state: Some(state), .. }) => {
            let weights = read_module(store, &weights, specs.clone()).await?;
            (weights, PathState::decode(&store.get(&state).await?, &config.model)?)
        }
        _ => {
            let weights = dipaco_model::init(&config.model, config.run.seed)?;
            let parameters = weights.values.len();
            (weights, PathState::start(parameters))
        }
    };
    if manifest.training.is_some() {
        return Err(TrainError::SeedInUse);
    }
    let inner = InnerConfig {
        adamw: config.seed_model.adamw.clone(),
        schedule: config.seed_model.schedule.clone(),
        first_step: 0,
        total_steps: steps,
        batch: config.seed_model.batch,
        micro_batch: config.seed_model.micro_batch,
        activation_checkpointing: config.seed_model.activation_checkpointing,
    };
    let mut trainer = Trainer::new(&options.device, &config.model, &topology, &[weights], state, inner)?;
    let order = SamplerConfig {
        sequence_length: config.seed_model.sequence_tokens,
        seed: config.run.seed,
        packing: config.train.packing,
    };
    let documents = 0..options.train.documents();
    let sampler = Arc::new(Sampler::new(options.train.clone(), documents, order)?);
    if sampler.sequences() == 0 {
        return Err(TrainError::NoText { file: options.train.path().to_owned() });
    }

    let task = progress.task("seed", Some(steps), ProgressUnit::Count("steps"));
    let first = trainer.steps();
    task.resume_at(first);
    let (validate_every, checkpoint_every) =
        (config.seed_model.validate_every, config.seed_model.checkpoint_every.max(1));
    let mut tokens = 0;
    let mut validation_loss = None;
    while trainer.steps() < steps && !cancel.load(Ordering::Relaxed) {
        let step = trainer.steps();
        let next = |every: u64| step.checked_div(every).map_or(steps, |done| (done + 1) * every);
        let until = next(validate_every).min(next(checkpoint_every)).min(steps);
        let (sampler, log, task, cancel) = (sampler.clone(), events.clone(), task.clone(), cancel.clone());
        let trained: Result<_, TrainError> = blocking(move || {
            let mut counted = 0;
            while trainer.steps() < until && !cancel.load(Ordering::Relaxed) {
                let at = Instant::now();
                let done = trainer.step(&sampler, PathId(0))?;
                counted += done.tokens;
                let step = trainer.steps();
                task.note(format!("loss {:.3}", done.loss));
                task.set(step);
                // Counts of tokens are far below 2^53.
                #[allow(clippy::cast_precision_loss)]
                let tokens_per_second = done.tokens as f64 / at.elapsed().as_secs_f64();
                log.write(Event::SeedStep {
                    step,
                    loss: done.loss.into(),
                    learning_rate: done.learning_rate,
                    gradient_norm: done.gradient_norm,
                    tokens_per_second,
                })?;
            }
            Ok((trainer, counted))
        })
        .await?;
        let counted;
        (trainer, counted) = trained?;
        tokens += counted;
        let step = trainer.steps();
        validation_loss = None;
        let due = step == steps || (validate_every > 0 && step.is_multiple_of(validate_every));
        if due && let Some(file) = options.validation.clone() {
            let config = config.clone();
            let validated: Result<_, TrainError> = blocking(move || {
                let loss = validate(&mut trainer, file, &config)?;
                Ok((trainer, loss))
            })
            .await?;
            (trainer, validation_loss) = validated?;
            if let Some(loss) = validation_loss {
                events.write(Event::SeedValidated { step, loss, tokens })?;
            }
        }
        let weights = trainer.weights()?.pop().ok_or(TrainError::NoSeed)?;
        let weights =
            store.put_replacing(&names::seed_weights(step), module_files::encode(&weights)?).await?;
        let state = trainer.state()?.encode(&config.model)?;
        let state = store.put_replacing(&names::seed_state(step), state.into()).await?;
        let record =
            SeedRecord { origin: origin.clone(), step, steps, weights, state: Some(state), validation_loss };
        let before = manifest.seed.replace(record);
        sequence = store.replace(&manifest, sequence).await?;
        let superseded = before.into_iter().flat_map(|seed| std::iter::once(seed.weights).chain(seed.state));
        for ObjectRef { name, .. } in
            superseded.filter(|object| !object.name.starts_with(&format!("seed/{step}/")))
        {
            store.delete(&name).await?;
        }
    }
    task.finish();
    let step = trainer.steps();
    let summary = SeedSummary {
        finished: step >= steps,
        step,
        new_steps: step - first,
        validation_loss,
        tokens,
        seconds: begun.elapsed().as_secs_f64(),
    };
    Ok((summary, OpenRun { manifest, sequence }))
}

/// Takes the finished seed of another run's store over.
///
/// # Errors
/// When the source has no finished seed of this model, this run has another one, or a store can't be used.
pub async fn adopt_seed(
    store: &RunStore,
    started: OpenRun,
    source: &RunStore,
    model: &ModelConfig,
) -> Result<OpenRun, TrainError> {
    let OpenRun { mut manifest, sequence } = started;
    let theirs = source.load::<RunManifest>().await?.and_then(|loaded| loaded.manifest.seed);
    let theirs = theirs.filter(SeedRecord::finished).ok_or(TrainError::NoSeed)?;
    if let Some(own) = &manifest.seed {
        if own.weights.hash == theirs.weights.hash {
            return Ok(OpenRun { manifest, sequence });
        }
        return Err(TrainError::OtherSeed);
    }
    let bytes = source.get(&theirs.weights).await?;
    module_files::decode("the other run's seed", &bytes, path_specs(model).into())?;
    let weights = store.put_replacing(&names::seed_weights(theirs.step), bytes).await?;
    manifest.seed = Some(SeedRecord { weights, state: None, ..theirs });
    let sequence = store.replace(&manifest, sequence).await?;
    Ok(OpenRun { manifest, sequence })
}

/// Mean loss on validation text, in nats per token.
fn validate(
    trainer: &mut Trainer,
    file: Arc<TokenFile>,
    config: &RunConfig,
) -> Result<Option<f64>, TrainError> {
    let in_turn = SamplerConfig {
        sequence_length: config.seed_model.sequence_tokens,
        seed: config.run.seed,
        packing: false,
    };
    let documents = 0..file.documents();
    let sampler = Sampler::new(file, documents, in_turn)?;
    let sequences = sampler.sequences().min(config.seed_model.validation_sequences);
    Ok(mean_loss(trainer, &sampler, sequences, config.seed_model.batch)?)
}

/// Hash of everything that the seed's weights depend on.
fn origin(config: &RunConfig, data: &str) -> Result<String, TrainError> {
    let what = (&config.model, &config.seed_model.of_weights(), config.train.packing, config.run.seed, data);
    let text = serde_json::to_string(&what).map_err(|source| TrainError::Json { source })?;
    Ok(blake3::hash(text.as_bytes()).to_hex().to_string())
}
