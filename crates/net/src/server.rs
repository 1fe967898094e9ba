//! The server's end.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use quinn_proto::HashedConnectionIdGenerator;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::admission::listen;
use crate::peer_connection::{PeerConnection, Shared};
use crate::transport::{self, Accepts, code};
use crate::{Limits, NetError, ServerIdentity, Traffic, tls};

/// Verified peers that may wait for [`Server::accept`]. Further peers wait in their handshake.
const WAITING_PEERS: usize = 16;

/// Listens for the peers of a run. A drop closes all connections.
pub struct Server {
    endpoint: Endpoint,
    address: SocketAddr,
    peers: tokio::sync::Mutex<mpsc::Receiver<PeerConnection>>,
    shared: Arc<Shared>,
    renew_at: SystemTime,
    listener: JoinHandle<()>,
}

/// Reads the counters of a server.
#[derive(Clone)]
pub struct TrafficSource {
    shared: Weak<Shared>,
}

impl TrafficSource {
    /// Bytes and operations so far; zeros when the server is gone.
    #[must_use]
    pub fn read(&self) -> Traffic {
        self.shared.upgrade().map(|shared| shared.traffic()).unwrap_or_default()
    }
}

impl Server {
    /// Listens on the UDP address (port 0 for any free port). Call it inside a tokio runtime.
    ///
    /// # Errors
    /// [`NetError::Bind`] if the port is in use, [`NetError::Setting`] for invalid limits.
    pub fn bind(address: SocketAddr, identity: &ServerIdentity, limits: Limits) -> Result<Self, NetError> {
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(tls::server_config(identity)?));
        config.transport_config(transport::transport(&limits, Accepts::Exchanges)?);
        config.max_incoming(limits.max_handshakes);

        let reset_key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &identity.reset_secret);
        let mut endpoint_config = EndpointConfig::new(Arc::new(reset_key));
        let [a, b, c, d, e, f, g, h, ..] =
            blake3::derive_key("dipaco net connection ids", &identity.reset_secret);
        let id_key = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        endpoint_config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(id_key)));
        transport::set_datagram_size(&mut endpoint_config)?;

        let failed = |source| NetError::Bind { address, source };
        let socket = transport::socket(address).map_err(failed)?;
        let endpoint =
            Endpoint::new(endpoint_config, Some(config), socket, Arc::new(TokioRuntime)).map_err(failed)?;
        let address = endpoint.local_addr().map_err(failed)?;

        let shared = Arc::new(Shared::new(identity.run_id.clone(), limits));
        let (waiting, peers) = mpsc::channel(WAITING_PEERS);
        let listener = tokio::spawn(listen(endpoint.clone(), Arc::clone(&shared), waiting));
        let renew_at = identity.renew_at;
        Ok(Self { endpoint, address, peers: peers.into(), shared, renew_at, listener })
    }

    /// Address of the socket, with the actual port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The time from which on the server wants a certificate after that of its first identity.
    #[must_use]
    pub fn renew_at(&self) -> SystemTime {
        self.renew_at
    }

    /// Waits for the next peer; `None` after [`Server::close`].
    pub async fn accept(&self) -> Option<PeerConnection> {
        self.peers.lock().await.recv().await
    }

    /// Bytes and operations so far, including all ended connections.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.shared.traffic()
    }

    /// Reads the same counters for as long as the server lives, and does not keep it alive.
    #[must_use]
    pub fn traffic_source(&self) -> TrafficSource {
        TrafficSource { shared: Arc::downgrade(&self.shared) }
    }

    /// Refuses the tokens of these names from now on, in place of the names of an earlier call, and closes their
    /// connections with [`NetError::Revoked`].
    pub fn revoke(&self, names: BTreeSet<String>) {
        self.shared.revoke(names);
    }

    /// Number of live connections of verified peers.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.shared.live()
    }

    /// Closes all connections with a reason for the peers, and waits at most [`Limits::connect_timeout`] for their
    /// acknowledgements.
    pub async fn close(&self, reason: &str) {
        self.endpoint.close(code::DONE, reason.as_bytes());
        // A dead peer never acknowledges, so wait only as long as a live peer needs.
        if timeout(self.shared.limits.connect_timeout, self.endpoint.wait_idle()).await.is_err() {
            tracing::debug!("closed without the acknowledgement of all peers");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listener.abort();
        self.endpoint.close(code::DONE, b"the coordinator ended");
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}
