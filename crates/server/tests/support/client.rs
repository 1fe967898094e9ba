//! A server on its own port, and a client over raw sockets.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;

use dipaco_infer::TextCodec;
use dipaco_server::{ServeConfig, ServedRun, ServerError, ServerState, serve};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fake::{Bytes, Fake};

pub struct Server {
    pub address: SocketAddr,
    pub state: Arc<ServerState>,
    pub model: Arc<Fake>,
    pub shutdown: CancellationToken,
    pub task: JoinHandle<Result<(), ServerError>>,
}

pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    /// Data of the events of a stream.
    pub fn events(&self) -> Vec<String> {
        let text = String::from_utf8(self.body.clone()).unwrap();
        text.split_terminator("\n\n")
            .filter_map(|e| e.strip_prefix("data: ").map(ToOwned::to_owned))
            .collect()
    }

    /// Status, message, type, param and code of an error in OpenAI's format.
    pub fn error(&self) -> (u16, String, String, Value, Value) {
        let body = self.json();
        let error = body["error"].as_object().unwrap();
        assert_eq!(error.keys().collect::<Vec<_>>(), ["code", "message", "param", "type"]);
        let text = |key: &str| error[key].as_str().unwrap().to_owned();
        (self.status, text("message"), text("type"), error["param"].clone(), error["code"].clone())
    }
}

impl Server {
    pub async fn start(config: ServeConfig) -> Self {
        Self::with_codec(config, Arc::new(Bytes)).await
    }

    pub async fn with_codec(config: ServeConfig, codec: Arc<dyn TextCodec>) -> Self {
        let model = Fake::new(400);
        let run = ServedRun {
            name: "tiny".into(),
            created: 1_700_000_000,
            version: "0.0.0".into(),
            commit: "c0ffee".into(),
            path_parameters: 10,
            total_parameters: 40,
            width: 8,
            path_bytes: 20,
            total_bytes: 80,
        };
        let state = ServerState::start(config, run, model.clone(), codec).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(serve(listener, Arc::clone(&state), shutdown.clone()));
        Self { address, state, model, shutdown, task }
    }

    pub async fn open(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(self.address).await.unwrap())
    }

    /// Sends a request and returns the connection.
    pub async fn begin(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> BufReader<TcpStream> {
        let mut stream = self.open().await;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        stream
    }

    pub async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        reply(self.begin(method, path, headers, body).await).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "", b"").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, JSON, body.to_string().as_bytes()).await
    }

    pub async fn complete(&self, body: Value) -> Reply {
        self.post("/v1/completions", &body).await
    }

    pub async fn metric(&self, line: &str) -> f64 {
        let text = String::from_utf8(self.get("/metrics").await.body).unwrap();
        let found = text.lines().find_map(|l| l.strip_prefix(line).and_then(|rest| rest.strip_prefix(' ')));
        found.unwrap_or_else(|| panic!("no {line} in\n{text}")).parse().unwrap()
    }
}

pub const JSON: &str = "content-type: application/json\r\n";

pub async fn head(stream: &mut BufReader<TcpStream>) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut head).await.unwrap(), 0, "the connection ended in the head: {head}");
    }
    head
}

pub async fn reply(mut stream: BufReader<TcpStream>) -> Reply {
    let head = head(&mut stream).await.replace("\r\n", "\n");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = Vec::new();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        while let Some(chunk) = chunk(&mut stream).await {
            body.extend(chunk);
        }
    } else {
        stream.read_to_end(&mut body).await.unwrap();
    }
    Reply { status, head, body }
}

/// The next chunk of a chunked body; `None` at its end.
pub async fn chunk(stream: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    let length = usize::from_str_radix(line.trim(), 16).unwrap();
    let mut chunk = vec![0; length + 2];
    stream.read_exact(&mut chunk).await.unwrap();
    chunk.truncate(length);
    (length > 0).then_some(chunk)
}
