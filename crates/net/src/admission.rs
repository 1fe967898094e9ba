//! Admission of peers: handshakes with strangers, and the checks before a verified peer gets a place.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use quinn::{Connection, Endpoint, Incoming, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::timeout;

use crate::peer_connection::{PeerConnection, Shared};
use crate::tls;
use crate::token_share::ShareOfConnection;
use crate::transport::code;

/// Handshakes in progress from which on every address must first prove that it receives datagrams (QUIC Retry). The
/// proof costs an honest peer one round trip.
const RETRY_FROM: usize = 4;

/// The handshakes in progress, oldest first.
///
/// They are bounded, because a stranger costs memory and signatures. When all are taken, the oldest handshake of the
/// address with the most handshakes gives way. So a flood from one address ends only its own handshakes, and an honest
/// peer gets as much time as the flood leaves between two turns.
#[derive(Debug)]
struct Handshakes {
    most: usize,
    open: VecDeque<Handshake>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Handshake {
    task: Id,
    from: IpAddr,
    abort: AbortHandle,
}

impl Handshakes {
    fn new(most: usize) -> Self {
        Self { most, open: VecDeque::new(), tasks: JoinSet::new() }
    }

    fn begin(&mut self, from: SocketAddr, handshake: impl Future<Output = ()> + Send + 'static) {
        if self.open.len() >= self.most
            && let Some(victim) = victim(self.open.iter().map(|handshake| handshake.from))
            && let Some(handshake) = self.open.remove(victim)
        {
            handshake.abort.abort();
        }
        let abort = self.tasks.spawn(handshake);
        self.open.push_back(Handshake { task: abort.id(), from: network(from.ip()), abort });
    }

    /// Waits until a handshake ends, and forgets it. Waits for ever while there is none.
    async fn ended(&mut self) {
        let task = match self.tasks.join_next_with_id().await {
            Some(Ok((task, ()))) => task,
            Some(Err(error)) => error.id(),
            None => return std::future::pending().await,
        };
        self.open.retain(|handshake| handshake.task != task);
    }
}

/// Index of the oldest handshake of the address with the most handshakes.
fn victim(from: impl Iterator<Item = IpAddr>) -> Option<usize> {
    let mut by_address = BTreeMap::<IpAddr, (usize, usize)>::new();
    for (index, address) in from.enumerate() {
        by_address.entry(address).or_insert((0, index)).0 += 1;
    }
    let most = by_address.into_values().max_by_key(|&(count, oldest)| (count, std::cmp::Reverse(oldest)));
    most.map(|(_, oldest)| oldest)
}

/// The part of an address that a provider gives to one customer: an IPv4 address, or the first 64 bits of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
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
        let crowded = handshakes.open.len() >= RETRY_FROM.min(shared.limits.max_handshakes);
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
    if shared.is_revoked(&name) {
        connection.close(code::REVOKED, b"the token has been revoked");
        return turned_away(&shared, address, "its token has been revoked");
    }
    // The place is taken last: a peer that is turned away cannot occupy one.
    let Some(share) = shared.tokens.join(format!("{name}.{role}"), &shared.limits) else {
        connection.close(code::BUSY, b"too many peers with this token");
        return turned_away(&shared, address, "its token has too many connections");
    };
    let Ok(place) = shared.places.clone().try_acquire_owned() else {
        connection.close(code::BUSY, b"too many peers");
        return turned_away(&shared, address, "there are too many peers");
    };
    if let Ok(window) = VarInt::from_u64(share.window()) {
        connection.set_receive_window(window);
    }
    let budget = share.share().clone();
    // Before the welcome: the place must become free again however the connection ends.
    watch(connection.clone(), name.clone(), shared.clone(), place, share);
    let peer = PeerConnection::new(role, name, connection, shared.clone(), budget);
    if let Err(error) = peer.welcome().await {
        return turned_away(&shared, address, &error.to_string());
    }
    // An error means that the server was dropped. The drop of the peer closes its connection.
    waiting.send(peer).await.ok();
}

/// Registers a live connection, and unregisters it at its end.
fn watch(
    connection: Connection,
    token: String,
    shared: Arc<Shared>,
    place: OwnedSemaphorePermit,
    share: ShareOfConnection,
) {
    shared.register(connection.clone(), token);
    tokio::spawn(async move {
        connection.closed().await;
        shared.unregister(&connection);
        drop((place, share));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_from_one_address_ends_only_its_own_handshakes() {
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        assert_eq!(victim([address(1), address(2), address(2), address(3)].into_iter()), Some(1));
        assert_eq!(victim([address(2), address(1), address(2), address(1)].into_iter()), Some(0));
        assert_eq!(victim(std::iter::empty()), None);
        let one = network("2001:db8::1".parse().unwrap());
        assert_eq!(one, network("2001:db8::ffff:1".parse().unwrap()));
        assert_ne!(one, network("2001:db8:0:1::1".parse().unwrap()));
    }
}
