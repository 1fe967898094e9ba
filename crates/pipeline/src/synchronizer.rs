//! A synchronizer: a process that takes the outer steps of some modules of a run.

use std::net::SocketAddr;
use std::sync::PoisonError;
use std::time::Duration;

use dipaco_monitor::SynchronizerMonitor;
use dipaco_net::{Clock, HelperToken, Limits, NetError, Server};
use dipaco_topology::ModuleId;
use dipaco_train::client::{NextIdentity, TokenPlace, TokenSource, is_loopback};
use dipaco_train::{SynchronizerOptions, SynchronizerSummary};
use tokio_util::sync::CancellationToken;

use crate::advertised::{reached_from_here, with_bound_port};
use crate::error::PipelineError;
use crate::limits::raise_open_files;
use crate::run_directory::RunDirectory;
use crate::store::{manifest, open_store_of_long_work};
use crate::watch::watch;

/// Settings of a synchronizer.
#[derive(Clone, Debug)]
pub struct Options {
    /// Place of the synchronizer's token; the run's file `secrets/synchronizer.token` when absent.
    pub join: Option<TokenPlace>,
    /// Peers that it serves at a time with one token.
    pub max_workers: usize,
    /// Modules whose outer steps it takes.
    pub modules: Vec<ModuleId>,
    /// UDP address that it listens on.
    pub listen: SocketAddr,
    /// `host:port` by which workers reach it; the listening address when absent. Port 0 stands for the port that it
    /// listens on.
    pub advertise: Option<String>,
    /// Name in logs, unique in the run.
    pub name: String,
    /// True if workers may get links to the store (`run.links`).
    pub links: bool,
    /// How long to retry when the coordinator can't be reached.
    pub patience: Duration,
    /// TCP address at which the synchronizer can be watched over HTTP; nowhere when absent.
    pub http: Option<SocketAddr>,
}

/// Takes outer steps until the run is complete or `cancel` is triggered.
///
/// # Errors
/// [`PipelineError::NoCoordinator`] before the coordinator has started, [`PipelineError::OtherStore`] when the store is not
/// that of the token's run, [`PipelineError::Train`] when the coordinator refuses or stays out of reach, and the errors of
/// store and network.
pub async fn synchronize(
    run: &RunDirectory,
    options: Options,
    cancel: CancellationToken,
) -> Result<SynchronizerSummary, PipelineError> {
    let Options { join, max_workers, modules, listen, advertise, name, links, patience, http } = options;
    let place = join.unwrap_or_else(|| TokenPlace::File(run.synchronizer_token()));
    if let TokenPlace::File(file) = &place
        && !file.exists()
    {
        return Err(PipelineError::NoCoordinator { file: file.clone() });
    }
    let reading = place.clone();
    let HelperToken { join: token, server: identity } =
        tokio::task::spawn_blocking(move || reading.helper_token())
            .await
            .map_err(|source| PipelineError::Task { source })??;
    // Before anything is created: a machine without the run's configuration would make a store of its own.
    if manifest(run).await?.is_none_or(|held| held.run != token.run_id) {
        return Err(PipelineError::OtherStore { store: run.store(), run: token.run_id });
    }
    let stop = cancel.clone();
    let store = open_store_of_long_work(run, move || stop.is_cancelled()).await?;
    std::fs::create_dir_all(run.root()).map_err(|source| PipelineError::Io {
        action: "create",
        path: run.root().to_owned(),
        source,
    })?;
    raise_open_files();
    let (monitor, watching) = (SynchronizerMonitor::new(), CancellationToken::new());
    // Ends with this function, however it ends.
    let _watched = watching.clone().drop_guard();
    if let Some(address) = http {
        watch(address, "synchronizer", monitor.clone(), watching).await?;
    }
    // The session with the coordinator brings the next identity.
    let next_identity = NextIdentity::default();
    let source = next_identity.clone();
    let identity = identity.renewed_by(Clock::system(), move |_| {
        let next = source.lock().unwrap_or_else(PoisonError::into_inner).take();
        next.ok_or(NetError::Identity {
            what: "renew the synchronizer's certificate",
            reason: "the coordinator has not sent a new one yet".to_owned(),
        })
    });
    let server = Server::bind(listen, &identity, Limits::for_peers(max_workers))?;
    let bound = server.local_addr();
    let from_here = reached_from_here(bound).to_string();
    let address =
        advertise.map_or_else(|| from_here.clone(), |address| with_bound_port(&address, bound.port()));
    let here = |address: &String| address.rsplit_once(':').is_some_and(|(host, _)| is_loopback(host));
    let elsewhere = !token.addresses.iter().all(here);
    if address == from_here && (listen.ip().is_unspecified() || listen.ip().is_loopback() && elsewhere) {
        tracing::warn!(
            "workers on other machines can't join by {address}: listen on an address of this machine with --listen, and name \
             it with --advertise"
        );
    }
    tracing::info!(%address, modules = modules.len(), "listening for workers");
    let options = SynchronizerOptions {
        token,
        source: TokenSource::Helper(place),
        name,
        modules,
        address,
        store,
        links,
        collect: run.root().to_owned(),
        patience,
        next_identity,
        observe: Some(Box::new(move |live| monitor.watch(live))),
    };
    Ok(dipaco_train::synchronize(options, server, cancel).await?)
}
