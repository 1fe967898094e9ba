//! What all requests share.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_infer::{Engine, RoutedModel, TextCodec};
use dipaco_topology::PathId;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::blocking::Blocking;
use crate::error::ApiError;
use crate::random::Random;
use crate::{ApiKeys, Metrics, ServeConfig, ServeConfigError};

/// Why a server can't start or had to end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration can't work.
    #[error(transparent)]
    Config(#[from] ServeConfigError),
    /// The file with the API keys can't be read.
    #[error("can't read the API keys from {} (serve.api_keys)", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file with the API keys holds none.
    #[error("{} (serve.api_keys) holds no key: write one a line, or remove serve.api_keys to let everyone in", path.display())]
    NoKeys {
        /// The file.
        path: PathBuf,
    },
    /// The tokenizer and the model do not belong together.
    #[error(
        "the tokenizer has {tokenizer} tokens and the model {model}: serve the run with its own tokenizer"
    )]
    Vocabulary {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// V of the model.
        model: usize,
    },
    /// No threads for the slots.
    #[error("can't start the {slots} threads that run sequences: lower serve.slots")]
    Threads {
        /// serve.slots, 0 for the number of cores.
        slots: usize,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What a server says of the run that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedRun {
    /// The run's id: the name of the model that routes. Paths are `name/path-0` and so on.
    pub name: String,
    /// When the served weights were made, in seconds since 1970.
    pub created: u64,
    /// Says which weights and which binary answer: the same fingerprint and seed give the same text.
    pub fingerprint: String,
    /// The binary's version.
    pub version: String,
    /// Parameters of one path.
    pub path_parameters: u64,
    /// Parameters of all modules.
    pub total_parameters: u64,
}

/// A server's engine, configuration and counts.
pub struct State {
    pub(crate) config: ServeConfig,
    pub(crate) run: ServedRun,
    pub(crate) engine: Engine,
    pub(crate) codec: Arc<dyn TextCodec>,
    pub(crate) keys: ApiKeys,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) blocking: Blocking,
    pub(crate) random: Random,
    /// Cancelled when the time to finish is over: streams end with an error.
    pub(crate) abort: CancellationToken,
    draining: AtomicBool,
}

impl State {
    /// Starts the engine for a run. The API keys are read from the configured file.
    ///
    /// # Errors
    /// When the configuration, the keys or the tokenizer don't fit, or the engine's threads can't be started.
    pub fn start(
        config: ServeConfig,
        run: ServedRun,
        model: Arc<dyn RoutedModel>,
        codec: Arc<dyn TextCodec>,
    ) -> Result<Arc<Self>, ServerError> {
        config.check()?;
        let keys = config.api_keys.as_deref().map(ApiKeys::load).transpose()?.unwrap_or_default();
        if codec.vocab_size() != model.vocab_size() {
            return Err(ServerError::Vocabulary { tokenizer: codec.vocab_size(), model: model.vocab_size() });
        }
        let metrics = Arc::new(Metrics::new(&run.name, model.topology().paths(), &run.version));
        let engine = Engine::start(model, Arc::clone(&codec), metrics.clone(), &config.engine())
            .map_err(|source| ServerError::Threads { slots: config.slots, source })?;
        Ok(Arc::new(Self {
            blocking: Blocking::new(engine.slots()),
            config,
            run,
            engine,
            codec,
            keys,
            metrics,
            random: Random::default(),
            abort: CancellationToken::new(),
            draining: AtomicBool::new(false),
        }))
    }

    /// The engine, for those who watch its load.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn path_model(&self, path: PathId) -> String {
        format!("{}/path-{path}", self.run.name)
    }

    /// What a model's name asks for: the run (`None`) or one of its paths.
    pub(crate) fn resolve(&self, model: &str) -> Result<Option<PathId>, ApiError> {
        if model == self.run.name {
            return Ok(None);
        }
        let paths = self.engine.model().topology().paths();
        let rest = model.strip_prefix(self.run.name.as_str()).and_then(|rest| rest.strip_prefix("/path-"));
        let digits = rest.filter(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()));
        let path = digits.and_then(|digits| digits.parse().ok()).filter(|&path: &u32| path < paths);
        path.map(|path| Some(PathId(path))).ok_or_else(|| {
            let shown: String = model.chars().take(80).collect();
            let Self { run, .. } = self;
            let message = format!(
                "the model `{shown}` does not exist: this server has `{}` and `{}/path-0` to `path-{}`",
                run.name,
                run.name,
                paths.saturating_sub(1)
            );
            let code = Some("model_not_found");
            ApiError {
                param: Some("model".into()),
                code,
                ..ApiError::new(axum::http::StatusCode::NOT_FOUND, message)
            }
        })
    }
}
