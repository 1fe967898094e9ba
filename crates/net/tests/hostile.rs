//! Peers without admission, and admitted peers that misbehave.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dipaco_net::{Client, JoinToken, Limits, NetError, PROTOCOL, RunAuthority, Server};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ConnectionError, Endpoint, Incoming};
use rustls::RootCertStore;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use support::{DAY, Run, loopback};

/// An upper bound; no test waits for its end.
const LONG: Duration = Duration::from_secs(60);

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn key(der: &[u8]) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(der.to_vec()).into()
}

impl Run {
    fn token(&self) -> JoinToken {
        self.token_of(&self.authority, SystemTime::now())
    }

    fn token_of(&self, authority: &RunAuthority, now: SystemTime) -> JoinToken {
        let addresses = vec![self.server.local_addr().to_string()];
        authority.issue("worker", "a", addresses, now, DAY).unwrap()
    }

    /// An honest worker gets an answer, whatever happened before.
    async fn still_serves(&self) {
        let client = connect(&self.token()).await.unwrap();
        let serve = async {
            // Peers that have left are still in the queue.
            let (peer, mut exchange) = loop {
                let peer = self.server.accept().await.unwrap();
                if let Some(exchange) = peer.accept_exchange().await {
                    break (peer, exchange);
                }
            };
            let round = exchange.request::<u64>().await.unwrap();
            exchange.respond(&round, None).await.unwrap();
            peer
        };
        let (answer, _peer) = tokio::join!(client.call::<u64, u64>(&3, None, 0, LONG), serve);
        assert_eq!(answer.unwrap().0, 3);
    }
}

async fn connect(token: &JoinToken) -> Result<Client, NetError> {
    Client::connect(token, SystemTime::now(), Limits::default()).await
}

/// A client with any protocol, and with any certificate or none.
fn raw_client(authority: &[u8], protocol: &str, identity: Option<&JoinToken>) -> Endpoint {
    let mut roots = RootCertStore::empty();
    roots.add(authority.to_vec().into()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        Some(token) => {
            config.with_client_auth_cert(vec![token.certificate.clone().into()], key(&token.key)).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let mut endpoint = Endpoint::client(loopback()).unwrap();
    let config = QuicClientConfig::try_from(config).unwrap();
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(config)));
    endpoint
}

/// A server with the certificate of `identity` and any protocol, which completes handshakes.
fn raw_server(identity: &JoinToken, protocol: &str) -> Endpoint {
    raw_server_that(identity, protocol, |incoming| async move { drop(incoming.await) })
}

/// A server with the certificate of `identity` and any protocol, which treats each handshake in this way.
fn raw_server_that<F: Future<Output = ()> + Send + 'static>(
    identity: &JoinToken,
    protocol: &str,
    treat: impl Fn(Incoming) -> F + Send + 'static,
) -> Endpoint {
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![identity.certificate.clone().into()], key(&identity.key))
        .unwrap();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let config = Arc::new(QuicServerConfig::try_from(config).unwrap());
    let endpoint = Endpoint::server(quinn::ServerConfig::with_crypto(config), loopback()).unwrap();
    let listening = endpoint.clone();
    tokio::spawn(async move {
        while let Some(incoming) = listening.accept().await {
            tokio::spawn(treat(incoming));
        }
    });
    endpoint
}

async fn rejection(client: &Endpoint, server: &Server) -> ConnectionError {
    let connecting = client.connect(server.local_addr(), "dipaco-coordinator").unwrap();
    match connecting.await {
        // In TLS 1.3 the client's handshake ends before the server has seen its certificate.
        Ok(connection) => connection.closed().await,
        Err(error) => error,
    }
}

#[tokio::test]
async fn garbage_on_the_port_harms_nobody() {
    let run = Run::new(Limits::default());
    let socket = UdpSocket::bind(loopback()).unwrap();
    for length in [0, 1, 20, 1200, 1400] {
        for first in [0x00, 0x40, 0xc0, 0xff] {
            let mut datagram: Vec<u8> = (0..length).map(|i| (i * 37 + 11) as u8).collect();
            if let Some(byte) = datagram.first_mut() {
                *byte = first;
            }
            socket.send_to(&datagram, run.server.local_addr()).unwrap();
        }
    }
    run.still_serves().await;
}

#[tokio::test]
async fn a_client_without_a_certificate_is_not_admitted() {
    let run = Run::new(Limits::default());
    let client = raw_client(&run.token().authority, PROTOCOL, None);
    let error = rejection(&client, &run.server).await;
    assert!(error.to_string().contains("cryptographic handshake failed: error 116"), "{error}");
    run.still_serves().await;
}

#[tokio::test]
async fn a_client_of_another_protocol_version_is_not_admitted() {
    let run = Run::new(Limits::default());
    let token = run.token();
    let client = raw_client(&token.authority, "dipaco/999", Some(&token));
    let error = rejection(&client, &run.server).await;
    assert!(error.to_string().contains("error 120"), "{error}");
    run.still_serves().await;
}

#[tokio::test]
async fn a_coordinator_of_another_protocol_version_is_told() {
    let run = Run::new(Limits::default());
    let mut token = run.token();
    let other = raw_server(&token, "dipaco/999");
    token.addresses = vec![other.local_addr().unwrap().to_string()];
    let error = connect(&token).await.unwrap_err();
    assert!(matches!(error, NetError::Version { .. }), "{error}");
    assert!(error.to_string().contains(PROTOCOL), "{error}");
}

#[tokio::test]
async fn a_worker_can_not_pose_as_the_coordinator() {
    let run = Run::new(Limits::default());
    let mut token = run.token();
    let impostor = raw_server(&token, PROTOCOL);
    token.addresses = vec![impostor.local_addr().unwrap().to_string()];
    let error = connect(&token).await.unwrap_err();
    assert!(matches!(error, NetError::WrongToken { .. }), "{error}");
}

#[tokio::test]
async fn a_foreign_server_at_one_address_hides_no_other() {
    let run = Run::new(Limits::default());
    let mut token = run.token();
    let impostor = raw_server(&token, PROTOCOL).local_addr().unwrap().to_string();
    let other = raw_server(&token, "dipaco/999");
    let other = other.local_addr().unwrap().to_string();
    let right = token.addresses[0].clone();
    token.addresses = vec![impostor.clone(), other.clone(), right];
    connect(&token).await.unwrap();
    // Nobody listens at the last address: the coordinator may come back there.
    token.addresses = vec![impostor, other, "no-such-host.invalid:1".to_owned()];
    let error = connect(&token).await.unwrap_err();
    assert!(matches!(error, NetError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("do not belong together"), "{error}");
}

/// The coordinator's certificate and key, in place of those of a token.
fn coordinator(run: &Run) -> JoinToken {
    let identity = run.authority.server(SystemTime::now(), DAY).unwrap();
    // The bytes of an identity begin with these fields.
    let (run_id, authority, certificate, key): (String, Vec<u8>, Vec<u8>, Vec<u8>) =
        postcard::from_bytes(&postcard::to_stdvec(&identity).unwrap()).unwrap();
    JoinToken { run_id, addresses: Vec::new(), authority, certificate, key, expires: u64::MAX }
}

#[tokio::test]
async fn an_error_at_one_address_hides_no_other() {
    let run = Run::new(Limits::default());
    let token = run.token();
    let refusing = raw_server_that(&token, PROTOCOL, |incoming| async move { incoming.refuse() });
    let stopping = raw_server_that(&coordinator(&run), PROTOCOL, |incoming| async move {
        let connection = incoming.await.unwrap();
        let mut welcome = connection.open_uni().await.unwrap();
        welcome.write_all(&[1]).await.unwrap(); // the first byte of a length
        welcome.finish().unwrap();
        connection.closed().await;
    });
    let revoking = run.authority.server(SystemTime::now(), DAY).unwrap();
    let revoking = Server::bind(loopback(), &revoking, Limits::default()).unwrap();
    revoking.revoke(["a".to_owned()].into());

    let [refusing, stopping] = [refusing, stopping].map(|server| server.local_addr().unwrap());
    let to = |addresses: &[SocketAddr]| {
        let addresses = addresses.iter().map(ToString::to_string).collect();
        JoinToken { addresses, ..token.clone() }
    };
    let (revoked, right) = (revoking.local_addr(), run.server.local_addr());
    for first in [refusing, stopping, revoked] {
        connect(&to(&[first, right])).await.unwrap();
    }

    let error = connect(&to(&[refusing, stopping])).await.unwrap_err();
    let NetError::Connect { attempts, .. } = &error else { panic!("{error}") };
    assert!(attempts.contains("limit of peers") && attempts.contains("its welcome"), "{attempts}");
    let error = connect(&to(&[refusing, revoked, stopping])).await.unwrap_err();
    assert!(matches!(error, NetError::Revoked { .. }), "{error}");
    // The only address of a token has its own error.
    assert!(matches!(connect(&to(&[refusing])).await, Err(NetError::Busy { .. })));
    assert!(matches!(connect(&to(&[stopping])).await, Err(NetError::Abandoned { .. })));
}

#[tokio::test]
async fn the_first_end_that_sees_a_token_of_another_run_refuses_it() {
    let run = Run::new(Limits::default());
    let other = RunAuthority::create("other-run", SystemTime::now()).unwrap();
    let foreign = run.token_of(&other, SystemTime::now());
    let error = connect(&foreign).await.unwrap_err();
    assert!(matches!(error, NetError::WrongToken { .. }), "{error}");
    assert!(error.to_string().contains("run `other-run`"), "{error}");

    let forged = JoinToken { authority: run.token().authority, ..foreign };
    let error = connect(&forged).await.unwrap_err();
    assert!(matches!(error, NetError::WrongToken { .. }), "{error}");
    assert!(error.to_string().contains("does not accept the token's certificate"), "{error}");

    let renamed = JoinToken { run_id: "other-run".to_owned(), ..run.token() };
    let error = connect(&renamed).await.unwrap_err();
    assert!(error.to_string().contains("the coordinator leads run `run`"), "{error}");
    run.still_serves().await;
}

#[tokio::test]
async fn expired_certificates_are_refused_by_both_ends() {
    let run = Run::new(Limits::default());
    let past = SystemTime::now() - 3 * DAY;
    let expired = run.token_of(&run.authority, past);
    assert!(matches!(connect(&expired).await, Err(NetError::Expired { .. })));
    // The date in the token only improves the error text; the certificate decides.
    let edited = JoinToken { expires: u64::MAX, ..expired };
    assert!(matches!(connect(&edited).await, Err(NetError::Expired { .. })));

    let identity = run.authority.server(past, DAY).unwrap();
    let server = Server::bind(loopback(), &identity, Limits::default()).unwrap();
    let token = JoinToken { addresses: vec![server.local_addr().to_string()], ..run.token() };
    let error = connect(&token).await.unwrap_err();
    assert!(error.to_string().contains("the coordinator's certificate has expired"), "{error}");
    run.still_serves().await;
}

#[tokio::test]
async fn the_error_of_a_silent_address_names_it() {
    let run = Run::new(Limits::default());
    let silent = UdpSocket::bind(loopback()).unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let limits = Limits { connect_timeout: Duration::from_millis(50), ..Limits::default() };
    let token = JoinToken { addresses: vec!["no port".to_owned(), address.clone()], ..run.token() };
    let error = Client::connect(&token, SystemTime::now(), limits).await.unwrap_err();
    assert!(matches!(error, NetError::Connect { .. }), "{error}");
    assert!(error.to_string().contains(&address) && error.to_string().contains("no port"), "{error}");

    let nowhere = JoinToken { addresses: vec![], ..run.token() };
    assert!(connect(&nowhere).await.unwrap_err().to_string().contains("names no address"));
    let second =
        JoinToken { addresses: vec!["no port".to_owned(), run.token().addresses[0].clone()], ..run.token() };
    connect(&second).await.unwrap();
}

#[tokio::test]
async fn a_peer_over_the_limit_gets_busy_and_later_the_place_of_a_peer_that_left() {
    let run = Run::new(Limits { max_peers: 1, ..Limits::default() });
    let first = connect(&run.token()).await.unwrap();
    let peer = run.server.accept().await.unwrap();
    let error = connect(&run.token()).await.unwrap_err();
    assert!(matches!(error, NetError::Busy { .. }), "{error}");
    first.close("leaves").await;
    assert!(matches!(peer.closed().await, NetError::Closed { .. }));
    run.still_serves().await;
}

#[tokio::test]
async fn invalid_frames_are_refused_and_the_connection_stands() {
    let run = Run::new(Limits { max_header_bytes: 1000, ..Limits::default() });
    let token = run.token();
    let client = raw_client(&token.authority, PROTOCOL, Some(&token));
    let connection = client.connect(run.server.local_addr(), "dipaco-coordinator").unwrap().await.unwrap();
    let peer = run.server.accept().await.unwrap();

    let frame = |body: &[u8]| {
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&blake3::hash(body).as_bytes()[..4]);
        frame.extend_from_slice(body);
        frame
    };
    let huge_payload = [&[1][..], &[0xff; 9], &[1], &[3]].concat(); // u64::MAX bytes follow, it says
    let cut_payload = [&frame(&[1, 3, 3]), &b"ab"[..]].concat();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("more than the limit of 1000", vec![0xff; 8]),
        ("arrived damaged", [&[3, 0, 0, 0, 9, 9, 9, 9][..], b"abc"].concat()),
        ("gave up the operation", vec![3, 0, 0]),
        ("gave up the operation", Vec::new()),
        ("not a message", frame(&[7, 7, 7])),
        ("not a message", frame(&[])),
        ("18446744073709551615 bytes, more than the limit of 16", frame(&huge_payload)),
        ("gave up the operation", cut_payload),
    ];
    for (expected, bytes) in cases {
        let lie = async {
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&bytes).await.unwrap();
            send.finish().unwrap();
            receive.read_to_end(4096).await.unwrap()
        };
        let serve = async {
            let mut exchange = peer.accept_exchange().await.unwrap();
            match exchange.request::<u8>().await {
                Ok(_) => exchange.receive_payload(16).await.map(|_| ()),
                Err(error) => Err(error),
            }
        };
        let (answer, served) = tokio::join!(lie, serve);
        let error = served.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        // The peer gets the same text, in a frame.
        assert!(String::from_utf8_lossy(&answer).contains(expected), "{expected}: {answer:?}");
    }
    drop((connection, peer));
    run.still_serves().await;
}

#[tokio::test]
async fn a_request_that_never_comes_times_out() {
    let run = Run::new(Limits { header_timeout: Duration::from_millis(50), ..Limits::default() });
    let token = run.token();
    let client = raw_client(&token.authority, PROTOCOL, Some(&token));
    let connection = client.connect(run.server.local_addr(), "dipaco-coordinator").unwrap().await.unwrap();
    let peer = run.server.accept().await.unwrap();
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    send.write_all(&[1]).await.unwrap(); // the first byte of a length
    let error = peer.accept_exchange().await.unwrap().request::<u8>().await.unwrap_err();
    assert!(matches!(error, NetError::Timeout { .. }), "{error}");
    assert_eq!(error.to_string().matches("worker `a`").count(), 1, "{error}");
}
