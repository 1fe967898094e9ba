//! Fitting the router of a run and dividing the text among the paths.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::RunConfig;
use dipaco_path::DeviceChoice;
use dipaco_routing::{
    Assignment, FeatureExtractor, FeaturePoints, FitOrigin, ProgressFn, Router, RouterConfig, RouterKind,
    RoutingProgress, SampleFeatures, ShardSet, TokenVectors,
};
use dipaco_shards::{TokenSet, WorkPart};
use dipaco_telemetry::{Progress, ProgressUnit, Task};

use crate::error::PipelineError;
use crate::files;
use crate::label_file::{check_label_file, labels_hash};
use crate::prepared::{token_file, tokenizer};
use crate::router_settings::router_settings;
use crate::run_directory::{RoutingFolder, RunDirectory};
use crate::shards_in_use::refuse_other_shards;
use crate::wanted_features::WantedFeatures;
use crate::weights::Weights;

/// Reads the router of a phase.
///
/// # Errors
/// [`PipelineError::NotRouted`] when there is none, [`PipelineError::Router`] when it can't be used.
pub fn router(routing: &RoutingFolder) -> Result<Router, PipelineError> {
    let file = routing.router();
    if !file.exists() {
        return Err(PipelineError::NotRouted { folder: routing.root().to_owned() });
    }
    read_router(file)
}

/// The router of a phase; `None` if there is none.
fn existing_router(routing: &RoutingFolder) -> Result<Option<Router>, PipelineError> {
    routing.router().exists().then(|| router(routing)).transpose()
}

/// As [`existing_router`], for a caller that fits the router anew. A router that can't be used counts as none, with a warning.
pub(crate) fn usable_router(routing: &RoutingFolder) -> Result<Option<Router>, PipelineError> {
    match existing_router(routing) {
        Err(PipelineError::Router { file, source }) => {
            tracing::warn!("{} can't be used and is replaced: {source}", file.display());
            Ok(None)
        }
        found => found,
    }
}

/// The router whose paths the run keeps; `None` for a run that extends no other run.
fn kept_router(run: &RunDirectory, tokenizer_hash: &str) -> Result<Option<Router>, PipelineError> {
    let file = run.kept_router();
    if !file.exists() {
        return Ok(None);
    }
    let kept = read_router(file)?;
    kept.check_tokenizer(tokenizer_hash)?;
    Ok(Some(kept))
}

fn read_router(file: PathBuf) -> Result<Router, PipelineError> {
    let failed = |source| PipelineError::Io { action: "read", path: file.clone(), source };
    let bytes = std::fs::read(&file).map_err(failed)?;
    Router::from_bytes(&bytes).map_err(|source| PipelineError::Router { file, source })
}

/// Fits the router of phase 0 on the seed's features of the training text. A run that extends another one keeps that run's
/// centroids, and gets further ones for its new paths. A router of the same text, seed and settings is left as it is, whichever
/// device computed its features. Returns the router and true if it is new. Blocks on the store.
///
/// # Errors
/// When the run is not prepared or has no seed, when a file can't be written, or when `cancel` was set.
/// [`PipelineError::RouterInUse`] when paths were trained on the text that another router divided.
pub fn fit(
    run: &RunDirectory,
    weights: &Weights,
    device: DeviceChoice,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<(Router, bool), PipelineError> {
    let file = token_file(run, &run.train_tokens())?;
    let seed_hash = weights.seed_hash()?;
    let paths = weights.topology().paths();
    let routing = run.routing(0);
    let settings = router_settings(weights)?;
    let labels_hash = labels_hash(weights.config())?;
    let origin = FitOrigin { labels_hash, ..origin_of(&file, seed_hash) };
    let kept = kept_router(run, file.tokenizer_hash())?;
    if let Some(kept) = kept.as_ref().filter(|kept| kept.paths() == paths) {
        // Only paths were removed: there is nothing to fit.
        return Ok((kept.clone(), publish_router(&routing, kept)?));
    }
    let is_trained = weights.manifest().training.is_some();
    // The router of trained paths is worth a copy from elsewhere.
    let known = if is_trained { existing_router(&routing)? } else { usable_router(&routing)? };
    if let Some(known) = known {
        if known.fitted_on().has_inputs(&origin, &settings, None) && known.paths() == paths {
            return Ok((known, false));
        }
        if is_trained {
            return Err(PipelineError::RouterInUse { file: routing.router() });
        }
    }
    let mut show = shown(progress, "features", cancel);
    let vectors = vectors_of(kept.as_ref(), &file, &settings, &mut show)?;
    let wanted =
        WantedFeatures { settings: &settings, kind: settings.kind, vectors: vectors.clone(), device };
    let model = wanted.features(run, weights, progress, cancel)?;
    let features = SampleFeatures::new(&model, seed_hash, &file, &settings, &routing.features())?;
    let FeaturePoints { points, devices } = features.all(&mut show)?;
    let origin = FitOrigin { devices, ..origin };
    let router = match &kept {
        Some(kept) => {
            let added = paths.saturating_sub(kept.paths());
            dipaco_routing::fit_added(kept, &points, added, origin, &settings, &mut show)?
        }
        None => {
            let (topology, dimension) = (weights.topology(), model.dimension());
            let (clusters, replicas) = (topology.radices(), topology.replicas());
            let fitted = dipaco_routing::fit_points(
                &points, dimension, &clusters, replicas, origin, &settings, &mut show,
            )?;
            with_vectors(fitted.router, vectors.as_ref())?
        }
    };
    files::write(&routing.router(), router.to_bytes())?;
    features.remove()?;
    Ok((router, true))
}

/// Writes a router, unless it is there already. Returns true if it is new.
pub(crate) fn publish_router(routing: &RoutingFolder, router: &Router) -> Result<bool, PipelineError> {
    if usable_router(routing)?.is_some_and(|known| known.hash() == router.hash()) {
        return Ok(false);
    }
    files::write(&routing.router(), router.to_bytes())?;
    Ok(true)
}

/// The token vectors that the features of a text need: those of a kept router, or new ones.
fn vectors_of(
    kept: Option<&Router>,
    file: &TokenSet,
    settings: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Option<TokenVectors>, PipelineError> {
    match kept {
        Some(kept) => Ok(kept.token_vectors()),
        None => token_vectors(file, settings, settings.kind, progress),
    }
}

/// The origin of a router that is fitted on the documents of `tokens`.
pub(crate) fn origin_of(tokens: &TokenSet, seed_hash: &str) -> FitOrigin {
    FitOrigin {
        tokens_hash: tokens.content_hash().to_owned(),
        tokenizer_hash: tokens.tokenizer_hash().to_owned(),
        seed_hash: seed_hash.to_owned(),
        labels_hash: None,
        devices: Vec::new(),
    }
}

/// The token vectors of a text, for a router of a kind that needs them.
pub(crate) fn token_vectors(
    file: &TokenSet,
    settings: &RouterConfig,
    kind: RouterKind,
    progress: &mut ProgressFn<'_>,
) -> Result<Option<TokenVectors>, PipelineError> {
    let needed = settings.needs_token_vectors(kind);
    Ok(needed.then(|| TokenVectors::fit(file, settings, progress)).transpose()?)
}

/// A fitted router with the token vectors of its features, if they need any.
pub(crate) fn with_vectors(router: Router, vectors: Option<&TokenVectors>) -> Result<Router, PipelineError> {
    Ok(match vectors {
        Some(vectors) => router.with_token_vectors(vectors)?,
        None => router,
    })
}

/// The shards of a phase.
pub struct Division {
    /// Training shards.
    pub train: ShardSet,
    /// Validation shards; absent when the run has no validation text.
    pub validation: Option<ShardSet>,
    /// True if all shards existed already.
    pub skipped: bool,
}

/// Divides training and validation text among the paths by the router of a phase, and writes one shard per path. A training
/// document goes to `routing.overlap` shards, or is reserved for the next router; a validation document goes to one shard.
/// Blocks on the store.
///
/// # Errors
/// As [`fit`], [`PipelineError::ShardsInUse`] when paths were trained on other shards of this phase, and
/// [`PipelineError::Labels`] when the router was fitted with another label file.
pub fn assign(
    run: &RunDirectory,
    phase: u32,
    weights: &Weights,
    device: DeviceChoice,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<Division, PipelineError> {
    let mut skipped = true;
    let mut shards = divide(run, phase, weights, device, progress, cancel, |assignment, name| {
        let assigned = assignment.run(&mut shown(progress, name, cancel))?;
        skipped &= assigned.skipped;
        Ok(assigned.shards)
    })?
    .into_iter();
    let Some(train) = shards.next() else { return Err(PipelineError::NotPrepared { folder: run.data() }) };
    if !skipped
        && let gain = dipaco_routing::token_gain(&train, weights.config().routing.prefix_tokens)?
        && let Some(warning) = gain_warning(&run.routing(phase), gain)?
    {
        tracing::warn!("{warning}");
    }
    Ok(Division { train, validation: shards.next(), skipped })
}

/// A warning when the shards of a phase are hardly different kinds of text ([`dipaco_routing::token_gain`]). The router of
/// the phase decides: a run may begin with random shards, and its next router divides by the text.
///
/// # Errors
/// As [`router`].
pub fn gain_warning(routing: &RoutingFolder, gain: Option<f64>) -> Result<Option<String>, PipelineError> {
    Ok(dipaco_routing::token_gain_warning(router(routing)?.kind(), gain))
}

/// Decides about a part of the training text and of the validation text, and writes no shard. Returns the number of
/// documents in each part. Blocks on the store.
///
/// # Errors
/// As [`assign`].
pub fn assign_part(
    run: &RunDirectory,
    phase: u32,
    weights: &Weights,
    device: DeviceChoice,
    part: WorkPart,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<Vec<u64>, PipelineError> {
    divide(run, phase, weights, device, progress, cancel, |assignment, name| {
        Ok(assignment.part(part, &mut shown(progress, name, cancel))?)
    })
}

/// The device for [`fit`] and [`assign`] in a command that does all steps of a run: the CPU where no model computes the features.
/// The user asks for a GPU for the other steps there, so nothing is to be warned of.
#[must_use]
pub fn device_among_all_steps(config: &RunConfig, device: DeviceChoice) -> DeviceChoice {
    let routing = &config.routing;
    if routing.reads_seed(routing.kind) { device } else { DeviceChoice::Cpu }
}

/// Calls `act` with the assignment of the training text and, if there is any, of the validation text.
fn divide<T>(
    run: &RunDirectory,
    phase: u32,
    weights: &Weights,
    device: DeviceChoice,
    progress: &Progress,
    cancel: &AtomicBool,
    mut act: impl FnMut(Assignment<'_>, &str) -> Result<T, PipelineError>,
) -> Result<Vec<T>, PipelineError> {
    let routing = run.routing(phase);
    let router = router(&routing)?;
    let train = token_file(run, &run.train_tokens())?;
    refuse_other_shards(&routing, phase, weights, &router, &train)?;
    check_label_file(weights.config(), &router)?;
    let settings = &router.fitted_on().config;
    let wanted = WantedFeatures { settings, kind: router.kind(), vectors: router.token_vectors(), device };
    let model = wanted.features(run, weights, progress, cancel)?;
    let seed_hash = weights.seed_hash()?;
    let config = &weights.config().routing;
    let folder = routing.train();
    let assignment = Assignment::new(&model, seed_hash, &router, &train, &folder)
        .overlap(config.overlap)
        .reserve(config.router_share, config.seed);
    let mut results = vec![act(assignment, "route train")?];
    if run.validation_tokens().exists() {
        let validation = token_file(run, &run.validation_tokens())?;
        let folder = routing.validation();
        results.push(act(Assignment::new(&model, seed_hash, &router, &validation, &folder), "route valid")?);
    }
    Ok(results)
}

/// Computes a part of the features that the router is fitted on. Returns the part's number of documents. Blocks on the
/// store.
///
/// # Errors
/// As [`fit`].
pub fn features_part(
    run: &RunDirectory,
    weights: &Weights,
    device: DeviceChoice,
    part: WorkPart,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<u64, PipelineError> {
    let file = token_file(run, &run.train_tokens())?;
    let settings = router_settings(weights)?;
    let mut show = shown(progress, "features", cancel);
    let kept = kept_router(run, file.tokenizer_hash())?;
    let vectors = vectors_of(kept.as_ref(), &file, &settings, &mut show)?;
    let wanted = WantedFeatures { settings: &settings, kind: settings.kind, vectors, device };
    let model = wanted.features(run, weights, progress, cancel)?;
    let features =
        SampleFeatures::new(&model, weights.seed_hash()?, &file, &settings, &run.routing(0).features())?;
    Ok(features.part(part, &mut show)?)
}

/// Checks that a routed run still has the tokenizer that it was routed with. Another tokenizer of the same size would fit
/// the weights and silently give nonsense.
///
/// # Errors
/// [`PipelineError::OtherTokenizer`], and the errors of reading tokenizer and router.
pub fn check_tokenizer(run: &RunDirectory) -> Result<(), PipelineError> {
    let routing = run.routing(0);
    if routing.router().exists() {
        let found = tokenizer(run)?;
        let router = router(&routing)?;
        let expected = &router.fitted_on().tokenizer_hash;
        if found.hash() != expected.as_str() {
            let (file, found, expected) = (run.tokenizer(), found.hash().to_string(), expected.clone());
            return Err(PipelineError::OtherTokenizer { file, found, expected });
        }
    }
    Ok(())
}

/// Shows the progress of a long routing operation and stops it on request.
pub(crate) fn shown<'a>(
    progress: &'a Progress,
    name: &'a str,
    cancel: &'a AtomicBool,
) -> impl FnMut(RoutingProgress) -> ControlFlow<()> + 'a {
    let mut tasks: [Option<Task>; 4] = [None, None, None, None];
    let mut show = move |which: usize, name: String, unit: ProgressUnit, done: u64, total: u64| {
        let task = tasks[which].get_or_insert_with(|| {
            let task = progress.task(&name, Some(total), unit);
            // Documents of an earlier call must not count in the rate of this one.
            task.resume_at(done);
            task
        });
        task.set(done);
        if done == total {
            task.finish();
        }
    };
    move |step| {
        if cancel.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        let documents = ProgressUnit::Count("documents");
        match step {
            RoutingProgress::Verify { done, total } => {
                show(0, format!("{name}: check"), ProgressUnit::Bytes, done, total);
            }
            RoutingProgress::VerifyShards { done, total } => {
                show(3, format!("{name}: check of the shards"), ProgressUnit::Bytes, done, total);
            }
            RoutingProgress::Documents { done, total } => show(1, name.to_owned(), documents, done, total),
            RoutingProgress::Shards { done, total } => {
                show(2, format!("{name}: shards"), documents, done, total);
            }
            RoutingProgress::KMeans { restart, iteration, inertia } => {
                tracing::debug!(restart, iteration, inertia, "k-means");
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests;
