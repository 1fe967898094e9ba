//! Reading through links from servers that answer in every way.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpListener;

use bytes::BytesMut;
use dipaco_store::{LinkError, LinkReader};

/// A server that gives this answer to every request, and remembers the last request. Returns a link to it.
fn server(answer: &'static str) -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = format!("http://{}/bucket/object?signature=hush", listener.local_addr().unwrap());
    let (send, requests) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                request.push(byte[0]);
            }
            let _ = send.send(String::from_utf8(request).unwrap().to_lowercase());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (link, requests)
}

async fn read(link: &str) -> Result<Vec<u8>, LinkError> {
    let mut into = BytesMut::with_capacity(5);
    LinkReader::new().unwrap().read(link, 2..7, &mut into).await.map(|()| into.to_vec())
}

const PART: &str = "HTTP/1.1 206 Partial Content\r\nconnection: close\r\n";

#[tokio::test]
async fn a_part_of_an_object_is_read_without_credentials() {
    let (link, requests) = server("HTTP/1.1 206 Partial Content\r\ncontent-length: 5\r\n\r\nhello");
    assert_eq!(read(&link).await.unwrap(), b"hello");
    let request = requests.recv().unwrap();
    assert!(
        request.starts_with("get /bucket/object?signature=hush ") && request.contains("range: bytes=2-6")
    );
    assert!(!request.contains("authorization") && !request.contains("cookie"), "{request}");
}

#[tokio::test]
async fn another_number_of_bytes_is_an_error_and_never_more_than_the_part_is_taken() {
    let long = Box::leak(format!("{PART}content-length: 6\r\n\r\nhello!").into_boxed_str());
    let endless = Box::leak(format!("{PART}\r\n{}", "hello".repeat(100_000)).into_boxed_str());
    let short = Box::leak(format!("{PART}content-length: 4\r\n\r\nhell").into_boxed_str());
    for answer in [long, endless, short] {
        let (link, _requests) = server(answer);
        let error = read(&link).await.unwrap_err();
        assert!(matches!(error, LinkError::OtherContent) && error.lasts(), "{error}");
    }
    let cut = Box::leak(format!("{PART}content-length: 5\r\n\r\nhell").into_boxed_str());
    let (link, _requests) = server(cut);
    let error = read(&link).await.unwrap_err();
    assert!(matches!(error, LinkError::Broken { .. }) && !error.lasts(), "{error}");
}

#[tokio::test]
async fn a_refusal_is_told_apart_from_a_busy_store_and_a_deleted_object() {
    let lasting = [
        (403, "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", true),
        // The whole object where a part was asked for.
        (200, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", true),
        // A redirection is not followed: it may lead anywhere.
        (302, "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n", true),
        (404, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", false),
        (503, "HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\n\r\n", false),
    ];
    for (expected, answer, lasts) in lasting {
        let (link, _requests) = server(answer);
        let error = read(&link).await.unwrap_err();
        let LinkError::Refused { status } = error else { panic!("{error}") };
        assert_eq!((status, error.lasts()), (expected, lasts));
    }
}

#[tokio::test]
async fn errors_do_not_hold_the_link() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for link in [format!("http://{closed}/object?signature=hush"), "ftp://hush".into(), "hush".into()] {
        let error = read(&link).await.unwrap_err();
        assert!(matches!(error, LinkError::Unreachable { .. }) && error.lasts(), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
    }
}
