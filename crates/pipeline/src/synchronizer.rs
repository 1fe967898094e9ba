//! A synchronizer: a process that takes the outer steps of some modules of a run.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use dipaco_net::{JoinToken, Limits, Server};
use dipaco_protocol::SYNCHRONIZER;
use dipaco_topology::ModuleId;
use dipaco_train::{Revocations, SynchronizerOptions, SynchronizerSummary};
use tokio_util::sync::CancellationToken;

use crate::authority::{TOKEN_LIFETIME, authority};
use crate::error::PipelineError;
use crate::limits::raise_open_files;
use crate::run_directory::RunDirectory;
use crate::store::open_store;

/// Settings of a synchronizer.
#[derive(Clone, Debug)]
pub struct Options {
    /// Modules whose outer steps it takes.
    pub modules: Vec<ModuleId>,
    /// UDP address that it listens on.
    pub listen: SocketAddr,
    /// `host:port` by which workers reach it; the listening address when absent.
    pub advertise: Option<String>,
    /// Name in logs, unique in the run.
    pub name: String,
    /// How long to retry when the coordinator can't be reached.
    pub patience: Duration,
}

/// Takes outer steps until the run is complete or `cancel` is triggered.
///
/// # Errors
/// [`PipelineError::NoCoordinator`] before the coordinator has started, [`PipelineError::Train`] when the coordinator
/// refuses or stays out of reach, and the errors of store and network.
pub async fn synchronize(
    run: &RunDirectory,
    options: Options,
    cancel: CancellationToken,
) -> Result<SynchronizerSummary, PipelineError> {
    let Options { modules, listen, advertise, name, patience } = options;
    let file = run.join_token();
    if !file.exists() {
        return Err(PipelineError::NoCoordinator { file });
    }
    // The token gives the coordinator's address. A worker's certificate does not permit outer steps, so the
    // synchronizer issues its own.
    let joining = JoinToken::read_from(&file.to_string_lossy())?;
    raise_open_files();
    let now = SystemTime::now();
    let authority = authority(run, &joining.run_id, now)?;
    let server = Server::bind(listen, &authority.server(now, TOKEN_LIFETIME)?, Limits::default())?;
    let token = authority.issue(SYNCHRONIZER, SYNCHRONIZER, joining.addresses, now, TOKEN_LIFETIME)?;
    let address = advertise.unwrap_or_else(|| server.local_addr().to_string());
    if listen.ip().is_unspecified() && address == server.local_addr().to_string() {
        tracing::warn!(
            "workers on other machines can't join by {address}: give the address of this machine with --advertise"
        );
    }
    tracing::info!(%address, modules = modules.len(), "listening for workers");
    let options = SynchronizerOptions {
        token,
        name,
        modules,
        address,
        store: open_store(run)?,
        collect: run.routing(0).root().to_owned(),
        revocations: Revocations::of(&run.revoked()),
        patience,
    };
    Ok(dipaco_train::synchronize(options, server, cancel).await?)
}
