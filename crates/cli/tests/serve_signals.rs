//! Signals to a server: SIGHUP ends none, and signals at once are one request to stop.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

mod support;

use support::{FIXTURES, succeeds};

/// Far more time than a server needs, so that a hang fails instead of blocking everything.
const LIMIT: Duration = Duration::from_secs(100);

/// A server, which is killed when this is dropped.
struct Server {
    child: Child,
    lines: Receiver<String>,
    /// Its log as far as it has been read.
    log: String,
    deadline: Instant,
}

impl Server {
    /// Serves a run at a free port.
    fn start(run: &str, words: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_dipaco"))
            .args(["serve", "--run", run, "--address", "0"])
            .args(words)
            .env_remove("RUST_LOG")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { child, lines, log: String::new(), deadline: Instant::now() + LIMIT }
    }

    /// Reads the log up to its next line; `None` at its end.
    fn line(&mut self) -> Option<String> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => {
                self.log += &format!("{line}\n");
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("it hangs:\n{}", self.log),
        }
    }

    /// Reads the log up to a line that holds `text`.
    fn says(&mut self, text: &str) {
        while let Some(line) = self.line() {
            if line.contains(text) {
                return;
            }
        }
        panic!("it did not say {text:?}:\n{}", self.log);
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Reads the rest of the log, and returns the exit code and all of the log.
    fn finish(mut self) -> (Option<i32>, String) {
        while self.line().is_some() {}
        (self.child.wait().unwrap().code(), std::mem::take(&mut self.log))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prepares text in a new run.
fn prepared(folder: &tempfile::TempDir) -> String {
    let run = folder.path().join("run").to_str().unwrap().to_owned();
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus"));
    let short = ["--set", "seed_model.steps=4", "--set", "train.rounds=1", "--set", "train.inner_steps=2"];
    succeeds(&[&["prepare", "--config", &config, "--run", &run, &text][..], &short].concat());
    run
}

#[test]
fn a_hangup_while_the_run_is_loaded_ends_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let run = prepared(&folder);
    // A store that never answers.
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", store.local_addr().unwrap());
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("NO_PROXY", "127.0.0.1"),
    ];
    let mut server = Server::start(&run, &["--set", "run.store=s3://bucket/run"], &variables);
    server.says("loading e2e");
    server.signal(Signal::HUP);
    server.says("SIGHUP: the run is not served now");
    server.signal(Signal::TERM);
    let (code, log) = server.finish();
    assert_eq!(code, Some(130), "{log}");
}

#[test]
fn a_server_outlives_a_hangup_and_signals_at_once_stop_it_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let run = prepared(&folder);
    for step in [&["seed"][..], &["route", "fit"], &["route", "assign"], &["train", "--workers", "1"]] {
        succeeds(&[step, &["--run", &run]].concat());
    }
    let mut server = Server::start(&run, &[], &[("DIPACO_API_KEYS", "key")]);
    server.says("serving e2e");
    server.signal(Signal::HUP);
    server.says("SIGHUP: there is no key file to read again");
    // Both signals are there when the process goes on.
    server.signal(Signal::STOP);
    waitpid(Some(server.pid()), WaitOptions::UNTRACED).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::CONT] {
        server.signal(signal);
    }
    let (code, log) = server.finish();
    assert!(code == Some(0) && log.contains("shutting down"), "{code:?}: {log}");
    let pins = fs::read_dir(format!("{run}/store/readers")).map_or(0, Iterator::count);
    assert_eq!(pins, 0, "{log}");

    let keys = folder.path().join("keys");
    fs::write(&keys, "key\n").unwrap();
    let mut server = Server::start(&run, &["--set", &format!("serve.api_keys={}", keys.display())], &[]);
    server.says("serving e2e");
    server.signal(Signal::HUP);
    server.says("SIGHUP: reading the API keys again");
    server.signal(Signal::TERM);
    let (code, log) = server.finish();
    assert_eq!(code, Some(0), "{log}");
}
