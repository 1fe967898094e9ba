//! The connection of a verified peer, and the state that all connections of a server share.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quinn::Connection;
use tokio::sync::Semaphore;

use crate::token_share::{TokenShare, TokenShares};
use crate::traffic::Counters;
use crate::transport::code;
use crate::wire::{self, Transfer, Welcome};
use crate::{Exchange, Limits, NetError, RareWarning, Traffic};

/// Time in which a live peer answers a keep-alive packet, and in which the last packets of a dead one arrive.
const ANSWER: Duration = Duration::from_secs(1);

/// State that all connections of a server share.
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

impl std::fmt::Debug for PeerConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Peer").field(&self.shown).finish()
    }
}

impl Shared {
    pub(crate) fn new(run_id: String, limits: Limits) -> Self {
        Self {
            run_id,
            places: Arc::new(Semaphore::new(limits.max_peers)),
            limits,
            counters: Counters::default(),
            connections: Mutex::default(),
            tokens: Arc::default(),
            strangers: RareWarning::default(),
        }
    }

    /// Bytes and operations so far, including all ended connections.
    pub(crate) fn traffic(&self) -> Traffic {
        let connections = self.connections();
        let mut traffic = connections.ended;
        for live in connections.live.values() {
            traffic.add_connection(&live.connection.stats());
        }
        traffic += self.counters.snapshot();
        traffic
    }

    /// Replaces the names of revoked tokens, and closes their connections.
    pub(crate) fn revoke(&self, names: BTreeSet<String>) {
        let mut connections = self.connections();
        for live in connections.live.values().filter(|live| names.contains(&live.token)) {
            live.connection.close(code::REVOKED, b"the token has been revoked");
        }
        connections.revoked = names;
    }

    /// Number of live connections.
    pub(crate) fn live(&self) -> usize {
        self.connections().live.len()
    }

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

    /// True if nothing comes from the peer for longer than a live one is silent: a little more than
    /// [`Limits::keep_alive`], after which it answers a packet of this end.
    pub async fn is_silent(&self) -> bool {
        let received = || self.connection.stats().udp_rx.datagrams;
        // A peer that has just died may have packets on the way.
        tokio::time::sleep(ANSWER).await;
        let before = received();
        tokio::time::sleep(self.shared.limits.keep_alive.saturating_add(ANSWER)).await;
        received() == before
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
