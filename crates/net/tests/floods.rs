//! Strangers and token holders that want to keep others out, or to fill the memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dipaco_net::{Client, JoinToken, Limits, NetError, PROTOCOL, PeerMemory};
use quinn::Endpoint;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::RootCertStore;
use rustls::pki_types::PrivatePkcs8KeyDer;
use support::{DAY, Run, loopback};
use tokio::net::UdpSocket;
use tokio::sync::oneshot;

impl Run {
    fn token(&self, name: &str) -> JoinToken {
        let addresses = vec![self.server.local_addr().to_string()];
        self.authority.issue("worker", name, addresses, SystemTime::now(), DAY).unwrap()
    }
}

async fn connect(token: &JoinToken) -> Result<Client, NetError> {
    Client::connect(token, SystemTime::now(), Limits::default()).await
}

/// A QUIC client with the certificate of a token, or with none.
fn raw_client(authority: &[u8], identity: Option<&JoinToken>) -> Endpoint {
    raw_client_at(loopback(), authority, identity)
}

fn raw_client_at(address: SocketAddr, authority: &[u8], identity: Option<&JoinToken>) -> Endpoint {
    let mut roots = RootCertStore::empty();
    roots.add(authority.to_vec().into()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        Some(token) => {
            let key = PrivatePkcs8KeyDer::from(token.key.clone()).into();
            config.with_client_auth_cert(vec![token.certificate.clone().into()], key).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![PROTOCOL.as_bytes().to_vec()];
    let mut endpoint = Endpoint::client(address).unwrap();
    let config = QuicClientConfig::try_from(config).unwrap();
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(config)));
    endpoint
}

/// Passes datagrams to the server, and back only its demands for a proof of the address (QUIC Retry). A client behind it
/// therefore begins a handshake and never ends it. The receiver hears of the first datagram that went to the server.
async fn half_open(server: SocketAddr) -> (SocketAddr, oneshot::Receiver<()>) {
    let front = UdpSocket::bind(loopback()).await.unwrap();
    let back = UdpSocket::bind(loopback()).await.unwrap();
    let address = front.local_addr().unwrap();
    let (begun, has_begun) = oneshot::channel();
    tokio::spawn(async move {
        let (mut to_server, mut to_client) = ([0; 65_535], [0; 65_535]);
        let (mut client, mut begun) = (None, Some(begun));
        loop {
            tokio::select! {
                Ok((length, from)) = front.recv_from(&mut to_server) => {
                    client = Some(from);
                    back.send_to(&to_server[..length], server).await.unwrap();
                    // Fails only when the test has ended.
                    let _ = begun.take().map(|begun| begun.send(()));
                }
                Ok((length, _)) = back.recv_from(&mut to_client) => {
                    let is_retry = to_client[0] & 0xf0 == 0xf0;
                    if let (true, Some(client)) = (is_retry, client) {
                        front.send_to(&to_client[..length], client).await.unwrap();
                    }
                }
            }
        }
    });
    (address, has_begun)
}

#[tokio::test]
async fn half_open_handshakes_keep_nobody_out() {
    // The flood holds its places for longer than the test runs.
    let run = Run::new(Limits { connect_timeout: 10 * DAY, max_handshakes: 16, ..Limits::default() });
    let token = run.token("honest");
    let mut flood = Vec::new();
    for _ in 0..40 {
        let endpoint = raw_client(&token.authority, None);
        let (through, has_begun) = half_open(run.server.local_addr()).await;
        let connecting = endpoint.connect(through, "dipaco-coordinator").unwrap();
        flood.push((endpoint, tokio::spawn(connecting.into_future())));
        has_begun.await.unwrap();
    }
    let begun = Instant::now();
    connect(&token).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn one_token_does_not_take_the_places_of_another() {
    let run = Run::new(Limits { max_peers_per_token: 2, ..Limits::default() });
    let (greedy, other) = (run.token("greedy"), run.token("other"));
    let held = [connect(&greedy).await.unwrap(), connect(&greedy).await.unwrap()];
    assert!(matches!(connect(&greedy).await, Err(NetError::Busy { .. })));
    connect(&other).await.unwrap();
    drop(held);
}

/// A server whose places two colluding tokens hold: 8 and 1 of 9.
async fn besieged() -> (Run, Vec<Client>, Client) {
    let run = Run::new(Limits { max_peers: 9, max_peers_per_token: 8, ..Limits::default() });
    let (large, small) = (run.token("large"), run.token("small"));
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(connect(&large).await.unwrap());
    }
    let other = connect(&small).await.unwrap();
    assert_eq!(run.server.peers(), 9);
    (run, held, other)
}

/// Waits until the server has ended a connection for another one.
async fn gives_way(client: Client) {
    let closed = tokio::time::timeout(Duration::from_secs(60), client.closed()).await;
    assert!(matches!(closed, Ok(NetError::Busy { .. })), "{closed:?}");
}

#[tokio::test]
async fn two_tokens_that_hold_all_places_keep_no_third_out() {
    let (run, mut held, other) = besieged().await;
    let mut admitted = Vec::new();
    while let Ok(client) = connect(&run.token("third")).await {
        // The newest connection of the largest token.
        gives_way(held.pop().unwrap()).await;
        admitted.push(client);
    }
    assert_eq!((held.len(), admitted.len(), run.server.peers()), (5, 3, 9));
    // Who gave way does not come back: an honest worker of a large token would be ended again and again.
    for name in ["large", "third"] {
        assert!(matches!(connect(&run.token(name)).await, Err(NetError::Busy { .. })), "{name}");
    }
    assert_eq!(run.server.peers(), 9);
    drop((other, admitted));
}

#[tokio::test]
async fn a_place_that_was_given_away_is_not_freed_a_second_time() {
    let (run, mut held, _other) = besieged().await;
    let third = connect(&run.token("third")).await.unwrap();
    gives_way(held.pop().unwrap()).await;
    third.close("leaves").await;
    while run.server.peers() > 8 {
        tokio::task::yield_now().await;
    }
    let back = connect(&run.token("large")).await.unwrap();
    assert_eq!(run.server.peers(), 9);
    assert!(matches!(connect(&run.token("large")).await, Err(NetError::Busy { .. })));
    drop((held, back));
}

// Only Linux has more than one address of its own without any setting.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_address_with_all_places_of_a_token_keeps_no_other_address_out() {
    let run = Run::new(Limits { max_peers_per_token: 4, ..Limits::default() });
    let token = run.token("copied");
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(connect(&token).await.unwrap());
    }
    let elsewhere = raw_client_at("127.0.0.2:0".parse().unwrap(), &token.authority, Some(&token));
    let mut admitted = Vec::new();
    loop {
        let connection = elsewhere.connect(run.server.local_addr(), "dipaco-coordinator").unwrap();
        let connection = connection.await.unwrap();
        if connection.accept_uni().await.is_err() {
            break;
        }
        gives_way(held.pop().unwrap()).await;
        admitted.push(connection);
    }
    assert_eq!((held.len(), admitted.len()), (3, 1));
    assert!(matches!(connect(&token).await, Err(NetError::Busy { .. })));
    connect(&run.token("other")).await.unwrap();
}

#[tokio::test]
async fn a_revoked_token_loses_its_connection_and_gets_no_place() {
    let run = Run::new(Limits { max_peers: 2, max_peers_per_token: 1, ..Limits::default() });
    let (lost, good) = (run.token("lost"), run.token("good"));
    let (held, other) = (connect(&lost).await.unwrap(), connect(&run.token("other")).await.unwrap());
    let waiting = run.server.accept().await.unwrap();
    assert!(matches!(connect(&good).await, Err(NetError::Busy { .. })));
    run.server.revoke(["lost".to_owned()].into());
    assert!(matches!(held.closed().await, NetError::Revoked { .. }));
    waiting.closed().await;
    let error = connect(&lost).await.unwrap_err();
    assert!(matches!(error, NetError::Revoked { .. }), "{error}");
    // The place is free, although the holder of the revoked token never closed anything.
    let good = connect(&good).await.unwrap();
    assert_eq!(run.server.peers(), 2);
    drop((good, other));
}

#[tokio::test]
async fn a_payload_that_trickles_is_given_up() {
    let limits = Limits { stall_timeout: Duration::from_millis(200), ..Limits::default() };
    let run = Run::new(limits);
    let token = run.token("slow");
    let client = raw_client(&token.authority, Some(&token));
    let connection = client.connect(run.server.local_addr(), "dipaco-coordinator").unwrap().await.unwrap();
    let peer = run.server.accept().await.unwrap();
    let bring = async {
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        let body = [1, 8, 3];
        let mut frame = 3u32.to_le_bytes().to_vec();
        frame.extend_from_slice(&blake3::hash(&body).as_bytes()[..4]);
        frame.extend_from_slice(&body);
        send.write_all(&frame).await.unwrap();
        // Each byte arrives well within the limit for a stall, all eight would take three times the limit.
        while send.write_all(&[7]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(80)).await;
        }
    };
    let serve = async {
        let mut exchange = peer.accept_exchange().await.unwrap();
        assert_eq!(exchange.request::<u8>().await.unwrap(), 3);
        exchange.receive_payload(16).await.unwrap_err()
    };
    let ((), error) = tokio::join!(bring, serve);
    assert!(matches!(error, NetError::Timeout { .. }), "{error}");
}

/// Connects, sends a request and leaves. Returns whether there was memory for a piece at once, and the request's memory.
async fn visit(run: &Run, token: &JoinToken, piece: u64) -> (bool, PeerMemory) {
    let client = connect(token).await.unwrap();
    let serve = async {
        let peer = run.server.accept().await.unwrap();
        let mut exchange = peer.accept_exchange().await.unwrap();
        assert_eq!(exchange.request::<u8>().await.unwrap(), 3);
        let at_once = tokio::time::timeout(Duration::ZERO, exchange.reserve(piece)).await.is_ok();
        let memory = exchange.take_memory();
        exchange.respond(&4_u8, None).await.unwrap();
        (peer, at_once, memory)
    };
    let (answer, (peer, at_once, memory)) = tokio::join!(client.call::<u8, u8>(&3, None, 0, DAY), serve);
    assert_eq!(answer.unwrap().0, 4);
    drop((client, peer));
    while run.server.peers() > 0 {
        tokio::task::yield_now().await;
    }
    (at_once, memory)
}

#[tokio::test]
async fn memory_that_outlives_its_connection_counts_against_the_next_one() {
    let run = Run::new(Limits { token_piece_bytes: 8 << 10, ..Limits::default() });
    let (copied, other) = (run.token("copied"), run.token("other"));
    let (at_once, held) = visit(&run, &copied, 8 << 10).await;
    assert!(at_once);
    assert!(!visit(&run, &copied, 1).await.0);
    assert!(visit(&run, &other, 8 << 10).await.0);
    drop(held);
    assert!(visit(&run, &copied, 8 << 10).await.0);
}

#[tokio::test]
async fn an_answer_that_outgrows_a_frame_is_a_refusal_with_the_reason() {
    let run = Run::new(Limits { max_header_bytes: 1000, ..Limits::default() });
    let client = connect(&run.token("a")).await.unwrap();
    let peer = run.server.accept().await.unwrap();
    let serve = async {
        let mut exchange = peer.accept_exchange().await.unwrap();
        assert_eq!(exchange.request::<u8>().await.unwrap(), 3);
        exchange.respond(&"x".repeat(2000), None).await.unwrap_err()
    };
    let (answer, error) = tokio::join!(client.call::<u8, String>(&3, None, 0, DAY), serve);
    assert!(matches!(error, NetError::TooLarge { .. }), "{error}");
    match answer.unwrap_err() {
        NetError::Refused { message, .. } => {
            assert!(message.contains("more than the limit of 1000"), "{message}");
        }
        other => panic!("{other}"),
    }
}
