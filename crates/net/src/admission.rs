//! Admission of peers: handshakes with strangers, and the checks before a verified peer gets a place.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use quinn::{Connection, Endpoint, Incoming, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::timeout;

use crate::fair_places::FairPlaces;
use crate::live_connections::network;
use crate::peer_connection::{PeerConnection, Refusal, Shared};
use crate::tls;
use crate::transport::code;

/// Handshakes in progress from which on every address must first prove that it receives datagrams (QUIC Retry). The
/// proof costs an honest peer one round trip.
const RETRY_FROM: usize = 4;

/// The handshakes in progress.
///
/// They are bounded, because a stranger costs memory and signatures. When all are taken, the oldest handshake of the
/// address with the most handshakes gives way. So a flood from one address ends only its own handshakes, and an honest
/// peer gets as much time as the flood leaves between two turns.
#[derive(Debug)]
struct Handshakes {
    most: usize,
    open: FairPlaces<IpAddr, AbortHandle>,
    /// Number of the next handshake.
    next: u64,
    tasks: JoinSet<()>,
    places: HashMap<Id, (IpAddr, u64)>,
}

impl Handshakes {
    fn new(most: usize) -> Self {
        Self { most, open: FairPlaces::default(), next: 0, tasks: JoinSet::new(), places: HashMap::new() }
    }

    fn begin(&mut self, from: SocketAddr, handshake: impl Future<Output = ()> + Send + 'static) {
        if self.open.taken() >= self.most
            && let Some(handshake) = self.open.end_oldest_of_largest()
        {
            handshake.abort();
        }
        let (network, number) = (network(from.ip()), self.next);
        self.next += 1;
        let abort = self.tasks.spawn(handshake);
        self.places.insert(abort.id(), (network, number));
        self.open.take(network, number, abort);
    }

    /// Waits until a handshake ends, and forgets it. Waits for ever while there is none.
    async fn ended(&mut self) {
        let task = match self.tasks.join_next_with_id().await {
            Some(Ok((task, ()))) => task,
            Some(Err(error)) => error.id(),
            None => return std::future::pending().await,
        };
        if let Some((network, number)) = self.places.remove(&task) {
            self.open.leave(&network, number);
        }
    }
}

/// Accepts handshakes until the endpoint is closed.
pub(crate) async fn listen(endpoint: Endpoint, shared: Arc<Shared>, waiting: mpsc::Sender<PeerConnection>) {
    let mut handshakes = Handshakes::new(shared.limits.max_handshakes);
    loop {
        let incoming = tokio::select! {
            incoming = endpoint.accept() => incoming,
            () = handshakes.ended() => continue,
        };
        let Some(incoming) = incoming else { return };
        // A forged source address costs its sender nothing, but a handshake here costs signatures and memory.
        let crowded = handshakes.open.taken() >= RETRY_FROM.min(shared.limits.max_handshakes);
        if crowded && incoming.may_retry() && !incoming.remote_address_validated() {
            if let Err(error) = incoming.retry() {
                tracing::debug!(%error, "can't ask an address for a QUIC retry");
            }
            continue;
        }
        let from = incoming.remote_address();
        handshakes.begin(from, handshake(incoming, shared.clone(), waiting.clone()));
    }
}

/// Completes a handshake. A verified peer is admitted in a task of its own: it is not a stranger any more.
async fn handshake(incoming: Incoming, shared: Arc<Shared>, waiting: mpsc::Sender<PeerConnection>) {
    let (address, limit) = (incoming.remote_address(), shared.limits.connect_timeout);
    let connected = timeout(limit, async { incoming.accept()?.await }).await;
    let reason = match connected {
        Ok(Ok(connection)) => {
            tokio::spawn(admit(connection, shared, waiting));
            return;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the handshake took too long".to_owned(),
    };
    turned_away(&shared, address, &reason);
}

fn turned_away(shared: &Shared, address: SocketAddr, reason: &str) {
    if let Some(suppressed) = shared.strangers.due(Instant::now()) {
        tracing::warn!(%address, reason, suppressed, "a peer was not admitted");
    }
}

/// Gives a verified peer a place, welcomes it, and hands its connection to [`Server::accept`](crate::Server::accept).
async fn admit(connection: Connection, shared: Arc<Shared>, waiting: mpsc::Sender<PeerConnection>) {
    let address = connection.remote_address();
    let identity = connection.peer_identity().and_then(|identity| {
        let certificates = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        tls::role_and_name(certificates.first()?)
    });
    let Some((role, name)) = identity else {
        connection.close(code::UNNAMED, b"the certificate names no role");
        return turned_away(&shared, address, "its certificate names no role");
    };
    let token = format!("{name}.{role}");
    // The place is taken last: a peer that is turned away cannot occupy one.
    let (place, gave_way) = match shared.admit(&connection, &name, token.clone(), network(address.ip())) {
        Ok(admitted) => admitted,
        Err(Refusal::Revoked) => {
            connection.close(code::REVOKED, b"the token has been revoked");
            return turned_away(&shared, address, "its token has been revoked");
        }
        Err(Refusal::NoPlace) => {
            connection.close(code::BUSY, b"too many peers");
            return turned_away(&shared, address, "there are too many peers, or its token has too many");
        }
    };
    if let Some(gave_way) = gave_way
        && let Some(suppressed) = shared.strangers.due(Instant::now())
    {
        let address = gave_way.remote_address();
        tracing::warn!(%address, suppressed, "a peer gave its place to a token or an address with far fewer");
    }
    let share = shared.tokens.join(token, &shared.limits);
    if let Ok(window) = VarInt::from_u64(share.window()) {
        connection.set_receive_window(window);
    }
    let budget = share.share().clone();
    // Before the welcome: the place must become free again however the connection ends.
    let (ended, at) = (connection.clone(), shared.clone());
    tokio::spawn(async move {
        ended.closed().await;
        at.leave(&place);
        drop(share);
    });
    let peer = PeerConnection::new(role, name, connection, shared.clone(), budget);
    if let Err(error) = peer.welcome().await {
        return turned_away(&shared, address, &error.to_string());
    }
    // An error means that the server was dropped. The drop of the peer closes its connection.
    waiting.send(peer).await.ok();
}
