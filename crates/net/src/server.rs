//! The server's end: admission of peers, and their connections.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quinn::{Connection, Endpoint, EndpointConfig, TokioRuntime};
use quinn_proto::HashedConnectionIdGenerator;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::admission::listen;
use crate::token_share::{TokenShare, TokenShares};
use crate::traffic::Counters;
use crate::transport::{self, Accepts, code};
use crate::wire::{self, Transfer, Welcome};
use crate::{Exchange, Limits, NetError, RareWarning, ServerIdentity, Traffic, tls};

/// Verified peers that may wait for [`Server::accept`]. Further peers wait in their handshake.
const WAITING_PEERS: usize = 16;

/// Listens for the peers of a run. A drop closes all connections.
pub struct Server {
    endpoint: Endpoint,
    address: SocketAddr,
    peers: tokio::sync::Mutex<mpsc::Receiver<PeerConnection>>,
    shared: Arc<Shared>,
    listener: JoinHandle<()>,
}

pub(crate) struct Shared {
    run_id: String,
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    connections: Mutex<Connections>,
    pub(crate) places: Arc<Semaphore>,
    pub(crate) tokens: Arc<TokenShares>,
    /// Warnings about strangers.
    pub(crate) strangers: RareWarning,
}

#[derive(Default)]
struct Connections {
    live: HashMap<usize, LiveConnection>,
    ended: Traffic,
    /// Names of tokens that get no connection.
    revoked: BTreeSet<String>,
}

struct LiveConnection {
    /// Name in the peer's token.
    token: String,
    connection: Connection,
}

/// A verified peer of the run. A drop closes its connection.
pub struct PeerConnection {
    role: String,
    name: String,
    shown: Arc<str>,
    connection: Connection,
    shared: Arc<Shared>,
    share: Arc<TokenShare>,
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

        let shared = Arc::new(Shared {
            run_id: identity.run_id.clone(),
            places: Arc::new(Semaphore::new(limits.max_peers)),
            limits,
            counters: Counters::default(),
            connections: Mutex::default(),
            tokens: Arc::default(),
            strangers: RareWarning::default(),
        });
        let (waiting, peers) = mpsc::channel(WAITING_PEERS);
        let listener = tokio::spawn(listen(endpoint.clone(), Arc::clone(&shared), waiting));
        Ok(Self { endpoint, address, peers: peers.into(), shared, listener })
    }

    /// Address of the socket, with the actual port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next peer; `None` after [`Server::close`].
    pub async fn accept(&self) -> Option<PeerConnection> {
        self.peers.lock().await.recv().await
    }

    /// Bytes and operations so far, including all ended connections.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let connections = self.shared.connections();
        let mut traffic = connections.ended;
        for live in connections.live.values() {
            traffic.add_connection(&live.connection.stats());
        }
        traffic += self.shared.counters.snapshot();
        traffic
    }

    /// Refuses the tokens of these names from now on, in place of the names of an earlier call, and closes their
    /// connections with [`NetError::Revoked`].
    pub fn revoke(&self, names: BTreeSet<String>) {
        let mut connections = self.shared.connections();
        for live in connections.live.values().filter(|live| names.contains(&live.token)) {
            live.connection.close(code::REVOKED, b"the token has been revoked");
        }
        connections.revoked = names;
    }

    /// Number of live connections of verified peers.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.shared.connections().live.len()
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

impl std::fmt::Debug for PeerConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Peer").field(&self.shown).finish()
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_revoked(&self, token: &str) -> bool {
        self.connections().revoked.contains(token)
    }

    /// Registers a live connection. Its token may have been revoked since the handshake.
    pub(crate) fn register(&self, connection: Connection, token: String) {
        let mut connections = self.connections();
        if connections.revoked.contains(&token) {
            connection.close(code::REVOKED, b"the token has been revoked");
        }
        connections.live.insert(connection.stable_id(), LiveConnection { token, connection });
    }

    pub(crate) fn unregister(&self, connection: &Connection) {
        let mut connections = self.connections();
        connections.live.remove(&connection.stable_id());
        connections.ended.add_connection(&connection.stats());
    }
}

impl PeerConnection {
    pub(crate) fn new(
        role: String,
        name: String,
        connection: Connection,
        shared: Arc<Shared>,
        share: Arc<TokenShare>,
    ) -> Self {
        let shown = format!("{role} `{name}` at {}", connection.remote_address()).into();
        Self { role, name, shown, connection, shared, share }
    }

    /// Lets the peer perform this many operations at a time, in place of [`Limits::max_exchanges_per_peer`].
    pub fn allow_exchanges(&self, count: u32) {
        self.connection.set_max_concurrent_bi_streams(count.into());
    }

    /// Role in the peer's certificate, such as `worker`.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Name in the peer's certificate. Processes with the same token have the same name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Current address of the peer.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits for the peer's next operation; `None` after the end of the connection. A caller may handle several
    /// operations of a peer concurrently.
    pub async fn accept_exchange(&self) -> Option<Exchange> {
        let (send, receive) = self.connection.accept_bi().await.ok()?;
        self.shared.counters.exchange();
        let (shown, shared) = (Arc::clone(&self.shown), Arc::clone(&self.shared));
        Some(Exchange::new(shown, shared, Arc::clone(&self.share), send, receive))
    }

    /// Waits for the end of the connection and returns the reason.
    pub async fn closed(&self) -> NetError {
        wire::closed(&self.shown, self.connection.closed().await)
    }

    /// Closes the connection with a reason for the peer.
    pub fn close(&self, reason: &str) {
        self.connection.close(code::DONE, reason.as_bytes());
    }

    /// Closes the connection because the peer's token has been revoked.
    pub fn close_revoked(&self) {
        self.connection.close(code::REVOKED, b"the token has been revoked");
    }

    pub(crate) async fn welcome(&self) -> Result<(), NetError> {
        let limits = &self.shared.limits;
        let transfer = Transfer { peer: &self.shown, part: "welcome", stall: limits.header_timeout };
        let welcome = Welcome { run_id: self.shared.run_id.clone() };
        let frame = transfer.frame(&welcome, &(), limits.max_header_bytes)?;
        let mut stream =
            self.connection.open_uni().await.map_err(|source| wire::closed(&self.shown, source))?;
        transfer.write(&mut stream, &frame).await
    }
}

impl std::fmt::Display for PeerConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        self.connection.close(code::DONE, b"the coordinator needs this connection no more");
    }
}
