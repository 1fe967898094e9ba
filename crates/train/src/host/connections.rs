//! Accepts connections and passes the requests of peers to the process that answers them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dipaco_ledger::{ConnectionNumber, Departure};
use dipaco_net::{Exchange, NetError, PeerConnection, Server};
use dipaco_sync::ProcessId;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::host::peer::{Answer, Peer, Role};
use crate::host::reception::{Reception, Registration};
use crate::host::results::{self, ResultReceiver};
use crate::host::revocations::Revocations;
use crate::host::uploads::UploadedPiece;
use dipaco_protocol::{PIECE_BYTES, PIECES_AT_ONCE, Request, Response};

/// Time after connecting within which a peer must send its hello.
const HELLO: Duration = Duration::from_secs(10);
/// Longest name of a worker, in bytes.
const NAME_BYTES: usize = 256;
/// Operations of a synchronizer at a time: it asks on behalf of all its workers.
const SYNCHRONIZER_EXCHANGES: u32 = 64;

/// Answers the requests of peers. An error ends this process; a peer's mistake is answered with a refusal.
pub(crate) trait RequestHandler: ResultReceiver {
    /// Tokens that are no longer valid.
    fn revocations(&self) -> &Revocations;

    /// Called when the names of revoked tokens have changed.
    fn revocations_changed(&self) {}

    /// The reason to refuse a peer because of its device; `None` if it may join.
    fn refuses_device(&self, _peer: &Peer) -> Option<String> {
        None
    }

    /// True if a panic has left the state of this process half changed. Nothing may be answered from such a state.
    fn is_broken(&self) -> bool {
        false
    }

    /// Answers the hello of a process.
    fn welcome(
        &self,
        peer: &Peer,
        registration: &Registration,
    ) -> impl Future<Output = Result<Answer, Self::Error>> + Send;

    /// Answers a request other than [`Request::Submit`].
    fn answer(
        self: &Arc<Self>,
        peer: &Peer,
        request: Request,
    ) -> impl Future<Output = Result<Answer, Self::Error>> + Send;

    /// Takes leases and modules away from a peer whose token has been revoked.
    fn expel(&self, peer: &Peer) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Notes that a peer has left and that its process has no newer connection. `succeeded` is true if another process
    /// under its token and name is here.
    fn left(
        &self,
        peer: &Peer,
        reason: String,
        succeeded: bool,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Accepts peers and serves each until its connection ends; after the farewell, until all have left.
pub(crate) async fn serve_peers<H: RequestHandler>(
    server: &Server,
    host: &Arc<H>,
    farewell: &CancellationToken,
) -> Result<(), H::Error> {
    let mut connections = JoinSet::new();
    let reception = host.reception();
    let revocations = host.revocations().watch(|names| {
        server.revoke(names);
        host.revocations_changed();
    });
    tokio::pin!(revocations);
    while !(farewell.is_cancelled() && connections.is_empty()) {
        tokio::select! {
            connection = server.accept() => {
                let Some(connection) = connection else { return Ok(()) };
                connections.spawn(serve(connection, host.clone(), reception.clone()));
            }
            Some(ended) = connections.join_next() => match ended {
                Ok(served) => served?,
                Err(failure) => reception.bug("a connection", failure, host.is_broken())?,
            },
            Err(error) = &mut revocations => return Err(error.into()),
            () = farewell.cancelled(), if !farewell.is_cancelled() => {}
        }
    }
    Ok(())
}

/// A peer that has been welcomed.
struct Greeted {
    peer: Peer,
    /// Number of the connection.
    number: ConnectionNumber,
    /// Cancelled when a newer connection takes the place of this one.
    replaced: CancellationToken,
    /// Notified when another process joins under the token and name.
    doubted: Arc<Notify>,
    /// The peer's hello, and the answer to it.
    welcome: (Exchange, Answer),
}

/// Serves one connection. An error ends this process.
async fn serve<H: RequestHandler>(
    connection: PeerConnection,
    host: Arc<H>,
    reception: Arc<Reception>,
) -> Result<(), H::Error> {
    let address = connection.address();
    let greeted = match tokio::time::timeout(HELLO, greet(&connection, &*host, &reception)).await {
        Ok(greeted) => greeted?,
        Err(_) => None,
    };
    let Some(Greeted { peer, number, replaced, doubted, welcome: (hello, welcome) }) = greeted else {
        if let Some(suppressed) = reception.warnings.due(Instant::now()) {
            tracing::warn!(%address, suppressed, "a peer was turned away: it sent no valid hello");
        }
        return Ok(());
    };
    if peer.role == Role::Synchronizer {
        connection.allow_exchanges(SYNCHRONIZER_EXCHANGES);
    }
    if reception.may_log(&peer.process) {
        tracing::info!(worker = peer.process.name, %address, "joined");
    }
    let mut exchanges = JoinSet::new();
    // The peer is registered, so the end of its connection is noted, whether it takes the welcome or not.
    exchanges.spawn(async move {
        respond(hello, &welcome.0, welcome.1).await;
        Ok(Answered::Yes)
    });
    // One semaphore a connection: a peer that is slow to send or to receive holds no more memory than these pieces,
    // and takes none from other peers.
    let pieces = Arc::new(Semaphore::new(PIECES_AT_ONCE));
    let dead = close_when_silent(&connection, &doubted);
    tokio::pin!(dead);
    loop {
        tokio::select! {
            exchange = connection.accept_exchange() => {
                let Some(exchange) = exchange else { break };
                let (host, peer, pieces) = (host.clone(), peer.clone(), pieces.clone());
                let reception = reception.clone();
                exchanges.spawn(async move { answer(exchange, &host, &peer, &pieces, &reception).await });
            }
            Some(ended) = exchanges.join_next() => match ended {
                Ok(answered) => match answered? {
                    Answered::Yes => {}
                    Answered::Revoked => connection.close_revoked(),
                },
                // Only the peer of this request loses its connection.
                Err(failure) => {
                    reception.bug(&peer.process.name, failure, host.is_broken())?;
                    connection.close("a bug of this program was met while it answered a request");
                }
            },
            () = replaced.cancelled() => connection.close("the worker has connected again"),
            () = &mut dead => {}
        }
        if replaced.is_cancelled() {
            break;
        }
    }
    let ended = connection.closed().await.to_string();
    if reception.may_log(&peer.process) {
        tracing::info!(worker = peer.process.name, reason = ended, "left");
    }
    if revoked(&*host, &peer.process.token)?.is_some() {
        host.expel(&peer).await?;
    }
    // A request that still waits must not be granted a lease that its successor waits for.
    exchanges.shutdown().await;
    match reception.left(&peer, number) {
        Departure::Returned => Ok(()),
        departure => host.left(&peer, ended, departure == Departure::Succeeded).await,
    }
}

/// Closes a silent connection when another process joins under its name. A killed process would hold its leases until the
/// transport gives it up.
async fn close_when_silent(connection: &PeerConnection, doubted: &Notify) {
    loop {
        doubted.notified().await;
        if connection.is_silent().await {
            connection.close("another process joined under this name, and this one was silent");
        }
    }
}

/// Reads the first request of a connection, which must be a hello. Returns `None` if the peer is turned away.
async fn greet<H: RequestHandler>(
    connection: &PeerConnection,
    host: &H,
    reception: &Reception,
) -> Result<Option<Greeted>, H::Error> {
    let Some(mut exchange) = connection.accept_exchange().await else { return Ok(None) };
    let request = match exchange.request::<Request>().await {
        Ok(request) => request,
        Err(error) => {
            if let Some(suppressed) = reception.warnings.due(Instant::now()) {
                let address = connection.address();
                tracing::warn!(%address, %error, suppressed, "a peer's first request can't be read");
            }
            return Ok(None);
        }
    };
    let peer = match identify(request, connection) {
        Ok(peer) => peer,
        Err(reason) => {
            respond(exchange, &Response::Refused { reason }, None).await;
            return Ok(None);
        }
    };
    if let Some(reason) = revoked(host, &peer.process.token)? {
        respond(exchange, &Response::Refused { reason }, None).await;
        return Ok(None);
    }
    if let Some(reason) = host.refuses_device(&peer) {
        respond(exchange, &Response::Refused { reason }, None).await;
        return Ok(None);
    }
    let registration = reception.register(&peer);
    let welcome = host.welcome(&peer, &registration).await?;
    let Registration { number, replaced, doubted, .. } = registration;
    Ok(Some(Greeted { peer, number, replaced, doubted, welcome: (exchange, welcome) }))
}

/// The peer that a hello introduces, or the reason to refuse it.
fn identify(request: Request, connection: &PeerConnection) -> Result<Peer, String> {
    let Request::Hello { worker, instance, version, numerics } = request else {
        return Err("the first request of a connection must be a hello".to_owned());
    };
    let own = crate::BUILD;
    if version != own {
        return Err(format!(
            "the worker is dipaco {version}, the coordinator {own}: copy the coordinator's program to the worker's machine"
        ));
    }
    if worker.is_empty() || worker.len() > NAME_BYTES || worker.chars().any(char::is_control) {
        return Err(format!(
            "a worker's name has 1 to {NAME_BYTES} bytes and no control characters: give another --name"
        ));
    }
    let role = Role::of(connection.role()).ok_or_else(|| {
        format!("nobody joins as {:?}: ask the operator of the run for a token", connection.role())
    })?;
    if numerics.len() > NAME_BYTES || numerics.chars().any(char::is_control) {
        return Err("the fingerprint of the worker's device is no fingerprint".to_owned());
    }
    let process = ProcessId { token: connection.name().to_owned(), name: worker, instance };
    Ok(Peer { process, role, numerics })
}

/// The end of a request.
enum Answered {
    /// The request has its answer, or its peer is gone.
    Yes,
    /// The peer's token has been revoked.
    Revoked,
}

/// Answers one request. `pieces` bounds the pieces of this connection that are in memory. An error ends this process.
async fn answer<H: RequestHandler>(
    mut exchange: Exchange,
    host: &Arc<H>,
    peer: &Peer,
    pieces: &Semaphore,
    reception: &Reception,
) -> Result<Answered, H::Error> {
    let request = match exchange.request::<Request>().await {
        Ok(request) => request,
        Err(error) => {
            if let Some(suppressed) = reception.warnings.due(Instant::now()) {
                tracing::warn!(worker = peer.process.name, %error, suppressed, "a request can't be read");
            }
            return Ok(Answered::Yes);
        }
    };
    // Looked up for every request: a revocation holds at once, not when the file is looked at next.
    if let Some(reason) = revoked(&**host, &peer.process.token)? {
        if reception.may_log(&peer.process) {
            let (worker, token) = (&peer.process.name, &peer.process.token);
            tracing::warn!(worker, token, "the token of a worker has been revoked");
        }
        host.expel(peer).await?;
        respond(exchange, &Response::Refused { reason }, None).await;
        return Ok(Answered::Revoked);
    }
    // Held until the answer has arrived. `acquire` fails only on a closed semaphore, and this one is never closed.
    let _piece = if request.moves_a_piece() { pieces.acquire().await.ok() } else { None };
    if request.moves_a_piece() {
        exchange.reserve(PIECE_BYTES).await;
    }
    let (response, payload) = match request {
        Request::Submit { lease, item, digest, offset } => {
            let piece = UploadedPiece { claim: peer.claim(lease), item, digest, offset };
            match results::receive(&mut exchange, host, peer, piece).await? {
                Some(response) => (response, None),
                None => return Ok(Answered::Yes),
            }
        }
        request => tokio::select! {
            biased;
            // A question that nobody asks any more must not be granted a lease, which nobody would work on.
            () = exchange.abandoned() => return Ok(Answered::Yes),
            answer = host.answer(peer, request) => answer?,
        },
    };
    respond(exchange, &response, payload).await;
    Ok(Answered::Yes)
}

/// The reason why a token is refused; `None` if it is valid.
fn revoked<H: RequestHandler>(host: &H, token: &str) -> Result<Option<String>, H::Error> {
    let revoked = host.revocations().contains(token)?;
    Ok(revoked.then(|| {
        format!("the token {token:?} has been revoked: ask the operator of the run for another token")
    }))
}

/// Sends an answer. A worker that is gone asks again when it is back, because every request may be repeated. An error
/// does not prove that the answer was lost: the worker may have read it before it acknowledged the end of the stream.
async fn respond(exchange: Exchange, response: &Response, payload: Option<Bytes>) {
    match exchange.respond(response, payload).await {
        Ok(()) => {}
        Err(error @ NetError::TooLarge { .. }) => {
            tracing::error!(%error, "an answer is too long to be sent; its request is refused");
        }
        Err(error) => tracing::trace!(%error, "the end of an answer was not acknowledged"),
    }
}

#[cfg(test)]
mod tests;
