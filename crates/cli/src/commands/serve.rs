//! `dipaco serve`: serves a trained run over HTTP.

use std::net::SocketAddr;

use clap::Args;
use dipaco_server::serve;
use dipaco_telemetry::Progress;
use tokio::net::TcpListener;

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::run_options::RunOptions;
use crate::runtime;
use dipaco_pipeline::Version;
use dipaco_pipeline::serve::open;
use dipaco_pipeline::vocabulary;

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
    /// Address to listen on; the default is serve.address of the configuration.
    #[arg(long, env = "DIPACO_ADDRESS", value_name = "ADDRESS")]
    address: Option<SocketAddr>,
    /// Use the version of each path with the lowest loss on its held-out documents, instead of the last version.
    #[arg(long)]
    early_stopping: bool,
}

pub(crate) fn run(options: &ServeOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (run, config) = options.run.open()?;
    dipaco_pipeline::route::check_tokenizer(&run)?;
    let config = vocabulary::with_vocabulary(&run, &config)?;
    let version = if options.early_stopping { Version::Best } else { Version::Current };
    let address = options.address.unwrap_or(config.serve.address);
    if !address.ip().is_loopback() && config.serve.api_keys.is_none() {
        tracing::warn!(
            "everybody who reaches {address} may use this server: give serve.api_keys, or listen on 127.0.0.1"
        );
    }
    runtime::run(async {
        let listener = listen(address).await?;
        let bound = listener.local_addr().unwrap_or(address);
        let state = open(&run, &config, config.serve.clone(), version).await?;
        progress.line(&format!("serving {} at http://{bound}", config.run.name));
        Ok(serve(listener, state, interrupt.token()).await?)
    })
}

/// Binds the server's address.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, CliError> {
    TcpListener::bind(address).await.map_err(|source| CliError::Listen { address, source })
}
