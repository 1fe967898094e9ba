//! `dipaco serve`: serves a trained run over HTTP.

use std::env::VarError;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use clap::builder::BoolishValueParser;
use dipaco_config::RunConfig;
use dipaco_server::{
    ApiKeys, ChatTemplate, EncodeChat, LoadProgress, SamplingDefaults, ServerState, serve, serve_metrics,
    while_loading,
};
use dipaco_telemetry::Progress;
use tokio::net::TcpListener;

use crate::error::CliError;
use crate::hangup::Hangup;
use crate::http_address::http_address;
use crate::interrupt::Interrupt;
use crate::run_options::RunOptions;
use crate::runtime;
use dipaco_pipeline::serve::open;
use dipaco_pipeline::{RunDirectory, Version, chat_template_in, prepared, vocabulary};

/// The environment variable with API keys. There is no option for them: every user of a machine sees the arguments of its
/// programs.
const API_KEYS: &str = "DIPACO_API_KEYS";

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco serve --run runs/tiny
  dipaco serve --run runs/tiny --address 127.0.0.1:9000 --early-stopping
  curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
       -d '{\"model\": \"tiny\", \"prompt\": \"The\", \"max_tokens\": 20}'";

/// Options of `dipaco serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Address to listen on; a port alone is of 127.0.0.1. The default is serve.address of the configuration.
    #[arg(long, env = "DIPACO_ADDRESS", value_name = "[ADDRESS:]PORT", value_parser = http_address)]
    address: Option<SocketAddr>,
    /// Use the version of each path with the lowest loss on its held-out documents, instead of the last version.
    #[arg(long, env = "DIPACO_EARLY_STOPPING", value_parser = BoolishValueParser::new())]
    early_stopping: bool,
}

pub(crate) fn run(options: &ServeOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let hangup = Hangup::listen()?;
    let (run, config) = options.run.open_existing()?;
    dipaco_pipeline::route::check_tokenizer(&run)?;
    let config = vocabulary::with_vocabulary(&run, &config)?;
    let version = if options.early_stopping { Version::Best } else { Version::Current };
    let address = options.address.unwrap_or(config.serve.address);
    let keys = keys_of_environment()?;
    let without_keys = config.serve.api_keys.is_none() && keys.is_empty();
    for (address, what) in
        [(Some(address), "use this server"), (config.serve.metrics_address, "read its metrics")]
    {
        if let Some(address) = address.filter(|address| without_keys && !address.ip().is_loopback()) {
            tracing::warn!(
                "everybody who reaches {address} may {what}: give serve.api_keys or {API_KEYS}, or listen on 127.0.0.1"
            );
        }
    }
    let files = SmallFiles::read(&run, &config)?;
    runtime::run_detached(async {
        let listener = listen(address, "--address").await?;
        let metrics = match config.serve.metrics_address {
            Some(address) => Some(listen(address, "serve.metrics_address").await?),
            None => None,
        };
        let bound = listener.local_addr().unwrap_or(address);
        progress.line(&format!("loading {}: {bound} answers with 503 until then", config.run.name));
        let loading = LoadProgress::default();
        let opening = open(&run, &config, config.serve.clone(), version, &loading);
        let token = interrupt.token();
        let opening = while_loading(&listener, opening, &loading, &token);
        let opened = match &metrics {
            Some(metrics) => while_loading(metrics, opening, &loading, &token).await.flatten(),
            None => opening.await,
        };
        let state = opened.ok_or(CliError::Interrupted)??;
        state.add_keys(&keys);
        files.give_to(&state);
        hangup.serve(&state);
        progress.line(&format!("serving {} at http://{bound}", config.run.name));
        let Some(metrics) = metrics else { return Ok(serve(listener, state, token).await?) };
        if let Ok(bound) = metrics.local_addr() {
            progress.line(&format!("metrics of {} at http://{bound}/metrics", config.run.name));
        }
        tokio::select! {
            served = serve(listener, Arc::clone(&state), token) => Ok(served?),
            () = serve_metrics(metrics, Arc::clone(&state)) => Ok(()),
        }
    })
}

/// The settings of a server from small files. They are read before the weights: a mistake in one of them must not be found after
/// minutes of loading.
struct SmallFiles {
    /// The chat template, or why chats are refused.
    chats: Option<Result<ChatTemplate, String>>,
    sampling: Option<SamplingDefaults>,
}

impl SmallFiles {
    fn read(run: &RunDirectory, config: &RunConfig) -> Result<Self, CliError> {
        let imported = run.imported();
        // The start of the engine and of the server reads these two again. Here only their mistakes count.
        drop(imported.end_tokens()?);
        drop(config.serve.api_keys.as_deref().map(ApiKeys::load).transpose()?);
        let sampling = if config.serve.model_sampling {
            Some(SamplingDefaults::new(&imported.generation_settings()?)?)
        } else {
            None
        };
        Ok(Self { chats: chat_template(run, config)?, sampling })
    }

    fn give_to(self, state: &ServerState) {
        match self.chats {
            Some(Ok(template)) => state.set_chat_template(template),
            Some(Err(fault)) => state.refuse_chats(fault),
            None => {}
        }
        if let Some(sampling) = self.sampling {
            state.set_sampling_defaults(sampling);
        }
    }
}

/// The API keys of the environment; none without the variable.
fn keys_of_environment() -> Result<ApiKeys, CliError> {
    match std::env::var(API_KEYS) {
        Ok(value) => Ok(ApiKeys::from_variable(API_KEYS, &value)?),
        Err(VarError::NotPresent) => Ok(ApiKeys::default()),
        Err(VarError::NotUnicode(_)) => Err(CliError::Usage {
            message: format!("the environment variable {API_KEYS} is no UTF-8"),
            remedy: "give keys of ASCII characters, separated by commas".to_owned(),
        }),
    }
}

/// The chat template of the configuration, or else of the imported model. The model's own template may have a fault, which is
/// returned in its place: the run answers all but chats.
fn chat_template(
    run: &RunDirectory,
    config: &RunConfig,
) -> Result<Option<Result<ChatTemplate, String>>, CliError> {
    let text = match &config.serve.chat_template {
        Some(file) => Some(chat_template_in(file)?),
        None => run.imported().chat_template()?,
    };
    let Some(text) = text else { return Ok(None) };
    let tokenizer = prepared::tokenizer(run)?;
    let tokens = run.imported().template_tokens(&tokenizer.end_of_text_text())?;
    let encoder = tokenizer.template_encoder();
    let encode: EncodeChat = Box::new(move |text| Ok(encoder.encode(text)?));
    match ChatTemplate::new(text, tokens, encode) {
        Err(error) if config.serve.chat_template.is_none() => {
            let fault = error.source().map_or_else(|| error.to_string(), |source| source.to_string());
            tracing::warn!(file = %run.imported().chat_template_file().display(), fault, "chats are refused: {error}");
            Ok(Some(Err(fault)))
        }
        template => Ok(Some(Ok(template?))),
    }
}

/// Binds an address of the server, which `setting` names.
pub(crate) async fn listen(address: SocketAddr, setting: &'static str) -> Result<TcpListener, CliError> {
    TcpListener::bind(address).await.map_err(|source| CliError::Listen { address, setting, source })
}
