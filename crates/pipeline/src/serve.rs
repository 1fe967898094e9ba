//! Serving a run over HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use dipaco_config::RunConfig;
use dipaco_infer::{BoxError, PrefixRouter, RunModel};
use dipaco_model::{TokenRows, level_specs, parameters, path_specs};
use dipaco_routing::{Router, TextRouter};
use dipaco_server::{ServeConfig, ServedRun, ServerState};

use crate::error::PipelineError;
use crate::prepared::tokenizer;
use crate::route::router;
use crate::run_directory::RunDirectory;
use crate::text_codec::RunTextCodec;
use crate::weights::{Version, Weights};

/// Opens a run and starts its inference engine. Pass the result to [`dipaco_server::serve`]. `config` has its vocabulary.
///
/// All weights are loaded before this returns, so a damaged file is reported before the first request.
///
/// # Errors
/// [`PipelineError::NotTrained`] and [`PipelineError::NotRouted`] when the run is not ready, and the errors of the store,
/// the router and the tokenizer.
pub async fn open(
    run: &RunDirectory,
    config: &RunConfig,
    serve: ServeConfig,
    version: Version,
) -> Result<Arc<ServerState>, PipelineError> {
    let weights = Weights::open(run, config, version).await?;
    let served = served_run(config, &weights).await?;
    let router = router(&run.routing(weights.manifest().phase()))?;
    let codec = RunTextCodec::new(tokenizer(run)?, run.imported().end_tokens()?);
    let model = tokio::task::spawn_blocking(move || load(weights, router))
        .await
        .map_err(|source| PipelineError::Task { source })??;
    Ok(ServerState::start(serve, served, Arc::new(model), Arc::new(codec))?)
}

/// Describes the served weights to clients.
///
/// # Errors
/// [`PipelineError::NotTrained`] when the paths have not been trained.
pub async fn served_run(config: &RunConfig, weights: &Weights) -> Result<ServedRun, PipelineError> {
    let topology = weights.topology();
    let total: usize = (0..topology.levels())
        .map(|level| {
            parameters(&level_specs(&config.model, topology, level)) * topology.modules_in(level) as usize
        })
        .sum();
    let created = weights.served_since().await?.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let version = env!("CARGO_PKG_VERSION");
    Ok(ServedRun {
        name: config.run.name.clone(),
        created: created.unwrap_or_default().as_secs(),
        fingerprint: format!("fp_{}_{version}", &weights.served_hash()?[..12]),
        version: version.to_owned(),
        path_parameters: parameters(&path_specs(&config.model)) as u64,
        total_parameters: total as u64,
    })
}

/// Loads the router, the seed and all paths. Blocks on the store.
fn load(weights: Weights, router: Router) -> Result<RunModel, PipelineError> {
    let (model, topology) = (weights.model().clone(), weights.topology().clone());
    router.check_paths(topology.paths())?;
    let (prefix_tokens, vocabulary) = (router.prefix_tokens(), model.vocab_size);
    let router = TextRouter::new(router, weights.seed()?, weights.seed_hash()?)?;
    let prefix = PrefixRouter {
        prefix_tokens,
        route: Box::new(move |prefixes| {
            // Prefixes of one length make a pass. Others would have to be padded.
            let mut lengths: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for (number, prefix) in prefixes.iter().enumerate() {
                lengths.entry(prefix.len()).or_default().push(number);
            }
            let mut found = BTreeMap::new();
            for (length, numbers) in lengths {
                let ids: Vec<u32> = numbers.iter().flat_map(|&number| prefixes[number]).copied().collect();
                let tokens = TokenRows::new(ids, numbers.len(), vocabulary)?;
                let routes = router.route(&tokens, &vec![length; numbers.len()])?;
                found.extend(numbers.into_iter().zip(routes));
            }
            Ok(found.into_values().map(|route| (route.path, route.distances)).collect())
        }),
    };
    let load = move |path| weights.served_path(path).map_err(BoxError::from);
    let model = RunModel::new(model, topology, Some(prefix), Box::new(load))?;
    model.load_all()?;
    Ok(model)
}
