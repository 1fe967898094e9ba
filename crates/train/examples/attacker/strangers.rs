//! Handshakes that begin and never end.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use dipaco_net::{COORDINATOR_NAME, JoinToken, PROTOCOL};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, Connection, DatagramEvent, Endpoint, EndpointConfig};
use rustls::RootCertStore;
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use crate::Failure;

/// How long a stranger repeats itself until the server answers.
const PERSISTENCE: Duration = Duration::from_secs(5);
/// Addresses of the strangers, beside that of honest workers on this machine.
const OTHER_ADDRESSES: u64 = 250;

/// Begins so many handshakes a minute. `own` of ten come from the address of the honest workers.
pub(crate) async fn begin_handshakes(
    token: JoinToken,
    duration: Duration,
    each_minute: u32,
    own: u32,
) -> Result<Value, Failure> {
    let first = token.addresses.first().ok_or("the token has no address")?;
    let server = tokio::net::lookup_host(first).await?.next().ok_or("the token has no address")?;
    let (config, begun) = (stranger_config()?, Arc::new(AtomicU64::new(0)));
    let mut ticks = interval(Duration::from_mins(1) / each_minute);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut strangers, mut number, started) = (JoinSet::new(), 0_u64, Instant::now());
    while started.elapsed() < duration {
        ticks.tick().await;
        let from = if number % 10 < u64::from(own) {
            Ipv4Addr::LOCALHOST
        } else {
            Ipv4Addr::new(127, 0, 1, (1 + number % OTHER_ADDRESSES) as u8)
        };
        number += 1;
        let (config, begun) = (config.clone(), begun.clone());
        strangers.spawn(async move {
            // The handshake of a stranger without an answer counts as not begun.
            if let Ok(Ok(())) = timeout(PERSISTENCE, half_open(config, server, from.into())).await {
                begun.fetch_add(1, Ordering::Relaxed);
            }
        });
        while strangers.try_join_next().is_some() {}
    }
    let seconds = started.elapsed().as_secs_f64();
    let begun = begun.load(Ordering::Relaxed);
    Ok(
        json!({ "started": number, "begun": begun, "seconds": seconds, "begun_each_minute": begun as f64 * 60.0 / seconds }),
    )
}

/// What a stranger knows: the protocol. It has no certificate, and hears of none.
fn stranger_config() -> Result<ClientConfig, Failure> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    tls.alpn_protocols = vec![PROTOCOL.as_bytes().to_vec()];
    Ok(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)))
}

/// Begins a handshake, proves its address if the server demands it (QUIC Retry), and falls silent when the server has
/// answered with its part of the handshake.
async fn half_open(config: ClientConfig, server: SocketAddr, from: IpAddr) -> Result<(), Failure> {
    let socket = UdpSocket::bind((from, 0)).await?;
    socket.connect(server).await?;
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, false, None);
    let (_, mut connection) = endpoint.connect(Instant::now(), config, server, COORDINATOR_NAME)?;
    let mut received = vec![0; 2048];
    loop {
        send(&mut connection, &socket).await?;
        let repeats = connection.poll_timeout().ok_or("the stranger has nothing to wait for")?;
        tokio::select! {
            length = socket.recv(&mut received) => {
                let datagram = &received[..length?];
                let is_retry = datagram.first().is_some_and(|first| first & 0xf0 == 0xf0);
                if !is_retry {
                    return Ok(());
                }
                let (datagram, mut answer) = (BytesMut::from(datagram), Vec::new());
                let event = endpoint.handle(Instant::now(), server, None, None, datagram, &mut answer);
                if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                    connection.handle_event(event);
                }
            }
            () = sleep_until(repeats.into()) => connection.handle_timeout(Instant::now()),
        }
    }
}

/// Sends what the connection wants to send.
async fn send(connection: &mut Connection, socket: &UdpSocket) -> Result<(), Failure> {
    let mut datagram = Vec::new();
    while connection.poll_transmit(Instant::now(), 1, &mut datagram).is_some() {
        socket.send(&datagram).await?;
        datagram.clear();
    }
    Ok(())
}
