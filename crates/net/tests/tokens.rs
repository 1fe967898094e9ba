//! Authorities and join tokens as text.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_net::{HelperToken, JoinToken, NetError, RunAuthority};
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
    let of_a_synchronizer = reason("dipaco-helper1.abcdef");
    assert!(of_a_synchronizer.contains("it is the token of a synchronizer"), "{of_a_synchronizer}");
    assert!(of_a_synchronizer.contains("the whole file secrets/join.token"), "{of_a_synchronizer}");
    let of_a_worker = line.parse::<HelperToken>().unwrap_err().to_string();
    assert!(of_a_worker.contains("it is the token of a worker"), "{of_a_worker}");
    assert!(of_a_worker.contains("the whole file secrets/synchronizer.token"), "{of_a_worker}");
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
    assert!(error.to_string().contains("give the file secrets/join.token"), "{error}");
    let of_a_synchronizer = HelperToken::read_from(&missing).unwrap_err().to_string();
    assert!(of_a_synchronizer.contains("can't read a token of a synchronizer"), "{of_a_synchronizer}");
    assert!(of_a_synchronizer.contains("give the file secrets/synchronizer.token"), "{of_a_synchronizer}");
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

/// A join token or a helper's token with its prefix, as bytes: the content of the line without base64 and checksum.
fn content(line: &str) -> Vec<u8> {
    let (_, encoded) = line.split_once('.').unwrap();
    let content = BASE64_URL_SAFE_NO_PAD.decode(encoded).unwrap();
    content[..content.len() - 4].to_vec()
}

/// The line of a token with this content, with a right checksum.
fn sealed(prefix: &str, content: &[u8]) -> String {
    let sum = blake3::hash(content);
    format!("{prefix}{}", BASE64_URL_SAFE_NO_PAD.encode([content, &sum.as_bytes()[..4]].concat()))
}

#[test]
fn damaged_tokens_are_refused_or_read() {
    let valid = |rng: &mut CaseRng| {
        let bytes =
            |rng: &mut CaseRng| (0..rng.random_range(0..40)).map(|_| rng.random()).collect::<Vec<u8>>();
        let token = JoinToken {
            run_id: "run".repeat(rng.random_range(0..5)),
            addresses: vec!["127.0.0.1:1".to_owned(); rng.random_range(0..4)],
            authority: bytes(rng),
            certificate: bytes(rng),
            key: bytes(rng),
            expires: rng.random(),
        };
        content(&token.to_string())
    };
    Campaign::new("join-token").memory(1 << 16).cases(5000).play(valid, |bytes| {
        // The line as text, and the same content behind a right checksum.
        let _ = String::from_utf8_lossy(bytes).parse::<JoinToken>();
        let _ = sealed("dipaco-helper1.", bytes).parse::<HelperToken>();
        let Ok(token) = sealed("dipaco1.", bytes).parse::<JoinToken>() else { return Reached::Inside };
        let _ = (token.check(now()), token.renew_at(now()));
        assert!(token.to_string().parse::<JoinToken>().unwrap() == token);
        Reached::Accepted
    });
}

#[test]
fn damaged_authorities_are_refused_or_read() {
    let pem = RunAuthority::create("run", now()).unwrap().to_pem();
    let other = RunAuthority::create("other", now()).unwrap().to_pem();
    let valid = |rng: &mut CaseRng| if rng.random() { pem.clone().into() } else { other.clone().into() };
    Campaign::new("authority").memory(1 << 18).past(0.1).play(valid, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        match RunAuthority::from_pem(&text) {
            Ok(authority) => {
                let _ = authority.issue("worker", "a", vec![], now(), DAY).unwrap();
                Reached::Accepted
            }
            Err(error) if error.to_string().contains("can't be read") => Reached::Outside,
            Err(_) => Reached::Inside,
        }
    });
}

proptest! {
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
