//! A worker's end.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use quinn::{Connection, ConnectionError, Endpoint, EndpointConfig, TokioRuntime};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::tls::COORDINATOR_NAME;
use crate::traffic::Counters;
use crate::transport::{self, Accepts, code};
use crate::wire::{self, Announced, Link, Status, Welcome};
use crate::{JoinToken, Limits, NetError, Traffic, tls};

/// A verified connection to a run's coordinator. Dropping it closes the connection.
///
/// Calls may run at the same time, each on a stream of its own. It does not reconnect: after [`NetError::Lost`] or
/// [`NetError::Closed`] connect again.
pub struct Client {
    endpoint: Endpoint,
    connection: Connection,
    peer: String,
    limits: Limits,
    counters: Counters,
}

impl Client {
    /// Connects to the first of the token's addresses that answers, and waits until both ends have verified each
    /// other. Each address has [`Limits::connect_timeout`].
    ///
    /// # Errors
    /// [`NetError::Expired`], [`NetError::WrongToken`], [`NetError::Version`], [`NetError::Busy`] and
    /// [`NetError::Connect`] (nobody answers).
    pub async fn connect(token: &JoinToken, now: SystemTime, limits: Limits) -> Result<Self, NetError> {
        token.check(now)?;
        let mut config = quinn::ClientConfig::new(Arc::new(tls::client_config(token)?));
        config.transport_config(transport::transport(&limits, Accepts::Welcome)?);

        let mut attempts = Vec::new();
        for address in &token.addresses {
            let targets = match timeout(limits.connect_timeout, tokio::net::lookup_host(address)).await {
                Ok(Ok(targets)) => targets.collect::<Vec<_>>(),
                Ok(Err(error)) => {
                    attempts.push(format!("{address} can't be resolved ({error})"));
                    continue;
                }
                Err(_) => {
                    attempts.push(format!("{address} was not resolved in time"));
                    continue;
                }
            };
            for target in targets {
                match Self::attempt(token, address, target, config.clone(), &limits).await? {
                    Ok(client) => return Ok(client),
                    Err(reason) => attempts.push(format!("{address}: {reason}")),
                }
            }
        }
        if attempts.is_empty() {
            attempts.push("the token names no address".to_owned());
        }
        Err(NetError::Connect { run_id: token.run_id.clone(), attempts: attempts.join(", ") })
    }

    /// The inner error is a reason to try the next address, the outer one is final.
    async fn attempt(
        token: &JoinToken,
        address: &str,
        target: SocketAddr,
        config: quinn::ClientConfig,
        limits: &Limits,
    ) -> Result<Result<Self, String>, NetError> {
        let any = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let mut endpoint_config = EndpointConfig::default();
        transport::set_datagram_size(&mut endpoint_config)?;
        let opened = transport::socket(SocketAddr::new(any, 0))
            .and_then(|socket| Endpoint::new(endpoint_config, None, socket, Arc::new(TokioRuntime)));
        let endpoint = match opened {
            Ok(endpoint) => endpoint,
            Err(error) => return Ok(Err(format!("no UDP socket can be opened ({error})"))),
        };
        let connecting = match endpoint.connect_with(config, target, COORDINATOR_NAME) {
            Ok(connecting) => connecting,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let handshake = async {
            let connection = connecting.await?;
            // The coordinator verifies this end after this end has verified it: only its welcome says that all is well.
            let stream = connection.accept_uni().await?;
            Ok::<_, ConnectionError>((connection, stream))
        };
        let (connection, mut stream) = match timeout(limits.connect_timeout, handshake).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => return judge(token, address, error).map(Err),
            Err(_) => {
                return Ok(Err(format!("no answer within {} s", limits.connect_timeout.as_secs_f64())));
            }
        };
        let peer = format!("the coordinator at {address}");
        let link = Link { peer: &peer, what: "welcome", stall: limits.connect_timeout };
        let body = link.read_frame(&mut stream, limits.max_header_bytes).await?;
        let (Welcome { run_id }, _) = link.take(&body)?;
        if run_id != token.run_id {
            return Err(wrong_token(token, address, format!("the coordinator leads run `{run_id}`")));
        }
        Ok(Ok(Self { endpoint, connection, peer, limits: limits.clone(), counters: Counters::default() }))
    }

    /// Performs one operation: sends `request` and perhaps a payload, and waits at most `limit` for the response and
    /// its payload of at most `max_response_payload` bytes. Giving up (a timeout, or dropping the future) tells the
    /// coordinator.
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
        match timeout(limit, self.perform(request, payload, max_response_payload)).await {
            Ok(done) => done,
            Err(_) => Err(NetError::Timeout { peer: self.peer.clone(), what: "answer", after: limit }),
        }
    }

    async fn perform<Req: Serialize, Resp: DeserializeOwned>(
        &self,
        request: &Req,
        payload: Option<Bytes>,
        max_response_payload: u64,
    ) -> Result<(Resp, Option<Bytes>), NetError> {
        // The whole call has a time limit, and the coordinator may think for as long as that.
        let link = |what| Link { peer: &self.peer, what, stall: Duration::MAX };
        let announced = match &payload {
            Some(payload) => Some(Announced::of(payload).await),
            None => None,
        };
        let frame = link("request header").frame(&announced, request, self.limits.max_header_bytes)?;
        let (mut send, mut receive) =
            self.connection.open_bi().await.map_err(|source| wire::closed(&self.peer, source))?;
        self.counters.exchange();
        match self.send(&mut send, &frame, payload.as_ref()).await {
            // The coordinator may answer before it has read everything, and then stops reading.
            Ok(()) | Err(NetError::Abandoned { .. }) => {}
            Err(error) => return Err(error),
        }

        let header = link("response header");
        let body = header.read_frame(&mut receive, self.limits.max_header_bytes).await?;
        let (announced, rest) = match header.take(&body)? {
            (Status::Done(announced), rest) => (announced, rest),
            (Status::Refused(message), _) => {
                return Err(NetError::Refused { peer: self.peer.clone(), message });
            }
        };
        let response = header.last(rest)?;
        let Some(announced) = announced else { return Ok((response, None)) };
        let payload =
            link("response payload").read_payload(&mut receive, announced, max_response_payload).await?;
        self.counters.received(payload.len());
        Ok((response, Some(payload)))
    }

    async fn send(
        &self,
        stream: &mut quinn::SendStream,
        frame: &[u8],
        payload: Option<&Bytes>,
    ) -> Result<(), NetError> {
        let stall = self.limits.stall_timeout;
        Link { peer: &self.peer, what: "request header", stall }.write(stream, frame).await?;
        if let Some(payload) = payload {
            Link { peer: &self.peer, what: "request payload", stall }.write(stream, payload).await?;
            self.counters.sent(payload.len());
        }
        // An error means that the coordinator has stopped reading, which is no failure.
        stream.finish().ok();
        Ok(())
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn plain_link(&self) -> Link<'_> {
        Link { peer: &self.peer, what: "plain bytes", stall: self.limits.stall_timeout }
    }

    /// What has passed through so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let mut traffic = self.counters.snapshot();
        traffic.add_connection(&self.connection.stats());
        traffic
    }

    /// Waits until the connection has ended and says why.
    pub async fn closed(&self) -> NetError {
        wire::closed(&self.peer, self.connection.closed().await)
    }

    /// Closes the connection with a reason for the coordinator and waits (bounded) until it is told.
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

/// Whether a failed handshake is final for every address (the error) or only for this one (its reason).
fn judge(token: &JoinToken, address: &str, error: ConnectionError) -> Result<String, NetError> {
    let version = || NetError::Version { address: address.to_owned() };
    match error {
        ConnectionError::VersionMismatch => Err(version()),
        ConnectionError::TransportError(error) => match tls_alert(error.code) {
            Some(alert::NO_APPLICATION_PROTOCOL | alert::PROTOCOL_VERSION) => Err(version()),
            Some(alert::CERTIFICATE_EXPIRED) => {
                let reason = "the coordinator's certificate has expired, or this machine's clock is wrong";
                Err(wrong_token(token, address, reason.to_owned()))
            }
            Some(_) => {
                let reason = format!("its certificate is not one of this run ({})", error.reason);
                Err(wrong_token(token, address, reason))
            }
            None => Ok(error.to_string()),
        },
        ConnectionError::ConnectionClosed(close) => match tls_alert(close.error_code) {
            Some(alert::NO_APPLICATION_PROTOCOL | alert::PROTOCOL_VERSION) => Err(version()),
            Some(alert::CERTIFICATE_EXPIRED) => Err(token.expired()),
            Some(_) => {
                let reason = "the coordinator does not accept the token's certificate";
                Err(wrong_token(token, address, reason.to_owned()))
            }
            None if close.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED => {
                Err(NetError::Busy { peer: format!("the coordinator at {address}") })
            }
            None => Ok(close.to_string()),
        },
        ConnectionError::ApplicationClosed(close) if close.error_code == code::BUSY => {
            Err(NetError::Busy { peer: format!("the coordinator at {address}") })
        }
        other => Ok(other.to_string()),
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
