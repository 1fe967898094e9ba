//! The ports of a training, and the tokens that name its address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use dipaco_config::RunConfig;
use dipaco_monitor::{Monitor, TensorBoard, follow};
use dipaco_net::{Clock, Limits, RunAuthority, Server};
use dipaco_telemetry::Events;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::TrainOptions;
use crate::advertised::{reached_from_here, with_bound_port};
use crate::authority::{TOKEN_LIFETIME, authority, renew_tokens, write_tokens};
use crate::error::PipelineError;
use crate::limits::raise_open_files;
use crate::run_directory::RunDirectory;
use crate::watch::watch;

/// A training with open ports and an event file. It serves no worker yet.
pub(super) struct Listening {
    pub(super) authority: Arc<RunAuthority>,
    pub(super) server: Server,
    pub(super) events: Events,
    pub(super) monitor: Arc<Monitor>,
    /// Triggered when nobody reads the event file any more.
    pub(super) watching: CancellationToken,
    /// Triggers `watching` at the end of the training, however it ends.
    pub(super) watched: DropGuard,
}

impl Listening {
    /// Opens everything that another program may have, or that may be refused. `id` is the identity of the run in its manifest.
    ///
    /// # Errors
    /// When a port is taken, the key of the run's authority can't be read or made, or the event file can't be written.
    pub(super) async fn open(
        run: &RunDirectory,
        id: &str,
        config: &RunConfig,
        options: &TrainOptions,
    ) -> Result<Self, PipelineError> {
        raise_open_files();
        let authority = Arc::new(authority(run, id, SystemTime::now())?);
        let server = bind(run, &authority, config.train.max_workers, options.listen)?;
        let events = Events::create(&run.events())?;
        let (monitor, watching) = (Monitor::new(&run.events()), CancellationToken::new());
        let watched = watching.clone().drop_guard();
        if let Some(address) = options.http {
            watch(address, "training", monitor.clone(), watching.clone()).await?;
        }
        Ok(Self { authority, server, events, monitor, watching, watched })
    }

    /// Writes files for TensorBoard until `watching` is triggered; `None` if the options name no folder for them.
    pub(super) fn board(&self, run: &RunDirectory, options: &TrainOptions) -> Option<JoinHandle<()>> {
        let folder = options.tensorboard.as_deref()?;
        Some(tokio::spawn(follow(TensorBoard::new(&run.events(), folder), self.watching.clone())))
    }

    /// Writes the tokens of workers and synchronizers, with the coordinator's addresses.
    ///
    /// # Errors
    /// [`PipelineError::File`] when a token can't be written.
    pub(super) fn announce(&self, run: &RunDirectory, options: &TrainOptions) -> Result<(), PipelineError> {
        let address = self.server.local_addr();
        let addresses = addresses(address, &options.advertise, options.workers > 0);
        write_tokens(run, &self.authority, &addresses, SystemTime::now())?;
        let token = run.join_token();
        tracing::info!(%address, token = %token.display(), "listening for workers");
        Ok(())
    }
}

/// Binds the coordinator's socket.
fn bind(
    run: &RunDirectory,
    authority: &Arc<RunAuthority>,
    max_workers: usize,
    listen: SocketAddr,
) -> Result<Server, PipelineError> {
    let now = SystemTime::now();
    let (directory, source) = (run.clone(), authority.clone());
    let identity = authority.server(now, TOKEN_LIFETIME)?.renewed_by(Clock::system(), move |now| {
        // The tokens in the run's folder are as old as the server's certificate.
        if let Err(error) = renew_tokens(&directory, &source, now) {
            tracing::warn!(%error, "the join tokens in the run's folder can't be renewed");
        }
        source.server(now, TOKEN_LIFETIME)
    });
    Ok(Server::bind(listen, &identity, Limits::for_peers(max_workers))?)
}

/// The addresses of a coordinator with the socket `bound`, in the order in which a worker tries them. Without advertised ones,
/// or with `local` workers, the address of this machine is among them. It is the last, because a worker elsewhere waits in vain for
/// an answer of its own loopback, but the first of a socket on the loopback.
fn addresses(bound: SocketAddr, advertise: &[String], local: bool) -> Vec<String> {
    let mut addresses: Vec<_> =
        advertise.iter().map(|advertised| with_bound_port(advertised, bound.port())).collect();
    if addresses.is_empty() || local {
        let here = reached_from_here(bound).to_string();
        if !addresses.contains(&here) {
            // A socket of the loopback answers nowhere else on this machine.
            let place = if bound.ip().is_loopback() { 0 } else { addresses.len() };
            addresses.insert(place, here);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_has_an_address_that_its_workers_can_reach() {
        let bound = SocketAddr::from(([0, 0, 0, 0], 7440));
        let advertised = |addresses: &[&str]| -> Vec<String> {
            addresses.iter().map(|&address| address.to_owned()).collect()
        };
        let (none, two) = (advertised(&[]), advertised(&["lead:0", "10.0.0.1:80"]));
        let here = advertised(&["127.0.0.1:0"]);
        for (advertise, local, expected) in [
            (&none, false, vec!["127.0.0.1:7440"]),
            (&none, true, vec!["127.0.0.1:7440"]),
            (&two, false, vec!["lead:7440", "10.0.0.1:80"]),
            (&two, true, vec!["lead:7440", "10.0.0.1:80", "127.0.0.1:7440"]),
            (&here, true, vec!["127.0.0.1:7440"]),
        ] {
            assert_eq!(addresses(bound, advertise, local), expected);
        }
        // Nobody else reaches the loopback, so a local worker tries it first.
        let bound = SocketAddr::from(([127, 0, 0, 1], 7440));
        assert_eq!(addresses(bound, &two, true), ["127.0.0.1:7440", "lead:7440", "10.0.0.1:80"]);
    }
}
