//! The worker's end.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use quinn::{Connection, ConnectionError, Endpoint, EndpointConfig, TokioRuntime};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::first_success::first_success;
use crate::tls::{COORDINATOR_NAME, HELPER_NAME};
use crate::traffic::Counters;
use crate::transport::{self, Accepts, code};
use crate::wire::{self, PayloadHeader, Status, Transfer, Welcome};
use crate::{JoinToken, Limits, NetError, Traffic, tls};

/// A verified connection to a run's coordinator. A drop closes the connection.
///
/// Calls may run concurrently, each on its own stream. A client does not reconnect: after [`NetError::Lost`] or
/// [`NetError::Closed`] connect again.
pub struct Client {
    endpoint: Endpoint,
    connection: Connection,
    peer: String,
    limits: Limits,
    counters: Counters,
}

/// The server that a client expects at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// The coordinator of the run.
    #[default]
    Coordinator,
    /// A process that serves in the coordinator's place.
    Helper,
}

impl Service {
    /// Name in the server's certificate.
    fn name(self) -> &'static str {
        match self {
            Self::Coordinator => COORDINATOR_NAME,
            Self::Helper => HELPER_NAME,
        }
    }
}

/// The header of a response, and the stream of its payload.
struct ResponseStart<Resp> {
    response: Resp,
    payload: Option<PayloadHeader>,
    stream: quinn::RecvStream,
}

impl Client {
    /// Connects to the first address of the token at which a server of the run takes it, and waits until both ends have
    /// verified each other. Each address has [`Limits::connect_timeout`]. If a name stands for several IP addresses, an
    /// attempt at one does not wait for the end of the attempts before it.
    ///
    /// # Errors
    /// [`NetError::Expired`] and [`NetError::Revoked`] if the token has expired, or if a verified server says so.
    /// [`NetError::WrongToken`] or [`NetError::Version`] if the servers at all addresses are of another run or version.
    /// [`NetError::Connect`] with what happened at each address. A token with one address gets the error of this address,
    /// such as [`NetError::Busy`].
    pub async fn connect(token: &JoinToken, now: SystemTime, limits: Limits) -> Result<Self, NetError> {
        Self::connect_to(Service::Coordinator, token, now, limits).await
    }

    /// [`Client::connect`] to another server of the run.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_to(
        service: Service,
        token: &JoinToken,
        now: SystemTime,
        limits: Limits,
    ) -> Result<Self, NetError> {
        token.check(now)?;
        let mut config = quinn::ClientConfig::new(Arc::new(tls::client_config(token, now)?));
        config.transport_config(transport::transport(&limits, Accepts::Welcome)?);

        // A coordinator that has moved leaves an address that anybody may use, so an error there does not end the search.
        let mut errors = Vec::new();
        for address in &token.addresses {
            let unresolved = |why: &str| unreached(token, format!("{address} {why}"));
            match timeout(limits.connect_timeout, tokio::net::lookup_host(address)).await {
                Ok(Ok(targets)) => {
                    let targets = targets.collect();
                    match Self::connect_to_one(service, token, address, targets, &config, &limits).await {
                        Ok(client) => return Ok(client),
                        Err(failed) => errors.extend(failed),
                    }
                }
                Ok(Err(error)) => errors.push(unresolved(&format!("can't be resolved ({error})"))),
                Err(_) => errors.push(unresolved("was not resolved in time")),
            }
        }
        Err(no_connection(token, errors))
    }

    /// Connects to one of the IP addresses for which an address of the token stands.
    async fn connect_to_one(
        service: Service,
        token: &JoinToken,
        address: &str,
        targets: Vec<SocketAddr>,
        config: &quinn::ClientConfig,
        limits: &Limits,
    ) -> Result<Self, Vec<NetError>> {
        let answered = AtomicBool::new(false);
        let attempt =
            |target| Self::attempt(service, token, address, target, config.clone(), limits, &answered);
        first_success(targets.into_iter().map(attempt).collect(), &answered).await
    }

    /// Tries one address. An error says nothing about the other addresses, unless it is of the token itself. Sets
    /// `answered` when the server has proved that it is of the run: it would count another attempt as another peer.
    async fn attempt(
        service: Service,
        token: &JoinToken,
        address: &str,
        target: SocketAddr,
        config: quinn::ClientConfig,
        limits: &Limits,
        answered: &AtomicBool,
    ) -> Result<Self, NetError> {
        let failed = |reason: String| unreached(token, format!("{address}: {reason}"));
        let any = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let mut endpoint_config = EndpointConfig::default();
        transport::set_datagram_size(&mut endpoint_config)?;
        let opened = transport::socket(SocketAddr::new(any, 0))
            .and_then(|socket| Endpoint::new(endpoint_config, None, socket, Arc::new(TokioRuntime)));
        let endpoint = opened.map_err(|error| failed(format!("no UDP socket can be opened ({error})")))?;
        let connecting = endpoint
            .connect_with(config, target, service.name())
            .map_err(|error| failed(error.to_string()))?;
        let handshake = async {
            let connection = connecting.await.map_err(|error| judge(token, address, false, error))?;
            answered.store(true, Ordering::Relaxed);
            // In TLS 1.3 the handshake ends here before the coordinator has verified the token's certificate. Only the
            // welcome shows that the coordinator accepted it.
            let stream = connection.accept_uni().await.map_err(|error| judge(token, address, true, error))?;
            Ok::<_, NetError>((connection, stream))
        };
        let connected = timeout(limits.connect_timeout, handshake).await;
        let (connection, mut stream) = connected
            .map_err(|_| failed(format!("no answer within {} s", limits.connect_timeout.as_secs_f64())))??;
        let peer = format!("the coordinator at {address}");
        let transfer = Transfer { peer: &peer, part: "welcome", stall: limits.connect_timeout };
        let body = transfer.read_frame(&mut stream, limits.max_header_bytes).await?;
        let (Welcome { run_id }, _) = transfer.take(&body)?;
        if run_id != token.run_id {
            return Err(wrong_token(token, address, format!("the coordinator leads run `{run_id}`")));
        }
        let (limits, counters) = (limits.clone(), Counters::default());
        Ok(Self { endpoint, connection, peer, limits, counters })
    }

    /// Performs an operation: sends `request` and an optional payload, and waits at most `limit` for the response and
    /// its payload of at most `max_response_payload` bytes. After a timeout or a drop of the future, the coordinator
    /// learns that this end gave up.
    ///
    /// # Errors
    /// [`NetError::Refused`] with the coordinator's reason, [`NetError::Timeout`], [`NetError::TooLarge`],
    /// [`NetError::Damaged`], [`NetError::Message`], [`NetError::Abandoned`] (the coordinator gave up the operation),
    /// [`NetError::Closed`] and [`NetError::Lost`].
    pub async fn call<Req: Serialize, Resp: DeserializeOwned>(
        &self,
        request: &Req,
        payload: Option<Bytes>,
        max_response_payload: u64,
        limit: Duration,
    ) -> Result<(Resp, Option<Bytes>), NetError> {
        self.within(limit, async {
            let ResponseStart { response, payload, mut stream } = self.ask(request, payload).await?;
            let Some(header) = payload else { return Ok((response, None)) };
            let transfer = self.transfer("response payload");
            let payload = transfer.read_payload(&mut stream, header, max_response_payload).await?;
            self.counters.received(payload.len());
            Ok((response, Some(payload)))
        })
        .await
    }

    /// [`Client::call`] with the response's payload in `into`: it replaces the content and must fit into the capacity,
    /// so the parts of an object arrive at their final place without a copy. If the response has no payload, `into`
    /// becomes empty.
    ///
    /// # Errors
    /// As [`Client::call`]; the content of `into` is then undefined.
    pub async fn call_into<Req: Serialize, Resp: DeserializeOwned>(
        &self,
        request: &Req,
        into: &mut BytesMut,
        limit: Duration,
    ) -> Result<Resp, NetError> {
        self.within(limit, async {
            let ResponseStart { response, payload, mut stream } = self.ask(request, None).await?;
            into.clear();
            if let Some(header) = payload {
                self.transfer("response payload").read_payload_into(&mut stream, header, into).await?;
                self.counters.received(into.len());
            }
            Ok(response)
        })
        .await
    }

    async fn within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, NetError>>,
    ) -> Result<T, NetError> {
        match timeout(limit, call).await {
            Ok(done) => done,
            Err(_) => Err(NetError::Timeout { peer: self.peer.clone(), what: "answer", after: limit }),
        }
    }

    /// A transfer without a stall limit: the call has a time limit as a whole, and the coordinator may use all of it
    /// for its answer.
    fn transfer(&self, part: &'static str) -> Transfer<'_> {
        Transfer { peer: &self.peer, part, stall: Duration::MAX }
    }

    /// Sends a request and its payload, and reads the response's header.
    async fn ask<Req: Serialize, Resp: DeserializeOwned>(
        &self,
        request: &Req,
        payload: Option<Bytes>,
    ) -> Result<ResponseStart<Resp>, NetError> {
        let payload_header = payload.as_ref().map(PayloadHeader::of);
        let frame =
            self.transfer("request header").frame(&payload_header, request, self.limits.max_header_bytes)?;
        let (mut send, mut receive) =
            self.connection.open_bi().await.map_err(|source| wire::closed(&self.peer, source))?;
        self.counters.exchange();
        match self.send(&mut send, &frame, payload).await {
            // The coordinator may answer and stop reading before the whole request has arrived, so the answer decides.
            Ok(()) | Err(NetError::Abandoned { .. }) => {}
            Err(error) => return Err(error),
        }

        let header = self.transfer("response header");
        let body = header.read_frame(&mut receive, self.limits.max_header_bytes).await?;
        match header.take(&body)? {
            (Status::Done(payload), rest) => {
                Ok(ResponseStart { response: header.last(rest)?, payload, stream: receive })
            }
            (Status::Refused(message), _) => Err(NetError::Refused { peer: self.peer.clone(), message }),
        }
    }

    async fn send(
        &self,
        stream: &mut quinn::SendStream,
        frame: &[u8],
        payload: Option<Bytes>,
    ) -> Result<(), NetError> {
        let stall = self.limits.stall_timeout;
        Transfer { peer: &self.peer, part: "request header", stall }.write(stream, frame).await?;
        if let Some(payload) = payload {
            let length = payload.len();
            // The coordinator may let a piece wait until it has memory for it. The call has a limit as a whole.
            self.transfer("request payload").write_payload(stream, payload).await?;
            self.counters.sent(length);
        }
        // An error means that the coordinator has stopped reading, as it does after an early answer.
        stream.finish().ok();
        Ok(())
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn plain_transfer(&self) -> Transfer<'_> {
        Transfer { peer: &self.peer, part: "plain bytes", stall: self.limits.stall_timeout }
    }

    /// Bytes and operations so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let mut traffic = self.counters.snapshot();
        traffic.add_connection(&self.connection.stats());
        traffic
    }

    /// Waits for the end of the connection and returns the reason.
    pub async fn closed(&self) -> NetError {
        wire::closed(&self.peer, self.connection.closed().await)
    }

    /// Closes the connection with a reason for the coordinator, and waits at most [`Limits::connect_timeout`] for its
    /// acknowledgement.
    pub async fn close(&self, reason: &str) {
        self.connection.close(code::DONE, reason.as_bytes());
        if timeout(self.limits.connect_timeout, self.endpoint.wait_idle()).await.is_err() {
            tracing::debug!("closed without the coordinator's acknowledgement");
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("peer", &self.peer).finish_non_exhaustive()
    }
}

fn wrong_token(token: &JoinToken, address: &str, reason: String) -> NetError {
    NetError::WrongToken { address: address.to_owned(), run_id: token.run_id.clone(), reason }
}

fn unreached(token: &JoinToken, attempts: String) -> NetError {
    NetError::Connect { run_id: token.run_id.clone(), attempts }
}

/// The error of a token that connects nowhere, from the errors of all attempts.
fn no_connection(token: &JoinToken, mut errors: Vec<NetError>) -> NetError {
    if errors.is_empty() {
        return unreached(token, "the token names no address".to_owned());
    }
    // A verified server has said so. The servers at the other addresses can't make the token valid.
    let of_the_token =
        |error: &NetError| matches!(error, NetError::Expired { .. } | NetError::Revoked { .. });
    // Otherwise the coordinator may come back at one of several addresses, unless foreign servers have them all.
    let first_counts = errors.len() == 1 || errors.iter().all(NetError::is_of_a_foreign_server);
    let telling = errors.iter().position(of_the_token).or(first_counts.then_some(0));
    if let Some(telling) = telling {
        return errors.swap_remove(telling);
    }
    let attempts = errors.into_iter().map(|error| match error {
        NetError::Connect { attempts, .. } => attempts,
        error => error.to_string(),
    });
    unreached(token, attempts.collect::<Vec<_>>().join(", "))
}

/// The error of a failed handshake. Before the server is `verified` anybody may have sent the close, so it says nothing
/// about the token: an honest server looks at the token only after its own verification.
fn judge(token: &JoinToken, address: &str, verified: bool, error: ConnectionError) -> NetError {
    let version = || NetError::Version { address: address.to_owned() };
    let peer = || format!("the coordinator at {address}");
    let may_pass = |reason: String| unreached(token, format!("{address}: {reason}"));
    match error {
        ConnectionError::VersionMismatch => version(),
        ConnectionError::TransportError(error) => match tls_alert(error.code) {
            Some(alert::NO_APPLICATION_PROTOCOL | alert::PROTOCOL_VERSION) => version(),
            Some(alert::CERTIFICATE_EXPIRED) => {
                let reason = "the coordinator's certificate has expired, or this machine's clock is wrong";
                wrong_token(token, address, reason.to_owned())
            }
            Some(_) => {
                let reason = format!("its certificate is not of this run ({})", error.reason);
                wrong_token(token, address, reason)
            }
            None => may_pass(error.to_string()),
        },
        ConnectionError::ConnectionClosed(close) => match tls_alert(close.error_code) {
            Some(alert::NO_APPLICATION_PROTOCOL | alert::PROTOCOL_VERSION) => version(),
            Some(alert::CERTIFICATE_EXPIRED) if verified => token.expired(),
            Some(_) => {
                let reason = "the coordinator does not accept the token's certificate";
                wrong_token(token, address, reason.to_owned())
            }
            None if close.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED => {
                NetError::Busy { peer: peer() }
            }
            None => may_pass(close.to_string()),
        },
        ConnectionError::ApplicationClosed(close) if close.error_code == code::BUSY => {
            NetError::Busy { peer: peer() }
        }
        ConnectionError::ApplicationClosed(close) if verified && close.error_code == code::REVOKED => {
            NetError::Revoked { peer: peer() }
        }
        other => may_pass(other.to_string()),
    }
}

/// TLS alerts (RFC 8446 §6).
mod alert {
    pub(super) const CERTIFICATE_EXPIRED: u8 = 45;
    pub(super) const PROTOCOL_VERSION: u8 = 70;
    pub(super) const NO_APPLICATION_PROTOCOL: u8 = 120;
}

/// QUIC carries a TLS alert as the error code `0x100 + alert` (RFC 9001 §4.8).
fn tls_alert(code: quinn::TransportErrorCode) -> Option<u8> {
    u8::try_from(u64::from(code).checked_sub(0x100)?).ok()
}

#[cfg(test)]
mod tests;
