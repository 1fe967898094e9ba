//! Accepts connections and passes the requests of peers to the process that answers them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dipaco_net::{Exchange, PeerConnection, Server};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::host::HostError;
use crate::host::peer::{Answer, Peer, Role};
use crate::host::results::{self, ResultReceiver};
use crate::host::revocations::Revocations;
use crate::host::uploads::UploadedPiece;
use dipaco_protocol::{PIECES_AT_ONCE, Request, Response};
use dipaco_sync::ProcessId;

/// Time after connecting within which a peer must send its hello.
const HELLO: Duration = Duration::from_secs(10);
/// Longest name of a worker, in bytes.
const NAME_BYTES: usize = 256;

/// Answers the requests of peers. An error ends this process; a peer's mistake is answered with a refusal.
pub(crate) trait RequestHandler: ResultReceiver {
    /// Tokens that are no longer valid.
    fn revocations(&self) -> &Revocations;

    /// Answers the hello of a process. `returning` is true if the process has said hello before.
    fn welcome(
        &self,
        peer: &Peer,
        returning: bool,
    ) -> impl Future<Output = Result<Answer, Self::Error>> + Send;

    /// Answers a request other than [`Request::Submit`].
    fn answer(
        self: &Arc<Self>,
        peer: &Peer,
        request: Request,
    ) -> impl Future<Output = Result<Answer, Self::Error>> + Send;

    /// Takes leases and modules away from a peer whose token has been revoked.
    fn expel(&self, peer: &Peer) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Notes that a peer has left and that its process has no newer connection.
    fn left(&self, peer: &Peer, reason: String) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Accepts peers and serves each until its connection ends; after the farewell, until all have left.
pub(crate) async fn serve_peers<H: RequestHandler>(
    server: &Server,
    host: &Arc<H>,
    farewell: &CancellationToken,
) -> Result<(), H::Error> {
    let mut connections = JoinSet::new();
    let known = Arc::new(Mutex::new(BTreeMap::new()));
    while !(farewell.is_cancelled() && connections.is_empty()) {
        tokio::select! {
            connection = server.accept() => {
                let Some(connection) = connection else { return Ok(()) };
                connections.spawn(serve(connection, host.clone(), known.clone()));
            }
            Some(ended) = connections.join_next() => ended.map_err(HostError::from)??,
            () = farewell.cancelled(), if !farewell.is_cancelled() => {}
        }
    }
    Ok(())
}

/// Processes that have said hello, each with the token that ends its last connection.
type KnownProcesses = Arc<Mutex<BTreeMap<ProcessId, CancellationToken>>>;

/// A peer that has been welcomed.
struct Greeted {
    peer: Peer,
    /// Cancelled when a newer connection takes the place of this one.
    replaced: CancellationToken,
}

/// The outcome of registering a connection.
struct Registration {
    /// True if the process has been here before.
    returning: bool,
    /// Cancelled when a newer connection takes the place of this one.
    replaced: CancellationToken,
}

/// Registers a process and ends the connections that this one succeeds: the process's own, and those of earlier
/// processes under its token and name. An earlier process may be long dead before the network notices.
async fn register(known: &KnownProcesses, peer: &Peer) -> Registration {
    let mut known = known.lock().await;
    let replaced = CancellationToken::new();
    let before = known.insert(peer.process(), replaced.clone());
    if let Some(before) = &before {
        before.cancel();
    } else {
        known
            .iter()
            .filter(|(process, _)| peer.process().replaces(process))
            .for_each(|(_, earlier)| earlier.cancel());
    }
    Registration { returning: before.is_some(), replaced }
}

/// Serves one connection. An error ends this process.
async fn serve<H: RequestHandler>(
    connection: PeerConnection,
    host: Arc<H>,
    known: KnownProcesses,
) -> Result<(), H::Error> {
    let address = connection.address();
    let greeted = match tokio::time::timeout(HELLO, greet(&connection, &*host, &known)).await {
        Ok(greeted) => greeted?,
        Err(_) => None,
    };
    let Some(Greeted { peer, replaced }) = greeted else {
        tracing::warn!(%address, "a peer was turned away: it sent no valid hello");
        return Ok(());
    };
    tracing::info!(worker = peer.worker, %address, "joined");
    let mut exchanges = JoinSet::new();
    // One semaphore a connection: a peer that is slow to send or to receive holds no more memory than these pieces,
    // and takes none from other peers.
    let pieces = Arc::new(Semaphore::new(PIECES_AT_ONCE));
    loop {
        tokio::select! {
            exchange = connection.accept_exchange() => {
                let Some(exchange) = exchange else { break };
                let (host, peer, pieces) = (host.clone(), peer.clone(), pieces.clone());
                exchanges.spawn(async move { handle(exchange, &host, &peer, &pieces).await });
            }
            Some(ended) = exchanges.join_next() => ended.map_err(HostError::from)??,
            () = replaced.cancelled() => connection.close("the worker has connected again"),
        }
        if replaced.is_cancelled() {
            break;
        }
    }
    let ended = connection.closed().await.to_string();
    tracing::info!(worker = peer.worker, reason = ended, "left");
    // The process of a replaced connection is still here.
    if replaced.is_cancelled() { Ok(()) } else { host.left(&peer, ended).await }
}

/// Answers the first request of a connection, which must be a hello. Returns `None` if the peer is turned away.
async fn greet<H: RequestHandler>(
    connection: &PeerConnection,
    host: &H,
    known: &KnownProcesses,
) -> Result<Option<Greeted>, H::Error> {
    let Some(mut exchange) = connection.accept_exchange().await else { return Ok(None) };
    let request = match exchange.request::<Request>().await {
        Ok(request) => request,
        Err(error) => {
            tracing::warn!(address = %connection.address(), %error, "a peer's first request can't be read");
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
    if let Some(reason) = revoked(host, &peer.token)? {
        tracing::warn!(worker = peer.worker, token = peer.token, "a worker with a revoked token is refused");
        respond(exchange, &Response::Refused { reason }, None).await;
        return Ok(None);
    }
    // Registered before the welcome: the welcome ends leases of earlier processes under this name, and their
    // connections must not ask for new ones afterwards.
    let Registration { returning, replaced } = register(known, &peer).await;
    let (response, payload) = host.welcome(&peer, returning).await?;
    respond(exchange, &response, payload).await;
    Ok(Some(Greeted { peer, replaced }))
}

/// The peer that a hello introduces, or the reason to refuse it.
fn identify(request: Request, connection: &PeerConnection) -> Result<Peer, String> {
    let Request::Hello { worker, instance, version } = request else {
        return Err("the first request of a connection must be a hello".to_owned());
    };
    let own = env!("CARGO_PKG_VERSION");
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
    Ok(Peer { worker, instance, token: connection.name().to_owned(), role })
}

/// Answers one request. `pieces` bounds the pieces of this connection that are in memory.
async fn handle<H: RequestHandler>(
    mut exchange: Exchange,
    host: &Arc<H>,
    peer: &Peer,
    pieces: &Semaphore,
) -> Result<(), H::Error> {
    let request = match exchange.request::<Request>().await {
        Ok(request) => request,
        Err(error) => {
            tracing::warn!(worker = peer.worker, %error, "a request can't be read");
            return Ok(());
        }
    };
    // Looked up for every request: a revocation holds at once, not when the peer connects again.
    if let Some(reason) = revoked(&**host, &peer.token)? {
        tracing::warn!(
            worker = peer.worker,
            token = peer.token,
            "a token has been revoked; its worker is refused"
        );
        host.expel(peer).await?;
        respond(exchange, &Response::Refused { reason }, None).await;
        return Ok(());
    }
    // Held until the answer has arrived. `acquire` fails only on a closed semaphore, and this one is never closed.
    let _piece = if request.moves_a_piece() { pieces.acquire().await.ok() } else { None };
    let (response, payload) = match request {
        Request::Submit { lease, item, digest, offset } => {
            let piece = UploadedPiece { claim: peer.claim(lease), item, digest, offset };
            match results::receive(&mut exchange, host, peer, piece).await? {
                Some(response) => (response, None),
                None => return Ok(()),
            }
        }
        request => host.answer(peer, request).await?,
    };
    respond(exchange, &response, payload).await;
    Ok(())
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
    if let Err(error) = exchange.respond(response, payload).await {
        tracing::trace!(%error, "the end of an answer was not acknowledged");
    }
}
