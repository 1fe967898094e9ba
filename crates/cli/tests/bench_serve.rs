//! `bench serve` against a server that refuses requests.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

mod support;

use support::dipaco;

/// Reads a request to its end.
fn read_request(stream: &TcpStream) {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
}

#[test]
fn a_load_test_whose_requests_are_invalid_fails_after_its_report() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let stream = "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n";
        let refusal = r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#;
        for (status, body) in
            [("200 OK", stream), ("429 Too Many Requests", "{}"), ("400 Bad Request", refusal)]
        {
            let (mut client, _) = listener.accept().unwrap();
            read_request(&client);
            let length = body.len();
            write!(
                client,
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    let words = ["bench", "serve", "--url", &url, "--requests", "3", "--warm-up", "0", "--clients", "1"];
    let (code, out, err) = dipaco(&words);
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("1 completed, 1 refused, 1 failed"), "{out}");
    let said = "1 of 3 requests were refused as invalid: status 400 (context_length_exceeded); lower --prompt-tokens";
    assert!(err.contains(said), "{err}");
}
