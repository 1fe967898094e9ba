//! An object store as a server: moto, which speaks S3, and a proxy before it that fails on purpose.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use crate::http;
use crate::process::{Process, Signal, clean};
use crate::python::interpreter;

/// The bucket that each server begins with.
pub const BUCKET: &str = "bucket";

/// A server of moto. It knows no accounts, and it forgets everything when it is dropped.
pub struct ObjectStore {
    process: Process,
    /// Its address, as `127.0.0.1:PORT`.
    pub address: String,
}

impl ObjectStore {
    /// Starts a server with an empty bucket. Returns `None`, with a message, when moto is not installed and this is not CI.
    ///
    /// # Panics
    /// In CI when moto is missing, and when the server does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        let python = interpreter("moto.server")?;
        let mut process =
            Process::start(clean(Command::new(python), ["-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]));
        let line = process.line_with("Running on http://");
        let address = line.split("http://").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
        let made = http::exchange(&address, &http::request("PUT", &format!("/{BUCKET}"), b""));
        assert_eq!(made.status, 200, "{made:?}");
        Some(Self { process, address })
    }

    /// Stops the server: it keeps its connections and what clients send, and answers nothing.
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets the stopped server go on. It then answers everything that has arrived meanwhile.
    pub fn go_on(&self) {
        self.process.signal(Signal::CONT);
    }
}

/// The environment with which a process reaches a server at `address`.
#[must_use]
pub fn environment(address: &str) -> Vec<(String, String)> {
    [
        ("AWS_ENDPOINT_URL", format!("http://{address}").as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "hush-hush"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// What the proxy does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Passes it on.
    None,
    /// Passes it on, and answers 503 in place of the answer.
    LoseReply,
    /// Passes it on, and closes the connection in place of the answer.
    CutReply,
    /// Answers with this status. The store never sees the request.
    Refuse(u16),
    /// Passes it on without its condition, as a store that does not know conditional writes.
    Unconditional,
    /// Takes it and never answers.
    Stall,
}

/// A request that the proxy has seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its number, from 1.
    pub number: usize,
    /// Method and target.
    pub line: String,
    /// Header lines, in lower case.
    pub head: String,
    /// Length of its body in bytes.
    pub sent: usize,
    /// Length of the answer's body in bytes.
    pub received: usize,
}

impl Seen {
    /// True for the creation of an object that must not exist.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.line.starts_with("PUT ") && self.head.contains("if-none-match:")
    }
}

/// A proxy before a server.
pub struct FaultyProxy {
    /// Its address, as `127.0.0.1:PORT`.
    pub address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl FaultyProxy {
    /// Starts a proxy; `fault` decides about each request. It ends with the process.
    ///
    /// # Panics
    /// When no port is free.
    #[must_use]
    pub fn before(server: &ObjectStore, fault: impl Fn(&Seen) -> Fault + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (log, fault, server) = (seen.clone(), Arc::new(fault), server.address.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (log, fault, server) = (log.clone(), fault.clone(), server.clone());
                std::thread::spawn(move || pass(stream, &server, &*fault, &log));
            }
        });
        Self { address, seen }
    }

    /// The requests so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves one request and closes the connection.
fn pass(mut client: TcpStream, server: &str, fault: &dyn Fn(&Seen) -> Fault, log: &Mutex<Vec<Seen>>) {
    let Some((line, head, body)) = read_request(&mut client) else { return };
    let (number, seen) = {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        let number = log.len() + 1;
        let seen =
            Seen { number, line: line.clone(), head: head.to_lowercase(), sent: body.len(), received: 0 };
        log.push(seen.clone());
        (number, seen)
    };
    let fault = fault(&seen);
    match fault {
        Fault::Refuse(status) => return answer(client, status),
        Fault::Stall => {
            // Ends when the client gives up.
            let _ = client.read(&mut [0]);
            return;
        }
        _ => {}
    }
    let kept = head.lines().filter(|header| {
        let header = header.to_lowercase();
        let condition = header.starts_with("if-none-match:") && fault == Fault::Unconditional;
        !header.starts_with("connection:") && !condition
    });
    let head: String = kept.map(|header| format!("{header}\r\n")).collect();
    let mut upstream = http::connect(server);
    upstream.write_all(format!("{line} HTTP/1.1\r\n{head}connection: close\r\n\r\n").as_bytes()).unwrap();
    upstream.write_all(&body).unwrap();
    let mut reply = Vec::new();
    let _ = upstream.read_to_end(&mut reply);
    let at = reply.windows(4).position(|end| end == b"\r\n\r\n").map_or(reply.len(), |at| at + 4);
    log.lock().unwrap_or_else(PoisonError::into_inner)[number - 1].received = reply.len() - at;
    match fault {
        Fault::LoseReply => answer(client, 503),
        Fault::CutReply => {}
        _ => drop(client.write_all(&reply)),
    }
}

fn answer(mut client: TcpStream, status: u16) {
    let _ = write!(client, "HTTP/1.1 {status} Fault\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
}

/// Method and target, header lines, body.
fn read_request(client: &mut TcpStream) -> Option<(String, String, Vec<u8>)> {
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            break at;
        }
        match client.read(&mut piece) {
            Ok(read @ 1..) => bytes.extend_from_slice(&piece[..read]),
            _ => return None,
        }
    };
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let (line, head) = text.split_once("\r\n")?;
    let length = |header: &str| header.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok();
    let length: usize = head.lines().find_map(length).unwrap_or(0);
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        match client.read(&mut piece) {
            Ok(read @ 1..) => body.extend_from_slice(&piece[..read]),
            _ => return None,
        }
    }
    Some((line.rsplit_once(' ')?.0.to_owned(), head.to_owned(), body))
}
