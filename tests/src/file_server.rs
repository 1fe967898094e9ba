//! A web server that gives the files of a folder, as they are at the time of each request.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Names of the files that were asked for, and the news of one more.
type Log = (Mutex<Vec<String>>, Condvar);

/// A server on loopback. It ends with the process.
pub struct FileServer {
    /// Its address, as `127.0.0.1:PORT`.
    pub address: String,
    asked: Arc<Log>,
}

impl FileServer {
    /// Starts a server of the files in `folder`.
    ///
    /// # Panics
    /// When no port is free.
    #[must_use]
    pub fn start(folder: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked: Arc<Log> = Arc::default();
        let log = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                answer(stream, &folder, &log);
            }
        });
        Self { address, asked }
    }

    /// The files that were asked for so far, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        self.asked.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until a file was asked for so many times.
    ///
    /// # Panics
    /// After a minute.
    pub fn wait_for(&self, file: &str, times: usize) {
        let asked = self.asked.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fewer = |names: &mut Vec<String>| names.iter().filter(|name| *name == file).count() < times;
        let (names, waited) = self
            .asked
            .1
            .wait_timeout_while(asked, Duration::from_secs(60), fewer)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "{file} was not asked for {times} times: {names:?}");
    }
}

/// Answers one request and closes the connection.
fn answer(mut stream: TcpStream, folder: &Path, log: &Log) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let target = head.split(' ').nth(1).unwrap_or_default();
    let name = target.split('?').next().unwrap_or_default().trim_start_matches('/').to_owned();
    let (status, body) = match std::fs::read(folder.join(&name)) {
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", Vec::new()),
    };
    log.0.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    log.1.notify_all();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(&[head.as_bytes(), &body].concat());
}
