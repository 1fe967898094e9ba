//! The server's end: admission of peers, and their connections.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quinn::{Connection, Endpoint, EndpointConfig, Incoming, TokioRuntime};
use quinn_proto::HashedConnectionIdGenerator;
use rustls::pki_types::CertificateDer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::traffic::Counters;
use crate::transport::{self, Accepts, code};
use crate::wire::{self, Transfer, Welcome};
use crate::{Exchange, Limits, NetError, ServerIdentity, Traffic, tls};

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
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct Connections {
    live: HashMap<usize, Connection>,
    ended: Traffic,
}

/// A verified peer of the run. A drop closes its connection.
pub struct PeerConnection {
    role: String,
    name: String,
    shown: Arc<str>,
    connection: Connection,
    shared: Arc<Shared>,
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
        for connection in connections.live.values() {
            traffic.add_connection(&connection.stats());
        }
        traffic += self.shared.counters.snapshot();
        traffic
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
}

/// Accepts handshakes. It bounds their number, because unverified peers cost memory and signatures.
async fn listen(endpoint: Endpoint, shared: Arc<Shared>, waiting: mpsc::Sender<PeerConnection>) {
    let handshakes = Arc::new(Semaphore::new(shared.limits.max_handshakes));
    while let Some(incoming) = endpoint.accept().await {
        // A forged source address costs its sender nothing, but a handshake here costs signatures and memory. At half
        // of the limit every address must prove that it receives datagrams (QUIC Retry) before a handshake starts.
        let crowded = handshakes.available_permits() <= shared.limits.max_handshakes / 2;
        if crowded && incoming.may_retry() && !incoming.remote_address_validated() {
            if let Err(error) = incoming.retry() {
                tracing::debug!(%error, "can't ask an address for a QUIC retry");
            }
            continue;
        }
        let Ok(permit) = Arc::clone(&handshakes).try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        // Each handshake has its own task: a silent peer must not delay the handshakes after it.
        let (shared, waiting) = (Arc::clone(&shared), waiting.clone());
        tokio::spawn(async move {
            let address = incoming.remote_address();
            let limit = shared.limits.connect_timeout;
            match timeout(limit, admit(incoming, shared, waiting)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%address, %error, "a peer was not admitted"),
                Err(_) => tracing::warn!(%address, "the handshake of a peer took too long"),
            }
            drop(permit);
        });
    }
}

/// Completes the handshake of a peer, and hands its connection to [`Server::accept`].
async fn admit(
    incoming: Incoming,
    shared: Arc<Shared>,
    waiting: mpsc::Sender<PeerConnection>,
) -> Result<(), quinn::ConnectionError> {
    let connection = incoming.accept()?.await?;
    // The place is taken after the handshake, so a peer without a certificate of the run cannot occupy one.
    let Ok(place) = Arc::clone(&shared.places).try_acquire_owned() else {
        connection.close(code::BUSY, b"too many peers");
        return Ok(());
    };
    let identity = connection.peer_identity().and_then(|identity| {
        let certificates = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        tls::role_and_name(certificates.first()?)
    });
    let Some((role, name)) = identity else {
        connection.close(code::UNNAMED, b"the certificate names no role");
        return Ok(());
    };
    let address = connection.remote_address();
    // Before the welcome: the place must become free again however the connection ends.
    watch(connection.clone(), Arc::clone(&shared), place);
    let shown: Arc<str> = format!("{role} `{name}` at {address}").into();
    let peer = PeerConnection { role, name, shown, connection, shared };
    if let Err(error) = peer.welcome().await {
        tracing::warn!(%error, "a peer left before its welcome");
        return Ok(());
    }
    // An error means that the server was dropped. The drop of the peer closes its connection.
    waiting.send(peer).await.ok();
    Ok(())
}

/// Registers a live connection, and unregisters it at its end.
fn watch(connection: Connection, shared: Arc<Shared>, place: OwnedSemaphorePermit) {
    let id = connection.stable_id();
    shared.connections().live.insert(id, connection.clone());
    tokio::spawn(async move {
        connection.closed().await;
        let mut connections = shared.connections();
        connections.live.remove(&id);
        connections.ended.add_connection(&connection.stats());
        drop(place);
    });
}

impl PeerConnection {
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
        Some(Exchange::new(Arc::clone(&self.shown), Arc::clone(&self.shared), send, receive))
    }

    /// Waits for the end of the connection and returns the reason.
    pub async fn closed(&self) -> NetError {
        wire::closed(&self.shown, self.connection.closed().await)
    }

    /// Closes the connection with a reason for the peer.
    pub fn close(&self, reason: &str) {
        self.connection.close(code::DONE, reason.as_bytes());
    }

    async fn welcome(&self) -> Result<(), NetError> {
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
