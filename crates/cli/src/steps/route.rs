//! Fitting the router of a run and dividing its text among the paths.

use std::ops::ControlFlow;
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::RunConfig;
use dipaco_routing::{Assignment, Progress as Step, Router, RouterConfig, ShardSet};
use dipaco_store::ShardRecord;
use dipaco_telemetry::{Progress, Unit};

use crate::run_directory::{RoutingFolder, RunDirectory};
use crate::steps::error::StepError;
use crate::steps::files;
use crate::steps::seed::{token_file, tokenizer};
use crate::steps::weights::Weights;

/// Reads the router of a phase.
pub(crate) fn router(routing: &RoutingFolder) -> Result<Router, StepError> {
    let file = routing.router();
    if !file.exists() {
        return Err(StepError::NotRouted { folder: routing.root().to_owned() });
    }
    let failed = |source| StepError::Io { action: "read", path: file.clone(), source };
    let bytes = std::fs::read(&file).map_err(failed)?;
    Router::from_bytes(&bytes).map_err(|source| StepError::Router { file, source })
}

/// Fits the first router on the seed's features of the training text. One that was fitted on the same text, seed and
/// settings is left as it is; returns it and whether it was new.
pub(crate) fn fit(
    run: &RunDirectory,
    config: &RunConfig,
    weights: &Weights,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<(Router, bool), StepError> {
    let file = token_file(run, &run.train_tokens())?;
    let seed_hash = weights.seed_hash()?;
    let paths = weights.topology().paths();
    let routing = run.routing(0);
    let settings = config.routing.of_router();
    if routing.router().exists() {
        let known = router(&routing)?;
        let fitted = known.fitted_on();
        let same = fitted.tokens_hash == file.content_hash()
            && fitted.seed_hash == seed_hash
            && fitted.config == settings
            && known.paths() == paths;
        if same {
            return Ok((known, false));
        }
    }
    let seed = weights.seed()?;
    let fitted = dipaco_routing::fit(
        &seed,
        seed_hash,
        &file,
        &weights.topology().radices(),
        &settings,
        &mut shown(progress, "route fit", cancel),
    )?;
    files::write(&routing.router(), fitted.router.to_bytes())?;
    Ok((fitted.router, true))
}

/// What dividing the text gave.
pub(crate) struct Division {
    pub(crate) train: ShardSet,
    /// Absent when the run has no validation text.
    pub(crate) validation: Option<ShardSet>,
    /// Whether everything had been there.
    pub(crate) skipped: bool,
}

/// Writes one shard per path of the training and of the validation text, by the router of a phase.
pub(crate) fn assign(
    run: &RunDirectory,
    config: &RunConfig,
    phase: u32,
    weights: &Weights,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<Division, StepError> {
    let routing = run.routing(phase);
    let router = router(&routing)?;
    let seed = weights.seed()?;
    let seed_hash = weights.seed_hash()?;
    let divide = |file: &FilePath, folder: &FilePath, name: &str, train: bool| {
        let file = token_file(run, file)?;
        let mut assignment = Assignment::new(&seed, seed_hash, &router, &file, folder);
        if train {
            let RouterConfig { overlap, router_share, seed, .. } = config.routing;
            assignment = assignment.overlap(overlap).reserve(router_share, seed);
        }
        Ok::<_, StepError>(assignment.run(&mut shown(progress, name, cancel))?)
    };
    let train = divide(&run.train_tokens(), &routing.train(), "route train", true)?;
    let mut skipped = train.skipped;
    let validation = if run.validation_tokens().exists() {
        let divided = divide(&run.validation_tokens(), &routing.validation(), "route valid", false)?;
        skipped &= divided.skipped;
        Some(divided.shards)
    } else {
        None
    };
    Ok(Division { train: train.shards, validation, skipped })
}

/// Checks that the tokenizer of a run is the one that it was routed with, when it was routed.
/// Another tokenizer of as many tokens fits the weights and would give nonsense without a word.
pub(crate) fn check_tokenizer(run: &RunDirectory) -> Result<(), StepError> {
    let routing = run.routing(0);
    if routing.router().exists() {
        let found = tokenizer(run)?;
        let router = router(&routing)?;
        let expected = &router.fitted_on().tokenizer_hash;
        if found.hash() != expected.as_str() {
            let (file, found, expected) = (run.tokenizer(), found.hash().to_string(), expected.clone());
            return Err(StepError::OtherTokenizer { file, found, expected });
        }
    }
    Ok(())
}

/// The training shards of a phase, as the run's manifest keeps them. Every one is opened: a damaged one is told here, before
/// workers fail on it one after the other.
pub(crate) fn shard_records(run: &RunDirectory, phase: u32) -> Result<Vec<ShardRecord>, StepError> {
    let folder = run.routing(phase).train();
    if !folder.exists() {
        return Err(StepError::NotRouted { folder });
    }
    let shards = ShardSet::open(&folder)?;
    shards.check_trainable()?;
    for shard in shards.shards() {
        shards.open_shard(shard.path)?;
    }
    // With slashes on every system: the name goes to workers elsewhere.
    let place = if phase == 0 { "train".to_owned() } else { format!("phase-{phase}/train") };
    let record = |shard: &dipaco_routing::Shard| ShardRecord {
        file: format!("{place}/{}", dipaco_routing::shard_file_name(shard.path)),
        hash: shard.content_hash.clone(),
        documents: shard.documents,
        tokens: shard.tokens,
    };
    Ok(shards.shards().iter().map(record).collect())
}

/// Shows the progress of a long routing operation and stops it on request.
pub(crate) fn shown<'a>(
    progress: &'a Progress,
    name: &'a str,
    cancel: &'a AtomicBool,
) -> impl FnMut(Step) -> ControlFlow<()> + 'a {
    let mut task: Option<dipaco_telemetry::Task> = None;
    move |step| {
        if cancel.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        match step {
            Step::Documents { done, total } => {
                let task =
                    task.get_or_insert_with(|| progress.task(name, Some(total), Unit::Count("documents")));
                task.set(done);
                if done == total {
                    task.finish();
                }
            }
            Step::KMeans { restart, iteration, inertia } => {
                tracing::debug!(restart, iteration, inertia, "k-means");
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
