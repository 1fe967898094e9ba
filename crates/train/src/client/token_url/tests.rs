//! Addresses of tokens, and servers that answer in every way.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;

/// A server that gives this answer to every request. Returns its address.
fn server(answer: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                request.push(byte[0]);
            }
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn fetch(answer: String) -> Result<String, TokenUrlError> {
    TokenUrl::parse(&format!("http://user:hush@{}/join.token?hush=1", server(answer))).unwrap().fetch()
}

#[test]
fn a_token_travels_over_tls_or_within_the_machine_only() {
    for good in [
        "https://host.example/join.token",
        "https://10.0.0.1:8443/a?signature=x",
        "http://127.0.0.1:80/x",
        "http://localhost/x",
        "http://[::1]:8080/x",
    ] {
        assert!(TokenUrl::is_meant(good) && TokenUrl::parse(good).is_ok(), "{good}");
    }
    for open in [
        "http://host.example/x",
        "http://10.0.0.1/x",
        "http://localhost.example/x",
        "http://127.0.0.1@host/x",
    ] {
        let error = TokenUrl::parse(open).unwrap_err();
        assert!(error.to_string().contains("use https://") && !error.passes(), "{open}: {error}");
    }
    for wrong in ["https://", "https:///x", "http://user:hush@/x", "https://a b/"] {
        let error = TokenUrl::parse(wrong).unwrap_err().to_string();
        assert!(error.contains("https://HOST/join.token") && !error.contains("hush"), "{wrong}: {error}");
    }
    for file in ["join.token", "/https://x", "https:/x", "-", "ftp://host/x"] {
        assert!(!TokenUrl::is_meant(file), "{file}");
    }
}

#[test]
fn what_may_be_secret_in_an_address_is_never_shown() {
    for (text, secret) in [
        ("https://host:1/a/join.token", false),
        ("https://user:hush@host:1/a/join.token", true),
        ("https://host:1/a/join.token?hush", true),
    ] {
        let url = TokenUrl::parse(text).unwrap();
        assert_eq!(url.may_hold_secret(), secret, "{text}");
        assert_eq!(format!("{url} {url:?}"), ["https://host:1/a/join.token"; 2].join(" "));
    }
}

#[test]
fn the_text_at_the_address_is_fetched() {
    assert_eq!(fetch(answer("200 OK", "dipaco1.x\n")).unwrap(), "dipaco1.x\n");
}

#[test]
fn errors_say_what_the_server_did_and_hold_no_secret() {
    let refused = |status: u16| format!("HTTP status {status}");
    let long = "dipaco1.hush".repeat(10_000);
    let cases = [
        (answer("404 Not Found", "hush"), refused(404), true),
        (answer("503 Busy", "hush"), refused(503), true),
        (answer("403 Forbidden", "hush"), refused(403), false),
        (
            "HTTP/1.1 302 Found\r\nlocation: https://hush.example/\r\ncontent-length: 0\r\n\r\n".to_owned(),
            refused(302),
            false,
        ),
        (answer("200 OK", &long), "something else than a token".to_owned(), false),
        // More than it says, without an end.
        (
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{long}"),
            "something else than a token".to_owned(),
            false,
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nhush".to_owned(), "can't be fetched".to_owned(), true),
        ("hush".to_owned(), "can't be fetched".to_owned(), true),
    ];
    for (answer, expected, passes) in cases {
        let error = fetch(answer).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(&expected) && text.contains("/join.token"), "{text}");
        assert!(!text.contains("hush"), "{text}");
        assert_eq!(error.passes(), passes, "{text}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = TokenUrl::parse(&format!("http://{closed}/join.token?hush")).unwrap().fetch().unwrap_err();
    assert!(
        matches!(&error, TokenUrlError::Unreachable { .. }) && !error.to_string().contains("hush"),
        "{error}"
    );
}
