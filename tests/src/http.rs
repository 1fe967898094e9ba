//! HTTP/1.1 by hand, for requests that a client library would not send.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The head, status line included, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Asserts an error of OpenAI's shape and returns its `error` object.
    #[must_use]
    pub fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        let error = self.json()["error"].clone();
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "no {key}: {self:?}");
        }
        error
    }
}

/// Connects to a server, with limits on the time of reading and writing.
#[must_use]
pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// The bytes of a request with a JSON body.
#[must_use]
pub fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Sends bytes and reads the answer to the end of the connection.
#[must_use]
pub fn exchange(address: &str, bytes: &[u8]) -> Answer {
    let mut stream = connect(address);
    // A server that refuses early closes the connection while bytes are still on their way; only its answer counts.
    let _ = stream.write_all(bytes);
    answer(stream)
}

/// Reads an answer to the end of the connection.
#[must_use]
pub fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        bytes.extend_from_slice(&piece[..read]);
    }
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// `GET path`.
#[must_use]
pub fn get(address: &str, path: &str) -> Answer {
    exchange(address, &request("GET", path, b""))
}

/// `POST path` with JSON.
#[must_use]
pub fn post(address: &str, path: &str, body: &Value) -> Answer {
    exchange(address, &request("POST", path, body.to_string().as_bytes()))
}
