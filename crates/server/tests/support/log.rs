//! The log of a test.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tracing::subscriber::DefaultGuard;

/// Lines of the log as JSON.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Takes the lines of this thread from now on, until the guard is dropped. A server of a test runs on the test's thread.
    pub fn listen() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The same with lines for people, as the program writes them.
    pub fn listen_as_people() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt().compact().without_time().with_target(false).with_ansi(false);
        let subscriber = lines.with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The lines as they are.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The fields of the lines with this message, in order.
    pub fn lines(&self, message: &str) -> Vec<Value> {
        let text = self.text();
        let fields = |line: &str| serde_json::from_str::<Value>(line).unwrap()["fields"].take();
        text.lines().map(fields).filter(|fields| fields["message"] == message).collect()
    }

    /// The ids of the requests within which there are lines with this message, in order.
    pub fn ids(&self, message: &str) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let own = lines.filter(|line| line["fields"]["message"] == message);
        own.map(|mut line| line["span"]["id"].take()).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
