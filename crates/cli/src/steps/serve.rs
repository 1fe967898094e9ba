//! A run as the inference engine sees it.

use std::sync::Arc;

use dipaco_config::RunConfig;
use dipaco_infer::{BoxError, PrefixRouter, RunModel, TextCodec, TextStream, TokenizerInfo};
use dipaco_model::{level_specs, parameters, path_specs};
use dipaco_routing::Router;
use dipaco_server::{ServeConfig, ServedRun, ServerState};
use dipaco_shards::{IncrementalDecoder, Tokenizer};

use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;
use crate::steps::route::router;
use crate::steps::seed::tokenizer;
use crate::steps::weights::{Version, Weights};

/// Opens a run for serving and starts its engine.
pub(crate) async fn open(
    run: &RunDirectory,
    config: &RunConfig,
    serve: ServeConfig,
    version: Version,
) -> Result<Arc<ServerState>, StepError> {
    let weights = Weights::open(run, config, version).await?;
    let training = weights.manifest().training.as_ref().ok_or(StepError::NotTrained)?;
    let mut hasher = blake3::Hasher::new();
    for fragment in training.modules.iter().flat_map(|module| &module.fragments) {
        hasher.update(fragment.weights.hash.as_bytes());
    }
    let topology = weights.topology();
    let total: usize = (0..topology.levels())
        .map(|level| {
            parameters(&level_specs(&config.model, topology, level)) * topology.modules_in(level) as usize
        })
        .sum();
    let created = std::fs::metadata(run.config()).and_then(|file| file.modified()).ok();
    let created = created.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let served = ServedRun {
        name: config.run.name.clone(),
        created: created.unwrap_or_default().as_secs(),
        fingerprint: format!("fp_{}_{}", &hasher.finalize().to_hex()[..12], env!("CARGO_PKG_VERSION")),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        path_parameters: parameters(&path_specs(&config.model)) as u64,
        total_parameters: total as u64,
    };
    let router = router(&run.routing(weights.manifest().phase()))?;
    let tokenizer = tokenizer(run)?;
    // Loading waits for the store.
    let model = tokio::task::spawn_blocking(move || routed(weights, router))
        .await
        .map_err(|source| StepError::Task { source })??;
    Ok(ServerState::start(serve, served, Arc::new(model), Arc::new(Codec(tokenizer)))?)
}

/// The run as a model, with everything loaded: what is damaged is told before the first request.
fn routed(weights: Weights, router: Router) -> Result<RunModel, StepError> {
    let (model, topology) = (weights.model().clone(), weights.topology().clone());
    router.check_seed(model.hidden_size, weights.seed_hash()?)?;
    router.check_paths(topology.paths())?;
    let prefix = PrefixRouter {
        seed: weights.seed()?,
        prefix_tokens: router.prefix_tokens(),
        route: Box::new(move |features| {
            let route = router.route(features)?;
            Ok((route.path, route.distances))
        }),
    };
    let load = move |path| weights.path(path).map_err(BoxError::from);
    let model = RunModel::new(model, topology, Some(prefix), Box::new(load))?;
    model.load_all()?;
    Ok(model)
}

/// The run's tokenizer.
struct Codec(Tokenizer);

impl TextCodec for Codec {
    fn encode(&self, text: &str) -> Result<Vec<u32>, BoxError> {
        Ok(self.0.encode(text)?)
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, BoxError> {
        Ok(self.0.decode(tokens)?)
    }

    fn token_text(&self, token: u32) -> String {
        if token == self.0.end_of_text() {
            return self.0.end_of_text_text();
        }
        self.0
            .token_bytes(token)
            .map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn stream(&self, _after: &[u32]) -> Box<dyn TextStream> {
        // Byte-level tokens decode the same wherever they stand.
        Box::new(Decoding(self.0.incremental_decoder()))
    }

    fn end_of_text(&self) -> u32 {
        self.0.end_of_text()
    }

    fn vocab_size(&self) -> usize {
        self.0.vocab_size() as usize
    }

    fn info(&self) -> TokenizerInfo {
        TokenizerInfo { class: "PreTrainedTokenizerFast".to_owned(), end_of_text: self.0.end_of_text_text() }
    }
}

struct Decoding(IncrementalDecoder);

impl TextStream for Decoding {
    fn push(&mut self, token: u32) -> Result<String, BoxError> {
        Ok(self.0.push(token)?)
    }

    fn finish(&mut self) -> String {
        self.0.flush().unwrap_or_default()
    }
}
