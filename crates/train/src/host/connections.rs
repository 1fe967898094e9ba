//! Lets connections in, and takes their requests to whoever answers them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dipaco_net::{Exchange, PeerConnection, Server};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::TrainError;
use crate::host::revocations::Revocations;
use dipaco_protocol::{PIECES_AT_ONCE, Request, Response, SYNCHRONIZER, WORKER};

/// A peer that says nothing for this long after connecting is turned away.
const HELLO: Duration = Duration::from_secs(10);
/// The longest name of a worker, in bytes.
const NAME_BYTES: usize = 256;

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The name that leases are given to.
    pub(crate) worker: String,
    /// Tells a process from its successor under the same name.
    pub(crate) instance: u64,
    /// The name in its token.
    pub(crate) token: String,
    /// What its token is for.
    pub(crate) role: Role,
}

impl Peer {
    /// The process.
    pub(crate) fn process(&self) -> (String, u64) {
        (self.worker.clone(), self.instance)
    }
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Worker,
    Synchronizer,
}

impl Role {
    /// By the name that certificates have for it.
    fn of(name: &str) -> Option<Self> {
        match name {
            WORKER => Some(Self::Worker),
            SYNCHRONIZER => Some(Self::Synchronizer),
            _ => None,
        }
    }
}

/// A response and the payload that goes with it.
pub(crate) type Answer = (Response, Option<Bytes>);

/// What can't be carried out.
pub(crate) fn refused(reason: impl Into<String>) -> Answer {
    (Response::Refused { reason: reason.into() }, None)
}

/// Answers the requests of peers. An error is what ends the process, not what a peer did wrong.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// Tokens that may not be used any more.
    fn revocations(&self) -> &Revocations;

    /// Answers the hello of a process, which may have been here before.
    fn welcome(
        &self,
        peer: &Peer,
        returning: bool,
    ) -> impl Future<Output = Result<Answer, TrainError>> + Send;

    /// The largest payload, in bytes, that a request may bring.
    fn payload_limit(&self, request: &Request) -> u64;

    /// Answers a request.
    fn answer(
        self: &Arc<Self>,
        peer: &Peer,
        request: Request,
        payload: Option<Bytes>,
    ) -> impl Future<Output = Result<Answer, TrainError>> + Send;

    /// Takes back what a peer has whose token has been revoked.
    fn expel(&self, peer: &Peer) -> impl Future<Output = Result<(), TrainError>> + Send;

    /// Notes that a peer has left and no other connection of its process has taken this one's place.
    fn left(&self, peer: &Peer, reason: String) -> impl Future<Output = Result<(), TrainError>> + Send;
}

/// Accepts peers and serves each until its connection ends; after the farewell, until all have left.
pub(crate) async fn serve_peers<H: RequestHandler>(
    server: &Server,
    host: &Arc<H>,
    farewell: &CancellationToken,
) -> Result<(), TrainError> {
    let mut connections = JoinSet::new();
    let known = Arc::new(Mutex::new(BTreeMap::new()));
    while !(farewell.is_cancelled() && connections.is_empty()) {
        tokio::select! {
            connection = server.accept() => {
                let Some(connection) = connection else { return Ok(()) };
                connections.spawn(serve(connection, host.clone(), known.clone()));
            }
            Some(ended) = connections.join_next() => ended.map_err(|source| TrainError::Thread { source })??,
            () = farewell.cancelled(), if !farewell.is_cancelled() => {}
        }
    }
    Ok(())
}

/// The processes that have said hello, by name and instance, with what ends their last connection.
type Known = Arc<Mutex<BTreeMap<(String, u64), CancellationToken>>>;

/// Notes that a process is connected and ends the connections that this one succeeds: its own, and those of processes
/// under its name before it, which may be long dead before the network notices. Returns whether the process had been
/// here before, and what ends its connection.
async fn register(known: &Known, peer: &Peer) -> (bool, CancellationToken) {
    let mut known = known.lock().await;
    let replaced = CancellationToken::new();
    let before = known.insert((peer.worker.clone(), peer.instance), replaced.clone());
    if let Some(before) = &before {
        before.cancel();
    } else {
        known
            .iter()
            .filter(|((name, instance), _)| *name == peer.worker && *instance != peer.instance)
            .for_each(|(_, earlier)| earlier.cancel());
    }
    (before.is_some(), replaced)
}

/// Serves one connection. Fails only with what ends the process.
async fn serve<H: RequestHandler>(
    connection: PeerConnection,
    host: Arc<H>,
    known: Known,
) -> Result<(), TrainError> {
    let address = connection.address();
    let peer = match tokio::time::timeout(HELLO, greet(&connection, &*host, &known)).await {
        Ok(greeted) => greeted?,
        Err(_) => None,
    };
    let Some((peer, replaced)) = peer else {
        tracing::warn!(%address, "a peer did not introduce itself");
        return Ok(());
    };
    tracing::info!(worker = peer.worker, %address, "joined");
    let mut exchanges = JoinSet::new();
    let places = Arc::new(Semaphore::new(PIECES_AT_ONCE));
    loop {
        tokio::select! {
            exchange = connection.accept_exchange() => {
                let Some(exchange) = exchange else { break };
                let (host, peer, places) = (host.clone(), peer.clone(), places.clone());
                exchanges.spawn(async move { handle(exchange, &host, &peer, &places).await });
            }
            Some(ended) = exchanges.join_next() => ended.map_err(|source| TrainError::Thread { source })??,
            () = replaced.cancelled() => connection.close("the worker has connected again"),
        }
        if replaced.is_cancelled() {
            break;
        }
    }
    let ended = connection.closed().await.to_string();
    tracing::info!(worker = peer.worker, reason = ended, "left");
    if replaced.is_cancelled() { Ok(()) } else { host.left(&peer, ended).await }
}

/// The first exchange of a connection must be a hello.
async fn greet<H: RequestHandler>(
    connection: &PeerConnection,
    host: &H,
    known: &Known,
) -> Result<Option<(Peer, CancellationToken)>, TrainError> {
    let Some(mut exchange) = connection.accept_exchange().await else { return Ok(None) };
    let request = match exchange.request::<Request>().await {
        Ok(request) => request,
        Err(error) => {
            tracing::warn!(address = %connection.address(), %error, "a peer's first request can't be read");
            return Ok(None);
        }
    };
    let Request::Hello { worker, instance, version } = request else {
        let reason = "the first request of a connection must be a hello".to_owned();
        answer(exchange, &Response::Refused { reason }, None).await;
        return Ok(None);
    };
    if version != env!("CARGO_PKG_VERSION") {
        let reason = format!(
            "the worker is dipaco {version}, the coordinator {}: copy the coordinator's program to the worker's machine",
            env!("CARGO_PKG_VERSION")
        );
        answer(exchange, &Response::Refused { reason }, None).await;
        return Ok(None);
    }
    if worker.is_empty() || worker.len() > NAME_BYTES || worker.chars().any(char::is_control) {
        let reason = format!(
            "a worker's name has 1 to {NAME_BYTES} bytes and no control characters: give another --name"
        );
        answer(exchange, &Response::Refused { reason }, None).await;
        return Ok(None);
    }
    let Some(role) = Role::of(connection.role()) else {
        let reason =
            format!("nobody joins as {:?}: ask whoever leads the run for a token", connection.role());
        answer(exchange, &Response::Refused { reason }, None).await;
        return Ok(None);
    };
    let token = connection.name().to_owned();
    if let Some(reason) = revoked(host, &token)? {
        tracing::warn!(worker, token, "a worker with a revoked token is refused");
        answer(exchange, &Response::Refused { reason }, None).await;
        return Ok(None);
    }
    let peer = Peer { worker, instance, token, role };
    let (returning, replaced) = register(known, &peer).await;
    let (response, payload) = host.welcome(&peer, returning).await?;
    answer(exchange, &response, payload).await;
    Ok(Some((peer, replaced)))
}

/// Answers one request. `places` are those of this worker for pieces: one that is slow to send or to take them holds no
/// more memory than these.
async fn handle<H: RequestHandler>(
    mut exchange: Exchange,
    host: &Arc<H>,
    peer: &Peer,
    places: &Semaphore,
) -> Result<(), TrainError> {
    let request = match exchange.request::<Request>().await {
        Ok(request) => request,
        Err(error) => {
            tracing::warn!(worker = peer.worker, %error, "a request can't be read");
            return Ok(());
        }
    };
    if let Some(reason) = revoked(&**host, &peer.token)? {
        tracing::warn!(
            worker = peer.worker,
            token = peer.token,
            "a token has been revoked; its worker is refused"
        );
        host.expel(peer).await?;
        answer(exchange, &Response::Refused { reason }, None).await;
        return Ok(());
    }
    // Held until the answer has arrived; the semaphore is never closed.
    let _place = if request.moves_a_piece() { places.acquire().await.ok() } else { None };
    let payload = match host.payload_limit(&request) {
        0 => None,
        limit => match exchange.receive_payload(limit).await {
            Ok(payload) => Some(payload),
            Err(error) => {
                tracing::warn!(worker = peer.worker, %error, "a payload is not taken");
                return Ok(());
            }
        },
    };
    let (response, payload) = host.answer(peer, request, payload).await?;
    answer(exchange, &response, payload).await;
    Ok(())
}

/// Why a token may not be used, if that is so.
fn revoked<H: RequestHandler>(host: &H, token: &str) -> Result<Option<String>, TrainError> {
    let revoked = host.revocations().hold(token)?;
    Ok(revoked
        .then(|| format!("the token {token:?} has been revoked: ask whoever leads the run for another one")))
}

/// Sends an answer. A worker that is gone asks again when it is back: every request may be repeated. An error does not
/// say that the answer did not arrive: the worker may have read it and gone on before its end was acknowledged.
async fn answer(exchange: Exchange, response: &Response, payload: Option<Bytes>) {
    if let Err(error) = exchange.respond(response, payload).await {
        tracing::trace!(%error, "an answer was not taken to its end");
    }
}
