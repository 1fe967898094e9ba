//! Lets peers in, and takes their requests to whoever answers them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dipaco_net::{Exchange, Peer, Server};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::TrainError;
use crate::protocol::{PIECES_AT_ONCE, Request, Response, SYNCHRONIZER, WORKER};
use crate::revocations::Revocations;

/// A peer that says nothing for this long after connecting is turned away.
const HELLO: Duration = Duration::from_secs(10);
/// The longest name of a worker, in bytes.
const NAME_BYTES: usize = 256;

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Guest {
    /// The name that leases are given to.
    pub(crate) worker: String,
    /// Tells a process from its successor under the same name.
    pub(crate) instance: u64,
    /// The name in its token.
    pub(crate) token: String,
    /// What its token is for.
    pub(crate) role: Role,
}

impl Guest {
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

/// Answers the requests of guests. An error is what ends the process, not what a guest did wrong.
pub(crate) trait Host: Send + Sync + 'static {
    /// Tokens that may not be used any more.
    fn revocations(&self) -> &Revocations;

    /// Answers the hello of a process, which may have been here before.
    fn welcome(
        &self,
        guest: &Guest,
        returning: bool,
    ) -> impl Future<Output = Result<Answer, TrainError>> + Send;

    /// The largest payload, in bytes, that a request may bring.
    fn payload_limit(&self, request: &Request) -> u64;

    /// Answers a request.
    fn answer(
        self: &Arc<Self>,
        guest: &Guest,
        request: Request,
        payload: Option<Bytes>,
    ) -> impl Future<Output = Result<Answer, TrainError>> + Send;

    /// Takes back what a guest has whose token has been revoked.
    fn expel(&self, guest: &Guest) -> impl Future<Output = Result<(), TrainError>> + Send;

    /// Notes that a guest has left and no other connection of its process has taken this one's place.
    fn left(&self, guest: &Guest, reason: String) -> impl Future<Output = Result<(), TrainError>> + Send;
}

/// Accepts guests and serves each until its connection ends; after the farewell, until all have left.
pub(crate) async fn receive<H: Host>(
    server: &Server,
    host: &Arc<H>,
    farewell: &CancellationToken,
) -> Result<(), TrainError> {
    let mut peers = JoinSet::new();
    let known = Arc::new(Mutex::new(BTreeMap::new()));
    while !(farewell.is_cancelled() && peers.is_empty()) {
        tokio::select! {
            peer = server.accept() => {
                let Some(peer) = peer else { return Ok(()) };
                peers.spawn(serve(peer, host.clone(), known.clone()));
            }
            Some(ended) = peers.join_next() => ended.map_err(|source| TrainError::Thread { source })??,
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
async fn register(known: &Known, guest: &Guest) -> (bool, CancellationToken) {
    let mut known = known.lock().await;
    let replaced = CancellationToken::new();
    let before = known.insert((guest.worker.clone(), guest.instance), replaced.clone());
    if let Some(before) = &before {
        before.cancel();
    } else {
        known
            .iter()
            .filter(|((name, instance), _)| *name == guest.worker && *instance != guest.instance)
            .for_each(|(_, earlier)| earlier.cancel());
    }
    (before.is_some(), replaced)
}

/// Serves one connection. Fails only with what ends the process.
async fn serve<H: Host>(peer: Peer, host: Arc<H>, known: Known) -> Result<(), TrainError> {
    let address = peer.address();
    let guest = match tokio::time::timeout(HELLO, greet(&peer, &*host, &known)).await {
        Ok(greeted) => greeted?,
        Err(_) => None,
    };
    let Some((guest, replaced)) = guest else {
        tracing::warn!(%address, "a peer did not introduce itself");
        return Ok(());
    };
    tracing::info!(worker = guest.worker, %address, "joined");
    let mut exchanges = JoinSet::new();
    let places = Arc::new(Semaphore::new(PIECES_AT_ONCE));
    loop {
        tokio::select! {
            exchange = peer.accept_exchange() => {
                let Some(exchange) = exchange else { break };
                let (host, guest, places) = (host.clone(), guest.clone(), places.clone());
                exchanges.spawn(async move { handle(exchange, &host, &guest, &places).await });
            }
            Some(ended) = exchanges.join_next() => ended.map_err(|source| TrainError::Thread { source })??,
            () = replaced.cancelled() => peer.close("the worker has connected again"),
        }
        if replaced.is_cancelled() {
            break;
        }
    }
    let ended = peer.closed().await.to_string();
    tracing::info!(worker = guest.worker, reason = ended, "left");
    if replaced.is_cancelled() { Ok(()) } else { host.left(&guest, ended).await }
}

/// The first exchange of a connection must be a hello.
async fn greet<H: Host>(
    peer: &Peer,
    host: &H,
    known: &Known,
) -> Result<Option<(Guest, CancellationToken)>, TrainError> {
    let Some(mut exchange) = peer.accept_exchange().await else { return Ok(None) };
    let request = match exchange.request::<Request>().await {
        Ok(request) => request,
        Err(error) => {
            tracing::warn!(address = %peer.address(), %error, "a peer's first request can't be read");
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
    let Some(role) = Role::of(peer.role()) else {
        let reason = format!("nobody joins as {:?}: ask whoever leads the run for a token", peer.role());
        answer(exchange, &Response::Refused { reason }, None).await;
        return Ok(None);
    };
    let token = peer.name().to_owned();
    if let Some(reason) = revoked(host, &token)? {
        tracing::warn!(worker, token, "a worker with a revoked token is refused");
        answer(exchange, &Response::Refused { reason }, None).await;
        return Ok(None);
    }
    let guest = Guest { worker, instance, token, role };
    let (returning, replaced) = register(known, &guest).await;
    let (response, payload) = host.welcome(&guest, returning).await?;
    answer(exchange, &response, payload).await;
    Ok(Some((guest, replaced)))
}

/// Answers one request. `places` are those of this worker for pieces: one that is slow to send or to take them holds no
/// more memory than these.
async fn handle<H: Host>(
    mut exchange: Exchange,
    host: &Arc<H>,
    guest: &Guest,
    places: &Semaphore,
) -> Result<(), TrainError> {
    let request = match exchange.request::<Request>().await {
        Ok(request) => request,
        Err(error) => {
            tracing::warn!(worker = guest.worker, %error, "a request can't be read");
            return Ok(());
        }
    };
    if let Some(reason) = revoked(&**host, &guest.token)? {
        tracing::warn!(
            worker = guest.worker,
            token = guest.token,
            "a token has been revoked; its worker is refused"
        );
        host.expel(guest).await?;
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
                tracing::warn!(worker = guest.worker, %error, "a payload is not taken");
                return Ok(());
            }
        },
    };
    let (response, payload) = host.answer(guest, request, payload).await?;
    answer(exchange, &response, payload).await;
    Ok(())
}

/// Why a token may not be used, if that is so.
fn revoked<H: Host>(host: &H, token: &str) -> Result<Option<String>, TrainError> {
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
