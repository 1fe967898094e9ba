//! Tests of what a failed handshake says about the token.

use quinn::{ApplicationClose, ConnectionClose, TransportErrorCode};

use super::*;

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
