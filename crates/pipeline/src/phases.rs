//! The steps between two phases of routing: all paths score the reserved documents, a router is fitted on the scores, and
//! the text is divided anew (arXiv:2403.10616 §2.4.2). An interrupted step continues when it is repeated.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::RunConfig;
use dipaco_path::{DeviceChoice, PathReader, ReaderSize};
use dipaco_routing::{
    FeatureExtractor, FeaturePoints, FitOrigin, Likelihoods, PathScores, Router, RouterConfig, RouterKind,
    RoutingError, SampleFeatures, ScoreHeader, ScoredDocuments, TargetsFrom, fit_discriminative,
    raise_targets, scores_are_there, targets_of,
};
use dipaco_shards::{TokenSet, WorkPart};
use dipaco_store::{RunStore, ShardRecord, TrainingRecord};
use dipaco_telemetry::{Progress, ProgressUnit};
use dipaco_topology::PathId;
use dipaco_train::{CoordinatorError, LedgerError, Reroute, score_header, small_shards, write_scores};

use crate::device;
use crate::error::PipelineError;
use crate::files;
use crate::leftovers::remove_old_unfinished_scores;
use crate::limits::raise_open_files;
use crate::prepared::token_file;
use crate::route::{assign, origin_of, router, shown, token_vectors, usable_router, with_vectors};
use crate::router_settings::router_settings;
use crate::run_directory::{RoutingFolder, RunDirectory};
use crate::shard_records::shard_records;
use crate::store::manifest;
use crate::version::Version;
use crate::wanted_features::WantedFeatures;
use crate::weights::Weights;

/// The current phase of routing of a run.
///
/// # Errors
/// [`PipelineError::Store`] when the manifest can't be read.
pub async fn current(run: &RunDirectory) -> Result<u32, PipelineError> {
    Ok(manifest(run).await?.map_or(0, |manifest| manifest.phase()))
}

/// The result of scoring.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Scored {
    /// Phase of the paths.
    pub phase: u32,
    /// Number of reserved documents.
    pub documents: u64,
    /// Tokens of the reserved documents.
    pub tokens: u64,
    /// Number of paths that scored in this call.
    pub new: u32,
    /// Number of paths of this part whose scores existed already.
    pub skipped: u32,
}

/// Lets the paths of `part` score the reserved documents with their current weights, one path after the other, so that one
/// path is in memory. Blocks on the store.
///
/// # Errors
/// When the run is not trained or has no reserved documents, when a file can't be written, or when `cancel` was set.
pub fn score(
    run: &RunDirectory,
    weights: &Weights,
    device: DeviceChoice,
    part: WorkPart,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<Scored, PipelineError> {
    let (training, config) = (training(weights)?, weights.config());
    let device = device::open(device)?;
    let size =
        ReaderSize { sequences: config.evaluation.batch_sequences, tokens: config.train.sequence_tokens };
    let routing = run.routing(training.phase);
    let tokens = reserved(run, &routing)?;
    remove_old_unfinished_scores(run, config);
    let paths: Vec<_> = weights.topology().path_ids().filter(|path| part.deals(path.index())).collect();
    let documents = tokens.documents();
    let task =
        progress.task("route score", Some(documents * paths.len() as u64), ProgressUnit::Count("documents"));
    let mut scored = Scored { phase: training.phase, documents, tokens: tokens.tokens(), new: 0, skipped: 0 };
    for (number, &path) in (0u64..).zip(&paths) {
        let header = header(training, weights, path, &tokens)?;
        if scores_are_there(&routing.scores(), &header)? {
            scored.skipped += 1;
        } else {
            let model = PathReader::new(&device, weights.path(path)?, size)?;
            weights.keep_only(path);
            let mut show = |done| {
                task.set(number * documents + done);
                if cancel.load(Ordering::Relaxed) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let batch = config.evaluation.batch_sequences;
            write_scores(&routing.scores(), &header, &model, &tokens, batch, &mut show)?;
            scored.new += 1;
            tracing::debug!(%path, "the reserved documents are scored");
        }
        task.set((number + 1) * documents);
    }
    task.finish();
    Ok(scored)
}

/// Fits the router of the next phase on the scores. A router of the same scores, seed and settings is left as it is.
/// Returns the router and true if it is new. Blocks on the store.
///
/// # Errors
/// When the phase is not complete or is the last, when scores are missing, when a file can't be written, or when `cancel`
/// was set.
pub fn refit(
    run: &RunDirectory,
    weights: &Weights,
    device: DeviceChoice,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<(Router, bool), PipelineError> {
    let new = run.routing(next(weights)?.phase + 1);
    let inputs = RefitInputs::read(run, weights)?;
    if let Some(known) = inputs.fitted(&new)? {
        return Ok((known, false));
    }
    let RefitInputs { tokens, settings, scores, old, from, origin } = inputs;
    let seed_hash = weights.seed_hash()?;
    let mut show = shown(progress, "route refit", cancel);
    let kind = RouterKind::Discriminative;
    // A document keeps its features for the whole run. Routers of random shards and of labels have no vectors.
    let vectors = match old.token_vectors().filter(|_| settings.needs_token_vectors(kind)) {
        Some(vectors) => Some(vectors),
        None => {
            let text = token_file(run, &run.train_tokens())?;
            token_vectors(&text, &settings, kind, &mut show)?
        }
    };
    let wanted = WantedFeatures { settings: &settings, kind, vectors: vectors.clone(), device };
    let model = wanted.features(run, weights, progress, cancel)?;
    let features = SampleFeatures::new(&model, seed_hash, &tokens, &settings, &new.features())?;
    let paths = weights.topology().paths();
    let mut likelihoods = Likelihoods::new(features.numbers().to_vec(), paths);
    for (path, scores) in scores.into_iter().enumerate() {
        likelihoods.set_path(path, &scores.sums(&tokens)?);
    }
    let mut targets = targets_of(likelihoods.values(), paths)?;
    raise_targets(&mut targets, likelihoods.values(), paths, settings.least_share);
    let FeaturePoints { points, devices } = features.all(&mut show)?;
    let origin = FitOrigin { devices, ..origin };
    let dimension = model.dimension();
    let documents = ScoredDocuments { features: &points, dimension, targets: &targets, paths };
    let fitted = fit_discriminative(&documents, origin, from, &settings, &mut show)?;
    tracing::info!(
        accuracy = fitted.accuracy,
        penalty = fitted.penalty,
        targets = ?fitted.target_sizes,
        sizes = ?fitted.sizes,
        uncalibrated = ?fitted.uncalibrated_sizes,
        "a discriminative router is fitted"
    );
    let router = with_vectors(fitted.router, vectors.as_ref())?;
    files::write(&new.router(), router.to_bytes())?;
    features.remove()?;
    Ok((router, true))
}

/// Takes all steps to the next phase. Returns its shards.
fn reroute(
    run: &RunDirectory,
    weights: &Weights,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<Vec<ShardRecord>, PipelineError> {
    let (training, config) = (next(weights)?, weights.config());
    let phase = training.phase + 1;
    tracing::info!(phase, round = training.phase_end(), "the text is divided among the paths anew");
    // The GPUs of this machine belong to its workers, which keep their memory while they wait.
    let device = DeviceChoice::Cpu;
    let scored = score(run, weights, device, WorkPart::WHOLE, progress, cancel)?;
    let (router, _) = refit(run, weights, device, progress, cancel)?;
    tracing::info!(
        phase,
        documents = scored.documents,
        router = router.hash(),
        "the router of the next phase is fitted"
    );
    assign(run, phase, weights, device, progress, cancel)?;
    if let Some(warning) = small(run, config, phase)? {
        tracing::warn!("phase {phase}: {warning}");
    }
    shard_records(run, phase, config)
}

/// A warning when the shards of a phase are small for the number of rounds that use them.
///
/// # Errors
/// When the shards can't be read.
pub fn small(run: &RunDirectory, config: &RunConfig, phase: u32) -> Result<Option<String>, PipelineError> {
    let boundaries: Vec<u32> = config.routing.phases.iter().map(|phase| phase.round).collect();
    let begin = (phase as usize).checked_sub(1).and_then(|index| boundaries.get(index)).copied().unwrap_or(0);
    let end = boundaries.get(phase as usize).copied().unwrap_or(config.train.rounds);
    Ok(small_shards(&shard_records(run, phase, config)?, config, begin..end))
}

/// Begins a phase for a coordinator on this machine; with `stop_at_phase`, only a phase whose router is fitted already. The work
/// ends soon after the coordinator does.
pub(crate) fn rerouting(
    run: &RunDirectory,
    config: &RunConfig,
    store: &RunStore,
    progress: &Progress,
    stop_at_phase: bool,
) -> Reroute {
    let inputs = (run.clone(), config.clone(), store.clone(), progress.clone());
    Box::new(move |_| {
        let (run, config, store, progress) = inputs.clone();
        Box::pin(async move {
            let weights = Weights::of_store(store, &config, Version::Current).await?;
            let stop = StopWhenDropped(Arc::default());
            let cancel = stop.0.clone();
            let work = move || {
                if stop_at_phase && !next_router_is_fitted(&run, &weights)? {
                    return Ok(None);
                }
                reroute(&run, &weights, &progress, &cancel).map(Some)
            };
            let shards = tokio::task::spawn_blocking(work).await;
            Ok(shards.map_err(|source| PipelineError::Task { source })??)
        })
    })
}

/// Asks the work to stop when the future that waits for it is dropped.
pub(crate) struct StopWhenDropped(pub(crate) Arc<AtomicBool>);

/// What the router of the next phase is fitted on.
struct RefitInputs {
    /// The reserved documents.
    tokens: Arc<TokenSet>,
    settings: RouterConfig,
    /// The scores of all paths, in path order.
    scores: Vec<PathScores>,
    /// The router of the current phase.
    old: Router,
    from: TargetsFrom,
    origin: FitOrigin,
}

impl RefitInputs {
    /// Reads the inputs of a run whose next phase can begin.
    fn read(run: &RunDirectory, weights: &Weights) -> Result<Self, PipelineError> {
        let routing = run.routing(next(weights)?.phase);
        let tokens = reserved(run, &routing)?;
        let settings = router_settings(weights)?;
        let ReservedScores { scores, hash: scores_hash } = scores(run, weights, &tokens)?;
        let old = router(&routing)?;
        let from = TargetsFrom { router_hash: old.hash().to_owned(), scores_hash };
        let origin = origin_of(&tokens, weights.seed_hash()?);
        Ok(Self { tokens, settings, scores, old, from, origin })
    }

    /// The router in a folder, if it is fitted on these inputs.
    fn fitted(&self, routing: &RoutingFolder) -> Result<Option<Router>, PipelineError> {
        let is_of_these =
            |known: &Router| known.fitted_on().has_inputs(&self.origin, &self.settings, Some(&self.from));
        Ok(usable_router(routing)?.filter(is_of_these))
    }
}

/// True if the router of the next phase is fitted on scores of the current weights. A run that went back has the router of the
/// weights that it had before.
fn next_router_is_fitted(run: &RunDirectory, weights: &Weights) -> Result<bool, PipelineError> {
    let new = run.routing(next(weights)?.phase + 1);
    if !new.router().exists() {
        return Ok(false);
    }
    match RefitInputs::read(run, weights) {
        Ok(inputs) => Ok(inputs.fitted(&new)?.is_some()),
        Err(PipelineError::Routing(RoutingError::NoScores { .. })) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The scores of all paths.
pub(crate) struct ReservedScores {
    /// In path order.
    pub(crate) scores: Vec<PathScores>,
    /// A hash over all of them.
    pub(crate) hash: String,
}

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn training(weights: &Weights) -> Result<&TrainingRecord, PipelineError> {
    weights.manifest().training.as_ref().ok_or(PipelineError::NotTrained)
}

/// The training of a run whose next phase can begin.
fn next(weights: &Weights) -> Result<&TrainingRecord, PipelineError> {
    let training = training(weights)?;
    if training.phase as usize >= training.boundaries.len() {
        return Err(PipelineError::NoPhase { phase: training.phase });
    }
    if !training.at_boundary() {
        return Err(CoordinatorError::from(LedgerError::NotAtBoundary { round: training.phase_end() }).into());
    }
    Ok(training)
}

/// Opens the reserved documents of a phase.
///
/// # Errors
/// [`PipelineError::NoReserved`] when there are none.
pub(crate) fn reserved(run: &RunDirectory, routing: &RoutingFolder) -> Result<Arc<TokenSet>, PipelineError> {
    let file = routing.reserved();
    if !file.exists() {
        return Err(PipelineError::NoReserved { file });
    }
    let tokens = token_file(run, &file)?;
    if tokens.documents() == 0 {
        return Err(PipelineError::NoReserved { file });
    }
    Ok(tokens)
}

/// The scores that all paths gave the reserved documents `tokens` with their current weights.
pub(crate) fn scores(
    run: &RunDirectory,
    weights: &Weights,
    tokens: &TokenSet,
) -> Result<ReservedScores, PipelineError> {
    // The scores of each path are a file that stays open.
    raise_open_files();
    let training = training(weights)?;
    let folder = run.routing(training.phase).scores();
    let (mut scores, mut hasher) = (Vec::new(), blake3::Hasher::new());
    for path in weights.topology().path_ids() {
        let found = PathScores::open(&folder, path, tokens)?;
        if !header(training, weights, path, tokens)?.is_answered_by(found.header()) {
            return Err(RoutingError::NoScores { path, folder }.into());
        }
        hasher.update(found.header().hash.as_bytes());
        scores.push(found);
    }
    Ok(ReservedScores { scores, hash: hasher.finalize().to_hex().to_string() })
}

fn header(
    training: &TrainingRecord,
    weights: &Weights,
    path: PathId,
    tokens: &TokenSet,
) -> Result<ScoreHeader, PipelineError> {
    let sequence_tokens = weights.config().train.sequence_tokens;
    Ok(score_header(training, weights.topology(), path, tokens, sequence_tokens)?)
}

#[cfg(test)]
mod tests;
