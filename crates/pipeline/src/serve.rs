//! Serving a run over HTTP, or to callers in the same process.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use dipaco_config::RunConfig;
use dipaco_eval::TokenRouter;
use dipaco_infer::{
    BoxError, Engine, ModuleMemory, NoObserver, PathModules, RoutedModel, RunModel, TextCodec,
};
use dipaco_model::{TokenRows, level_specs, parameters, path_specs};
use dipaco_routing::{RecentRouter, Router, TextRouter, TransformerRouter};
use dipaco_server::{LoadProgress, RerouteBy, ServeConfig, ServedRun, ServerState, start_engine};
use dipaco_topology::PathId;

use crate::error::PipelineError;
pub use crate::fingerprint::{FixedParts, fingerprint};
use crate::machine_memory::machine_memory;
use crate::prefix_router::prefix_router;
use crate::prepared::{tokenizer, tokenizer_file};
use crate::reload::{Source, follow};
use crate::route::router;
use crate::run_directory::RunDirectory;
pub use crate::serve_memory::{RouterModels, ServeMemory, ServerTooLarge};
use crate::serve_memory::{module_sizes, modules_at_start};
use crate::served_format::format;
use crate::served_modules::{ServedModules, all_paths};
use crate::text_codec::RunTextCodec;
use crate::transformer_router;
use crate::version::Version;
use crate::weights::Weights;

/// The commit that the program was built of. `scripts/package.py --build` sets the variable. A build script that asks git would
/// build and link the program again after each commit.
const COMMIT: &str = match option_env!("DIPACO_COMMIT") {
    Some(commit) if !commit.is_empty() => commit,
    Some(_) | None => "unknown",
};

/// Opens a run and starts its inference engine. Pass the result to [`dipaco_server::serve`]. `config` has its vocabulary.
///
/// With `serve.preload = "all"` the weights are loaded before this returns, as far as `serve.memory` has room for them, so a
/// damaged file is reported before the first request. Otherwise only the first path is. With
/// `serve.reload_seconds`, a task of the runtime takes up new weights until the server is gone.
///
/// # Errors
/// [`PipelineError::NotTrained`] and [`PipelineError::NotRouted`] when the run is not ready, [`PipelineError::ServeMemory`]
/// when it does not fit, and the errors of the store, the router and the tokenizer.
pub async fn open(
    run: &RunDirectory,
    config: &RunConfig,
    serve: ServeConfig,
    version: Version,
    progress: &LoadProgress,
) -> Result<Arc<ServerState>, PipelineError> {
    let weights = Weights::open(run, config, version).await?;
    let served = served_run(config, &weights).await?;
    let start = Start { run: run.clone(), config: config.clone(), version, progress: progress.clone() };
    let Opened { source, model, codec } = opened(start, weights).await?;
    if config.serve.reload_seconds > 0.0 {
        let every = Duration::try_from_secs_f64(config.serve.reload_seconds).unwrap_or(Duration::MAX);
        tokio::spawn(follow(source, Arc::downgrade(&model), every));
    }
    // The engine's first step takes a while. Probes get their answers meanwhile.
    let started = tokio::task::spawn_blocking(move || ServerState::start(serve, served, model, codec)).await;
    Ok(started.map_err(|source| PipelineError::Task { source })??)
}

/// Opens a run and starts the engine of a server for callers in this process, without HTTP. It keeps the weights of this
/// moment. `config` has its vocabulary.
///
/// # Errors
/// As [`open`].
pub async fn engine(
    run: &RunDirectory,
    config: &RunConfig,
    serve: &ServeConfig,
    version: Version,
) -> Result<Engine, PipelineError> {
    let weights = Weights::open(run, config, version).await?;
    let progress = LoadProgress::default();
    let start = Start { run: run.clone(), config: config.clone(), version, progress };
    let Opened { model, codec, .. } = opened(start, weights).await?;
    Ok(start_engine(serve, model, codec, Arc::new(NoObserver))?)
}

/// A run as model and tokenizer of an engine.
struct Opened {
    source: Arc<Source>,
    model: Arc<RunModel>,
    codec: Arc<RunTextCodec>,
}

/// What is to be opened.
struct Start {
    run: RunDirectory,
    config: RunConfig,
    version: Version,
    progress: LoadProgress,
}

async fn opened(start: Start, weights: Weights) -> Result<Opened, PipelineError> {
    let opened = tokio::task::spawn_blocking(move || load(start, weights)).await;
    opened.map_err(|source| PipelineError::Task { source })?
}

/// Describes the served weights to clients.
///
/// # Errors
/// [`PipelineError::NotTrained`] when the paths have not been trained, and the errors of a configuration that describes no
/// model.
pub async fn served_run(config: &RunConfig, weights: &Weights) -> Result<ServedRun, PipelineError> {
    let topology = weights.topology();
    let total: usize = (0..topology.levels())
        .map(|level| {
            parameters(&level_specs(&config.model, topology, level)) * topology.modules_in(level) as usize
        })
        .sum();
    let sizes = module_sizes(config, topology)?;
    let copies = (0..topology.levels()).map(|level| topology.modules_in(level) as usize);
    let total_bytes: usize = sizes.iter().zip(copies).map(|(bytes, copies)| bytes * copies).sum();
    let created = weights.served_since().await?.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Ok(ServedRun {
        name: config.run.name.clone(),
        created: created.unwrap_or_default().as_secs(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: COMMIT.to_owned(),
        path_parameters: parameters(&path_specs(&config.model)) as u64,
        total_parameters: total as u64,
        width: config.model.hidden_size as u64,
        path_bytes: sizes.iter().sum::<usize>() as u64,
        total_bytes: total_bytes as u64,
    })
}

/// The path with the best score after these tokens, the lowest of equal ones, as in the evaluation.
fn best_path(router: &dyn TokenRouter, tokens: &[u32], vocabulary: usize) -> Result<PathId, BoxError> {
    let rows = TokenRows::new(tokens, 1, vocabulary)?;
    let scores = router.scores(&rows, &[tokens.len().saturating_sub(1)])?;
    let better = |best: (PathId, f32), next: (PathId, f32)| if next.1 > best.1 { next } else { best };
    let best = (0..).map(PathId).zip(scores.iter().copied()).reduce(better);
    let best = best.filter(|_| scores.iter().all(|score| !score.is_nan()));
    Ok(best.ok_or("the router gave scores that are no numbers: fit it again")?.0)
}

/// The transformer router, where the run has one and the server reads it.
fn transformer_router(
    run: &RunDirectory,
    config: &RunConfig,
    weights: &Weights,
) -> Result<Option<TransformerRouter>, PipelineError> {
    match config.serve.reroute_by {
        RerouteBy::Features => Ok(None),
        RerouteBy::Transformer => match transformer_router::open(run, weights) {
            Ok(router) => Ok(Some(router)),
            // Without `serve.route_every` the server has no need of it.
            Err(PipelineError::NoTransformer { .. }) if config.serve.route_every == 0 => Ok(None),
            Err(error) => Err(error),
        },
    }
}

/// Loads tokenizer, routers and paths, and the seed if the router reads its features. Blocks on the store.
fn load(start: Start, weights: Weights) -> Result<Opened, PipelineError> {
    let Start { run, config, version, progress } = start;
    let phase = weights.manifest().phase();
    let router = router(&run.routing(phase))?;
    router.check_paths(weights.topology().paths())?;
    let paths = all_paths(&weights)?;
    check_memory(&run, &config, &weights, &router, &paths)?;
    progress.expect(modules_at_start(&config, weights.topology(), &paths)?);
    let transformer = transformer_router(&run, &config, &weights)?;
    let tokenizer = tokenizer(&run)?;
    let codec = RunTextCodec::new(tokenizer.clone(), run.imported().end_tokens()?);
    let fixed = FixedParts::new(&tokenizer, &codec.end_tokens(), &router, transformer.as_ref());
    let modules = ServedModules::new(format(config.serve.format), config.serve.memory(), progress);
    let source = Source { run, config, version, modules, phase, fixed };
    let model = run_model(&source, weights, router, transformer)?;
    Ok(Opened { source: Arc::new(source), model: Arc::new(model), codec: Arc::new(codec) })
}

/// Refuses a server that needs more memory than there is. Nothing of the size of a model is in memory yet.
fn check_memory(
    run: &RunDirectory,
    config: &RunConfig,
    weights: &Weights,
    router: &Router,
    paths: &[PathModules],
) -> Result<(), PipelineError> {
    let (kind, fitted) = (router.kind(), &router.fitted_on().config);
    let routers = RouterModels {
        seed: fitted.reads_seed(kind),
        transformer: config.serve.reroute_by == RerouteBy::Transformer
            && TransformerRouter::exists(run.routing(weights.manifest().phase()).root()),
        vectors: if fitted.needs_token_vectors(kind) { router.dimension() } else { 0 },
    };
    // Whoever reads a missing file says so.
    let tokenizer = tokenizer_file(run).and_then(|file| std::fs::metadata(file).ok());
    let tokenizer = tokenizer.map_or(0, |file| file.len());
    let memory = ServeMemory::new(config, weights.topology(), paths, routers, tokenizer)?;
    tracing::info!("the server needs at most {memory}");
    match machine_memory() {
        Some(machine) if config.serve.check_memory => Ok(memory.check(machine)?),
        _ => Ok(()),
    }
}

/// The model of a run: its paths behind its routers. Blocks on the store.
fn run_model(
    source: &Source,
    weights: Weights,
    router: Router,
    transformer: Option<TransformerRouter>,
) -> Result<RunModel, PipelineError> {
    let (model, topology) = (weights.model().clone(), weights.topology().clone());
    let vocabulary = model.vocab_size;
    let router = Arc::new(TextRouter::new(router, &model, weights.seed_hash()?, || weights.seed())?);
    let token_router: Option<Box<dyn TokenRouter + Send>> = match source.config.serve.reroute_by {
        RerouteBy::Features => Some(Box::new(RecentRouter::new(Arc::clone(&router)))),
        RerouteBy::Transformer => transformer.map(|router| Box::new(router) as Box<dyn TokenRouter + Send>),
    };
    let prefix = prefix_router(router, &topology, vocabulary);
    let paths = source.load(weights)?;
    // Also without `serve.preload`: a path that exceeds `serve.memory` is an error of the start.
    let path_bytes = paths.path(PathId(0))?.bytes();
    let model = RunModel::new(model, topology, Some(prefix), paths)?;
    let model = match token_router {
        Some(router) => {
            model.with_token_router(Box::new(move |tokens| best_path(&*router, tokens, vocabulary)))
        }
        None => model,
    };
    let ModuleMemory { bytes, modules, .. } = model.module_memory();
    tracing::info!(
        format = %format(source.config.serve.format), path_bytes, weight_bytes = bytes, modules, "the weights are loaded"
    );
    Ok(model)
}
