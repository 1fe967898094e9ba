//! Tests of what a failed handshake says about the token.

use std::net::UdpSocket;

use quinn::{ApplicationClose, ConnectionClose, TransportErrorCode};

use super::*;
use crate::{RunAuthority, Server};

fn token() -> JoinToken {
    JoinToken {
        run_id: "run".to_owned(),
        addresses: Vec::new(),
        authority: Vec::new(),
        certificate: Vec::new(),
        key: Vec::new(),
        expires: 1,
    }
}

#[test]
fn only_a_verified_server_says_that_the_token_is_not_valid() {
    let token = token();
    let error_code = TransportErrorCode::crypto(alert::CERTIFICATE_EXPIRED);
    let expired = ConnectionClose { error_code, frame_type: None, reason: Bytes::new() };
    let expired =
        |verified| judge(&token, "a:1", verified, ConnectionError::ConnectionClosed(expired.clone()));
    assert!(matches!(expired(true), NetError::Expired { .. }));
    // The coordinator may have moved, and the token may be valid there.
    assert!(expired(false).is_of_a_foreign_server());

    let revoked = ApplicationClose { error_code: code::REVOKED, reason: Bytes::new() };
    let revoked =
        |verified| judge(&token, "a:1", verified, ConnectionError::ApplicationClosed(revoked.clone()));
    assert!(matches!(revoked(true), NetError::Revoked { .. }));
    assert!(matches!(revoked(false), NetError::Connect { .. }));
}

#[test]
fn an_error_of_several_addresses_has_the_reason_of_each() {
    let token = token();
    let busy = || NetError::Busy { peer: "the coordinator at a:1".to_owned() };
    let foreign = || wrong_token(&token, "b:1", "it is another run's".to_owned());
    let silent = || unreached(&token, "c:1: no answer".to_owned());
    assert!(matches!(no_connection(&token, vec![busy()]), NetError::Busy { .. }));
    assert!(matches!(no_connection(&token, vec![foreign(), foreign()]), NetError::WrongToken { .. }));
    let error = no_connection(&token, vec![busy(), foreign(), silent()]);
    let NetError::Connect { attempts, .. } = error else { panic!("{error}") };
    for reason in ["limit of peers", "another run's", "c:1: no answer"] {
        assert!(attempts.contains(reason), "{attempts}");
    }
    let error = no_connection(&token, vec![silent(), token.expired(), foreign()]);
    assert!(matches!(error, NetError::Expired { .. }), "{error}");
}

#[tokio::test]
async fn a_silent_address_of_a_name_keeps_nobody_from_the_others() {
    const DAY: Duration = Duration::from_secs(86_400);
    let (now, loopback) = (SystemTime::now(), SocketAddr::from(([127, 0, 0, 1], 0)));
    let authority = RunAuthority::create("run", now).unwrap();
    let server = Server::bind(loopback, &authority.server(now, DAY).unwrap(), Limits::default()).unwrap();
    let token = authority.issue("worker", "a", vec!["a:1".to_owned()], now, DAY).unwrap();
    let limits = Limits { connect_timeout: DAY, idle_timeout: DAY, ..Limits::default() };
    let mut config = quinn::ClientConfig::new(Arc::new(tls::client_config(&token, now).unwrap()));
    config.transport_config(transport::transport(&limits, Accepts::Welcome).unwrap());
    let silent = UdpSocket::bind(loopback).unwrap();
    let targets = vec![silent.local_addr().unwrap(), server.local_addr()];
    let connecting = Client::connect_to_one(Service::Coordinator, &token, "a:1", targets, &config, &limits);
    let client = connecting.await.unwrap();
    assert_eq!(client.connection().remote_address(), server.local_addr());
}
