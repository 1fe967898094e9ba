//! State shared by all requests.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use dipaco_infer::{Engine, EngineError, Observer, RoutedModel, TextCodec};
use dipaco_settings::SettingError;
use dipaco_topology::PathId;
use thiserror::Error;

use crate::admission::{Admission, Observers};
use crate::blocking::Blocking;
use crate::body::BodyMemory;
use crate::chat_template::no_chat;
use crate::error::ApiError;
use crate::key_file::KeyFile;
use crate::random::Random;
use crate::{ApiKeys, ChatTemplate, Metrics, SamplingDefaults, ServeConfig, settings};

/// Errors of a server's start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A value of `[serve]` can't be used.
    #[error(transparent)]
    Config(#[from] SettingError),
    /// The file with the API keys can't be read.
    #[error("can't read the API keys from {} (serve.api_keys)", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// Error of the file system.
        #[source]
        source: io::Error,
    },
    /// The file with the chat template can't be read.
    #[error("can't read the chat template from {} (serve.chat_template)", path.display())]
    ChatTemplateFile {
        /// The file.
        path: PathBuf,
        /// Error of the file system.
        #[source]
        source: io::Error,
    },
    /// The file with the API keys holds no key.
    #[error("{} (serve.api_keys) holds no key: write one key a line, or remove serve.api_keys to serve without keys", path.display())]
    NoKeys {
        /// The file.
        path: PathBuf,
    },
    /// An environment variable for API keys holds no key.
    #[error(
        "the environment variable {name} holds no key: give keys separated by commas, or unset it to serve without keys"
    )]
    NoKeysIn {
        /// Name of the variable.
        name: &'static str,
    },
    /// A chat template can't be read.
    #[error(
        "the chat template is not valid Jinja: correct it, or name a file with another one in serve.chat_template"
    )]
    ChatTemplate {
        /// The place and kind of the mistake.
        #[source]
        source: Box<minijinja::Error>,
    },
    /// A sampling parameter of the model's generation settings can't be used.
    #[error(
        "the model's generation settings: {problem}; correct them, or serve with serve.model_sampling = false"
    )]
    Sampling {
        /// The parameter, its value and its range.
        problem: String,
    },
    /// The tokenizer has more tokens than the model.
    #[error(
        "the tokenizer has {tokenizer} tokens but the model has {model}: serve the run with its own tokenizer"
    )]
    Vocabulary {
        /// Number of tokens of the tokenizer.
        tokenizer: usize,
        /// V, the number of tokens of the model.
        model: usize,
    },
    /// The engine ended by a bug. A new process may do better.
    #[error("the server ends, because it can answer nothing any more")]
    Engine {
        /// The reason.
        #[source]
        source: EngineError,
    },
    /// The operating system refused a thread for a slot.
    #[error("can't start the {slots} threads that run sequences: lower serve.slots")]
    Threads {
        /// `serve.slots`; 0 stands for the number of cores.
        slots: usize,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Facts about the served run, for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedRun {
    /// Name of the run, which is also the name of the routed model. The paths are the models `name/path-0` and so on.
    pub name: String,
    /// Time at which the weights of the server's start were made, in seconds since 1970.
    pub created: u64,
    /// Version of the program.
    pub version: String,
    /// Commit that the program was built of; `unknown` if the build was not told.
    pub commit: String,
    /// Number of parameters of one path.
    pub path_parameters: u64,
    /// Number of parameters of all modules.
    pub total_parameters: u64,
    /// Width of the model, the size of an embedding.
    pub width: u64,
    /// Memory of the weights of one path in bytes, in the served format.
    pub path_bytes: u64,
    /// Memory of the weights of all modules in bytes, in the served format.
    pub total_bytes: u64,
}

/// A server: its engine, configuration and metrics.
pub struct ServerState {
    pub(crate) config: ServeConfig,
    pub(crate) run: ServedRun,
    pub(crate) engine: Engine,
    pub(crate) codec: Arc<dyn TextCodec>,
    pub(crate) keys: Arc<KeyFile>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) blocking: Blocking,
    pub(crate) bodies: BodyMemory,
    pub(crate) random: Random,
    /// The chat template, or why it can't be used.
    chat: OnceLock<Result<ChatTemplate, String>>,
    pub(crate) sampling: OnceLock<SamplingDefaults>,
    draining: AtomicBool,
}

/// Starts the engine of a server, with the limits of `[serve]`.
///
/// # Errors
/// When the configuration or the tokenizer can't be used, or the engine's threads can't be started.
pub fn start_engine(
    config: &ServeConfig,
    model: Arc<dyn RoutedModel>,
    codec: Arc<dyn TextCodec>,
    observer: Arc<dyn Observer>,
) -> Result<Engine, ServerError> {
    config.check()?;
    // A pretrained model may have more rows than its tokenizer has entries.
    if codec.vocab_size() > model.vocab_size() {
        return Err(ServerError::Vocabulary { tokenizer: codec.vocab_size(), model: model.vocab_size() });
    }
    Engine::start(model, codec, observer, &settings::engine_config(config))
        .map_err(|source| ServerError::Threads { slots: config.slots, source })
}

impl ServerState {
    /// Reads the API keys from the configured file and starts the engine for a run.
    ///
    /// # Errors
    /// When the configuration, the key file or the tokenizer can't be used, or the engine's threads can't be started.
    pub fn start(
        config: ServeConfig,
        run: ServedRun,
        model: Arc<dyn RoutedModel>,
        codec: Arc<dyn TextCodec>,
    ) -> Result<Arc<Self>, ServerError> {
        let keys = Arc::new(KeyFile::open(config.api_keys.as_deref())?);
        let metrics = Arc::new(Metrics::new(&run, model.topology().paths()));
        let admission = Arc::new(Admission::new());
        let observers = Observers { metrics: Arc::clone(&metrics), admission: Arc::clone(&admission) };
        let engine = start_engine(&config, model, Arc::clone(&codec), Arc::new(observers))?;
        admission.set_places(engine.slots());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Arc::new(Self {
            // More threads than cores would only take turns.
            blocking: Blocking::new(engine.slots().min(cores), config.queued_requests),
            bodies: BodyMemory::new(config.body_limit),
            config,
            run,
            engine,
            codec,
            keys,
            metrics,
            admission,
            random: Random::default(),
            chat: OnceLock::new(),
            sampling: OnceLock::new(),
            draining: AtomicBool::new(false),
        }))
    }

    /// The engine, for watching its load.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Accepts these API keys besides those of the configured file. They stay valid while the server runs.
    pub fn add_keys(&self, keys: &ApiKeys) {
        self.keys.add(keys);
    }

    /// Lets a running server read its file of API keys again at once, and not only with its next look. Returns false if the
    /// server has no such file.
    pub fn read_keys_again(&self) -> bool {
        self.keys.read_again()
    }

    /// Serves chats with this template. Without one, chats are refused. A second template changes nothing.
    pub fn set_chat_template(&self, template: ChatTemplate) {
        self.set_chat(Ok(template));
    }

    /// Refuses chats for a fault of the model's template, which the answers name. A template that was set before stays.
    pub fn refuse_chats(&self, fault: String) {
        self.set_chat(Err(fault));
    }

    fn set_chat(&self, chat: Result<ChatTemplate, String>) {
        if self.chat.set(chat).is_err() {
            tracing::warn!("the server has a chat template already");
        }
    }

    /// The chat template, or why chats are refused.
    pub(crate) fn chat(&self) -> Result<&ChatTemplate, ApiError> {
        let chat = self.chat.get().ok_or_else(|| no_chat(None))?;
        chat.as_ref().map_err(|fault| no_chat(Some(fault)))
    }

    /// Gives requests these sampling parameters where they set none. Without them the parameters of OpenAI's API hold. Second
    /// ones change nothing.
    pub fn set_sampling_defaults(&self, defaults: SamplingDefaults) {
        if self.sampling.set(defaults).is_err() {
            tracing::warn!("the server has sampling defaults already");
        }
    }

    /// True if the metrics have a listener of their own.
    pub(crate) fn metrics_apart(&self) -> bool {
        self.config.metrics_address.is_some()
    }

    /// Returns whether the server is shutting down.
    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Why the server takes no requests: its engine ended by a bug, or it is shutting down.
    pub(crate) fn closed(&self) -> Option<ApiError> {
        let failed = self.engine.failure().map(ApiError::from);
        failed.or_else(|| self.draining().then(ApiError::shutting_down))
    }

    /// Refuses new requests from now on.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn path_model(&self, path: PathId) -> String {
        format!("{}/path-{path}", self.run.name)
    }

    /// The path that a model's name stands for; `None` for the run, whose router chooses.
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
