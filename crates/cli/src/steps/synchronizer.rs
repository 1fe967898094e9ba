//! Taking the outer steps of some modules of a run in a process of its own.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use dipaco_net::{JoinToken, Limits, Server};
use dipaco_protocol::SYNCHRONIZER;
use dipaco_topology::ModuleId;
use dipaco_train::{Revocations, SynchronizerOptions, SynchronizerSummary};
use tokio_util::sync::CancellationToken;

use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;
use crate::steps::train::{TOKEN_LIFETIME, authority, open_store, raise_open_files};

/// How a synchronizer is set up.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) modules: Vec<ModuleId>,
    /// The UDP address that it listens on.
    pub(crate) listen: SocketAddr,
    /// `host:port` by which workers reach it; the listening address without it.
    pub(crate) advertise: Option<String>,
    pub(crate) name: String,
    /// How long to try when the coordinator can't be reached.
    pub(crate) patience: Duration,
}

/// Takes outer steps until the run is complete or `cancel` is triggered.
pub(crate) async fn synchronize(
    run: &RunDirectory,
    options: Options,
    cancel: CancellationToken,
) -> Result<SynchronizerSummary, StepError> {
    let Options { modules, listen, advertise, name, patience } = options;
    let file = run.join_token();
    if !file.exists() {
        return Err(StepError::NoCoordinator { file });
    }
    // It says where the coordinator is; what a synchronizer may do needs a certificate of its own.
    let joining = JoinToken::read_from(&file.to_string_lossy())?;
    raise_open_files();
    let now = SystemTime::now();
    let authority = authority(run, &joining.run_id, now)?;
    let server = Server::bind(listen, &authority.server(now, TOKEN_LIFETIME)?, Limits::default())?;
    let token = authority.issue(SYNCHRONIZER, SYNCHRONIZER, joining.addresses, now, TOKEN_LIFETIME)?;
    let address = advertise.unwrap_or_else(|| server.local_addr().to_string());
    if listen.ip().is_unspecified() && address == server.local_addr().to_string() {
        tracing::warn!(
            "workers on other machines can't join by {address}: say with --advertise how they reach this one"
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
