//! Pretraining of the seed: the dense path from which every path starts (arXiv:2403.10616 §2.5).

mod error;
mod import;
mod opened_seed;
mod pretraining;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use bytes::Bytes;
use dipaco_config::RunConfig;
use dipaco_model::{ModelConfig, path_specs};
use dipaco_path::{MomentSpecs, PathState, TrainDevice, module_files};
use dipaco_protocol::ContentDigest;
use dipaco_shards::TokenSet;
use dipaco_store::{ObjectRef, RunManifest, RunStore, SeedRecord, names};
use dipaco_telemetry::{Events, Progress, ProgressUnit};
use serde::Serialize;

use crate::blocking::blocking;
use crate::open_run::OpenRun;
use crate::stored_modules::read_module;
pub use error::SeedError;
pub use import::import_seed;
pub use opened_seed::OpenedSeed;
use opened_seed::UnfinishedSeed;
use pretraining::{Monitor, Pretraining, SeedSnapshot, SeedStart};

/// Settings and inputs of pretraining.
#[derive(Debug)]
pub struct SeedOptions {
    /// The run's configuration, with the vocabulary set.
    pub config: RunConfig,
    /// The run's store.
    pub store: RunStore,
    /// The training text.
    pub train: Arc<TokenSet>,
    /// The validation text, if there is any.
    pub validation: Option<Arc<TokenSet>>,
    /// Start over when the store holds a seed of another configuration or data.
    pub restart: bool,
    /// Device to train on. It does not enter the saved seed.
    pub device: TrainDevice,
}

/// Result of pretraining.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeedSummary {
    /// True if all steps are done.
    pub finished: bool,
    /// Inner steps done, including those of earlier calls.
    pub step: u64,
    /// Inner steps done by this call.
    pub new_steps: u64,
    /// Loss on the validation text at the end, in nats per token.
    pub validation_loss: Option<f64>,
    /// Tokens that this call trained on, without padding.
    pub tokens: u64,
    /// Duration of this call in seconds.
    pub seconds: f64,
}

/// Trains the seed until its steps are done or `cancel` is set, and saves it. A finished seed stays as it is. An
/// interrupted seed continues from where it was saved, bit for bit. A seed that came from another run is finished: the
/// settings and the text of this run don't count.
///
/// # Errors
/// When the data or the store can't be used, training diverges, or the store holds another seed.
pub async fn train_seed(
    options: SeedOptions,
    run: OpenRun,
    events: Arc<Events>,
    progress: &Progress,
    cancel: Arc<AtomicBool>,
) -> Result<(SeedSummary, OpenRun), SeedError> {
    open_seed(options, run, events, progress, cancel).await?.train().await
}

/// The first half of [`train_seed`]: refuses whatever does not fit the seed of the run, and takes no step.
///
/// # Errors
/// When the data or the store can't be used, or the store holds another seed.
pub async fn open_seed(
    options: SeedOptions,
    mut run: OpenRun,
    events: Arc<Events>,
    progress: &Progress,
    cancel: Arc<AtomicBool>,
) -> Result<OpenedSeed, SeedError> {
    let begun = Instant::now();
    let steps = options.config.seed_model.steps;
    let before = run.manifest.seed.clone();
    let imported = before.as_ref().and_then(|seed| seed.imported.clone());
    let origin = origin(&options.config, options.train.content_hash(), imported.as_ref())?;
    // Imported weights without a step have no text and no settings of pretraining that could differ.
    let as_is = before.as_ref().is_some_and(SeedRecord::is_imported_as_is);
    let saved = before.filter(|_| as_is || !options.restart);
    if let Some(seed) = &saved {
        // Its origin is that of the other run.
        let settled = !options.restart && (run.manifest.extension.is_some() || is_adopted(seed));
        if !as_is && !settled && seed.origin != origin {
            return Err(if is_in_use(&run) { SeedError::OtherSeedInUse } else { SeedError::OtherSeed });
        }
        let complete = if as_is && !settled { steps == 0 } else { seed.finished() };
        if complete {
            if settled && seed.origin != origin {
                // The settings of this run may also describe a model of another shape, which the seed does not fit.
                read_module(&options.store, &seed.weights, path_specs(&options.config.model).into()).await?;
                tracing::info!(
                    "the seed came from another run: the settings [seed_model] and the text of this run change nothing of it"
                );
            }
            let summary = SeedSummary {
                finished: true,
                step: seed.step,
                new_steps: 0,
                validation_loss: seed.validation_loss,
                tokens: 0,
                seconds: begun.elapsed().as_secs_f64(),
            };
            import::plan_no_steps(&options.store, &mut run).await?;
            return Ok(OpenedSeed::complete(run, summary));
        }
    }
    let start = start(&options, saved, imported.as_ref()).await?;
    if is_in_use(&run) {
        return Err(SeedError::SeedInUse);
    }
    let task = progress.task("seed", Some(steps), ProgressUnit::Count("steps"));
    let monitor = Monitor { events, task: task.clone(), cancel };
    let pretraining = Pretraining::new(&options, start, monitor)?;
    task.resume_at(pretraining.step());
    let seed = UnfinishedSeed { store: options.store, origin, steps, pretraining, task, begun };
    Ok(OpenedSeed::unfinished(run, seed))
}

/// Weights and state to begin with: those of the interrupted seed, or imported or fresh weights.
async fn start(
    options: &SeedOptions,
    saved: Option<SeedRecord>,
    imported: Option<&ObjectRef>,
) -> Result<SeedStart, SeedError> {
    let (model, store) = (&options.config.model, &options.store);
    let moments = MomentSpecs::whole(model, options.config.seed_model.optimizer);
    // An adopted seed has no state, but is finished. Imported weights have no state either, and begin with a fresh one.
    let Some(SeedRecord { weights, state: Some(state), .. }) = saved else {
        let weights = match imported {
            Some(weights) => read_module(store, weights, path_specs(model).into()).await?,
            None => dipaco_model::init(model, options.config.run.seed)?,
        };
        let state = PathState::start(&moments);
        return Ok(SeedStart { weights, state });
    };
    let weights = read_module(store, &weights, path_specs(model).into()).await?;
    let state = PathState::decode(&store.get(&state).await?, &moments)?;
    Ok(SeedStart { weights, state })
}

/// Saves a snapshot: first its objects, then the manifest that names them, and then the objects of the snapshot before
/// are deleted. A crash between these steps leaves a manifest whose objects all exist.
async fn save(
    store: &RunStore,
    run: &mut OpenRun,
    origin: &str,
    steps: u64,
    snapshot: SeedSnapshot,
) -> Result<(), SeedError> {
    let SeedSnapshot { step, weights, state, validation_loss } = snapshot;
    let weights = publish(store, |hash| names::seed_weights(step, hash), weights).await?;
    let state = Some(publish(store, |hash| names::seed_state(step, hash), state).await?);
    let imported = run.manifest.seed.as_ref().and_then(|seed| seed.imported.clone());
    // Imported weights stay: a restart begins with them. A seed that starts over may save the same objects again.
    let kept: BTreeSet<_> =
        imported.iter().chain(&state).chain([&weights]).map(|object| object.name.clone()).collect();
    let record =
        SeedRecord { origin: origin.to_owned(), step, steps, weights, state, validation_loss, imported };
    let before = run.manifest.seed.replace(record);
    run.sequence = store.replace(&run.manifest, run.sequence).await?;
    let superseded = before.into_iter().flat_map(|seed| std::iter::once(seed.weights).chain(seed.state));
    for object in superseded.filter(|object| !kept.contains(&object.name)) {
        store.delete(&object.name).await?;
    }
    Ok(())
}

/// Publishes an object whose name contains the hash of its content: it replaces nothing but a damaged copy of itself.
async fn publish(
    store: &RunStore,
    name: impl Fn(&str) -> String,
    content: Bytes,
) -> Result<ObjectRef, SeedError> {
    let hashing = blocking(move || {
        let digest = ContentDigest::of(&content);
        (content, digest)
    });
    let (content, digest) = hashing.await?;
    Ok(store.put_replacing(&name(&digest.hash), [content]).await?)
}

/// True if the weights of paths descend from the run's seed, so that it must stay.
fn is_in_use(run: &OpenRun) -> bool {
    run.manifest.training.is_some() || run.manifest.extension.is_some()
}

/// True for a seed that [`adopt_seed`] copied: a seed of this run has its state, or the weights that it was imported from.
fn is_adopted(seed: &SeedRecord) -> bool {
    seed.state.is_none() && seed.imported.is_none()
}

/// Copies the finished seed of another run's store.
///
/// # Errors
/// When the source has no finished seed of this model, this run has another seed, or a store can't be used.
pub async fn adopt_seed(
    store: &RunStore,
    mut run: OpenRun,
    source: &RunStore,
    model: &ModelConfig,
) -> Result<OpenRun, SeedError> {
    let theirs = source.load::<RunManifest>().await?.and_then(|loaded| loaded.manifest.seed);
    let theirs = theirs.filter(SeedRecord::finished).ok_or(SeedError::NoSeed)?;
    let own = run.manifest.seed.as_ref();
    if own.is_some_and(|own| own.weights.hash != theirs.weights.hash) {
        return Err(if is_in_use(&run) { SeedError::SeedInUse } else { SeedError::OtherSeed });
    }
    let bytes = source.get(&theirs.weights).await?;
    // Decoded only to check that the seed has the shape of this run's model. The settings may differ from those of the first time.
    module_files::decode("the other run's seed", &bytes, path_specs(model).into())?;
    if own.is_some() {
        return Ok(run);
    }
    let weights = publish(store, |hash| names::seed_weights(theirs.step, hash), bytes).await?;
    run.manifest.seed = Some(SeedRecord { weights, state: None, imported: None, ..theirs });
    run.sequence = store.replace(&run.manifest, run.sequence).await?;
    Ok(run)
}

/// Hash of all settings and data that determine the seed's weights.
fn origin(config: &RunConfig, data: &str, imported: Option<&ObjectRef>) -> Result<String, SeedError> {
    let routing = &config.routing;
    let reserved = (routing.router_share > 0.0).then_some((routing.router_share, routing.seed));
    let inputs = (
        &config.model,
        &config.seed_model.of_weights(),
        config.train.packing,
        config.run.seed,
        data,
        reserved,
    );
    let mut text = serde_json::to_string(&inputs).map_err(|source| SeedError::Json { source })?;
    text.extend(imported.map(|object| object.hash.as_str()));
    Ok(blake3::hash(text.as_bytes()).to_hex().to_string())
}
