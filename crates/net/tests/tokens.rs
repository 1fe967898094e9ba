//! Authorities and join tokens as text.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::{Duration, SystemTime};

use dipaco_net::{JoinToken, NetError, RunAuthority};
use proptest::prelude::*;

const DAY: Duration = Duration::from_secs(86_400);

/// 2026-01-02 03:04:05 UTC.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_323_045)
}

fn token() -> JoinToken {
    let authority = RunAuthority::create("c4-16x16", now()).unwrap();
    let addresses = vec!["10.0.0.1:7411".to_owned(), "train.example.org:7411".to_owned()];
    authority.issue("worker", "gpu-3", addresses, now(), DAY).unwrap()
}

fn reason(text: &str) -> String {
    match text.parse::<JoinToken>() {
        Err(error @ NetError::Token { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_token_is_one_line_and_survives_a_terminal_that_wraps_it() {
    let token = token();
    let line = token.to_string();
    assert!(line.starts_with("dipaco1.") && !line.contains(char::is_whitespace));
    assert!(line.len() < 2000, "{} characters", line.len());
    assert_eq!(line.parse::<JoinToken>().unwrap(), token);
    let wrapped: String =
        line.as_bytes().chunks(80).map(|part| format!("  {}\r\n", str::from_utf8(part).unwrap())).collect();
    assert_eq!(wrapped.parse::<JoinToken>().unwrap(), token);
}

#[test]
fn errors_of_invalid_tokens_differ() {
    let line = token().to_string();
    assert!(reason("").contains("empty"));
    assert!(reason("hello").contains("does not start with `dipaco1.`"));
    assert!(reason("dipaco2.abcdef").contains("another version"));
    assert!(reason("dipaco1.!!!").contains("does not belong there"));
    assert!(reason("dipaco1.").contains("end is missing"));
    assert!(reason(&line[..line.len() - 40]).contains("end is missing"));
    assert!(reason(&"x".repeat(1 << 20)).contains("too long"));
}

#[test]
fn a_token_is_read_from_a_file() {
    let token = token();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("dipaco.token");
    std::fs::write(&file, format!("{token}\n")).unwrap();
    assert_eq!(JoinToken::read_from(&file).unwrap(), token);
    let missing = directory.path().join("missing");
    let error = JoinToken::read_from(&missing).unwrap_err();
    assert!(matches!(error, NetError::TokenFile { .. }), "{error}");
    std::fs::write(&file, [0xff; 10]).unwrap();
    assert!(matches!(JoinToken::read_from(&file), Err(NetError::TokenFile { .. })));
}

#[test]
fn an_expired_token_names_its_date() {
    let token = token();
    token.check(now()).unwrap();
    token.check(now() + DAY - Duration::from_secs(1)).unwrap();
    let error = token.check(now() + DAY).unwrap_err();
    assert!(matches!(error, NetError::Expired { .. }));
    assert!(error.to_string().contains("`c4-16x16` expired on 2026-01-03T03:04:05Z"), "{error}");
}

#[test]
fn secrets_are_not_in_debug_output() {
    let authority = RunAuthority::create("run", now()).unwrap();
    let token = authority.issue("worker", "a", vec![], now(), DAY).unwrap();
    let shown = format!("{token:?} {authority:?} {:?}", authority.server(now(), DAY).unwrap());
    assert!(shown.len() < 300 && !shown.contains("key"), "{shown}");
}

#[test]
fn an_authority_read_from_its_text_issues_tokens() {
    let authority = RunAuthority::create("run", now()).unwrap();
    let read = RunAuthority::from_pem(&authority.to_pem()).unwrap();
    assert_eq!((read.run_id(), read.to_pem()), ("run", authority.to_pem()));
    let token = read.issue("worker", "a", vec![], now(), DAY).unwrap();
    assert_eq!(token.authority, authority.issue("worker", "b", vec![], now(), DAY).unwrap().authority);
}

#[test]
fn errors_of_damaged_authorities_differ() {
    let pem = RunAuthority::create("run", now()).unwrap().to_pem();
    let other = RunAuthority::create("run", now()).unwrap().to_pem();
    let key_at = pem.find("-----BEGIN PRIVATE").unwrap();
    let mixed = format!("{}{}", &pem[..key_at], &other[other.find("-----BEGIN PRIVATE").unwrap()..]);
    for (text, expected) in [
        ("", "does not name the run"),
        (&pem[..key_at], "key can't be read"),
        (&pem.replace("BEGIN CERTIFICATE", "BEGIN SOMETHING"), "certificate can't be read"),
        (&mixed, "do not belong together"),
    ] {
        let error = RunAuthority::from_pem(text).unwrap_err();
        assert!(matches!(error, NetError::Authority { .. }));
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn run_ids_that_a_certificate_can_not_hold_are_refused() {
    for run_id in ["", "a b", "ä", &"x".repeat(65)] {
        let error = RunAuthority::create(run_id, now()).unwrap_err();
        assert!(matches!(error, NetError::Setting { what: "run id", .. }), "{error}");
    }
}

#[test]
fn times_that_no_certificate_can_hold_are_refused() {
    let authority = RunAuthority::create("run", now()).unwrap();
    let error = authority.issue("worker", "a", vec![], now(), Duration::MAX).unwrap_err();
    assert!(matches!(error, NetError::Setting { what: "lifetime", .. }), "{error}");
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
    assert!(matches!(authority.server(far, DAY), Err(NetError::Setting { what: "time", .. })));
    authority.issue("worker", "a", vec![], SystemTime::UNIX_EPOCH, DAY).unwrap();
}

proptest! {
    #[test]
    fn arbitrary_text_is_no_token_and_no_authority(text in "\\PC{0,200}") {
        prop_assert!(text.parse::<JoinToken>().is_err());
        let prefixed = format!("dipaco1.{text}").parse::<JoinToken>();
        prop_assert!(prefixed.is_err());
        prop_assert!(RunAuthority::from_pem(&text).is_err());
        let pem = format!("dipaco run: x\n-----BEGIN CERTIFICATE-----\n{text}");
        prop_assert!(RunAuthority::from_pem(&pem).is_err());
    }

    #[test]
    fn any_mistyped_character_is_found(at: prop::sample::Index, typed in "[A-Za-z0-9_-]") {
        let token = JoinToken {
            run_id: "run".to_owned(),
            addresses: vec!["127.0.0.1:1".to_owned()],
            authority: vec![1; 40],
            certificate: vec![2; 40],
            key: vec![3; 20],
            expires: 1,
        };
        let line = token.to_string();
        let at = at.index(line.len());
        let mistyped = format!("{}{typed}{}", &line[..at], &line[at + 1..]);
        prop_assert!(mistyped == line || mistyped.parse::<JoinToken>().is_err());
    }
}
