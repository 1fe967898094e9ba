//! The connection of a verified peer, and the state that all connections of a server share.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quinn::Connection;

use crate::live_connections::{LiveConnections, NoPlace, Place};
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
    pub(crate) tokens: Arc<TokenShares>,
    /// Warnings about peers that get no place, or lose theirs.
    pub(crate) strangers: RareWarning,
}

#[derive(Default)]
struct Connections {
    live: LiveConnections<LiveConnection>,
    ended: Traffic,
    /// Names of tokens that get no connection.
    revoked: BTreeSet<String>,
}

struct LiveConnection {
    /// Name in the peer's token.
    name: String,
    connection: Connection,
}

/// The reason why a verified peer gets no place.
#[derive(Debug)]
pub(crate) enum Refusal {
    Revoked,
    NoPlace,
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
        for live in connections.live.iter() {
            traffic.add_connection(&live.connection.stats());
        }
        traffic += self.counters.snapshot();
        traffic
    }

    /// Replaces the names of revoked tokens, and closes their connections.
    pub(crate) fn revoke(&self, names: BTreeSet<String>) {
        let mut connections = self.connections();
        for live in connections.live.iter().filter(|live| names.contains(&live.name)) {
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

    /// Gives a connection a place. `token` has the name and the role. Returns the place, and the connection that gave
    /// way, which is closed.
    pub(crate) fn admit(
        &self,
        connection: &Connection,
        name: &str,
        token: String,
        network: IpAddr,
    ) -> Result<(Place, Option<Connection>), Refusal> {
        let mut connections = self.connections();
        if connections.revoked.contains(name) {
            return Err(Refusal::Revoked);
        }
        let gave_way = connections
            .live
            .make_room(&token, network, &self.limits)
            .map_err(|NoPlace| Refusal::NoPlace)?
            .map(|LiveConnection { connection, .. }| connection);
        if let Some(connection) = &gave_way {
            connection.close(code::BUSY, b"all places are taken, and most of them by this token or address");
            connections.ended.add_connection(&connection.stats());
        }
        let live = LiveConnection { name: name.to_owned(), connection: connection.clone() };
        Ok((connections.live.take(token, network, live), gave_way))
    }

    /// Frees the place of a connection that has ended.
    pub(crate) fn leave(&self, place: &Place) {
        let mut connections = self.connections();
        if let Some(LiveConnection { connection, .. }) = connections.live.leave(place) {
            connections.ended.add_connection(&connection.stats());
        }
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
    ///
    /// The reason may not arrive: while something waits for room in the congestion window, quinn-proto up to 0.11.19
    /// sends no close (<https://github.com/quinn-rs/quinn/issues/2785>). The peer's next packet is then answered with
    /// a reset, so that its operations end with [`NetError::Lost`].
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
