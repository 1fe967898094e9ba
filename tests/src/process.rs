//! The program under test as a child process that can't outlive its test.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::Pid;
pub use rustix::process::Signal;

/// How long any command may take: far more than it needs, so that a hang fails instead of blocking everything.
pub const LIMIT: Duration = Duration::from_secs(100);

/// The binary, which `cargo build --bin dipaco` puts two folders above a test's own executable.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn dipaco() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let binary = own.parent().and_then(|deps| deps.parent()).unwrap().join("dipaco");
    assert!(binary.exists(), "{} is missing: run cargo build --bin dipaco first", binary.display());
    binary
}

/// A command of the program, without settings of the caller's environment that would change what it does.
pub fn command(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    clean(Command::new(dipaco()), args)
}

/// The same through another program, such as a shell that sets limits first.
pub fn clean(mut command: Command, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    command.args(args).env_remove("RUST_LOG").env("NO_COLOR", "1").stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DIPACO_")) {
        command.env_remove(name);
    }
    command
}

/// What a command left behind.
#[derive(Clone, Debug)]
pub struct Output {
    /// The command, for messages.
    pub what: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    fn all(&self) -> String {
        format!("{}\n{}\n--- stdout\n{}\n--- stderr\n{}", self.what, self.status, self.stdout, self.stderr)
    }

    /// Asserts that the command succeeded without a panic.
    #[must_use]
    pub fn succeeded(self) -> Self {
        assert!(self.status.success() && !self.stderr.contains("panicked"), "should succeed: {}", self.all());
        self
    }

    /// Asserts that the command failed with `code`, did not panic, and said each of `says` on standard error.
    #[must_use]
    pub fn failed(self, code: i32, says: &[&str]) -> Self {
        assert_eq!(self.status.code(), Some(code), "wrong exit code: {}", self.all());
        assert!(!self.stderr.contains("panicked"), "it panicked: {}", self.all());
        for text in says {
            assert!(self.stderr.contains(text), "does not say `{text}`: {}", self.all());
        }
        self
    }

    /// Asserts that standard output holds `text`.
    #[must_use]
    pub fn says(self, text: &str) -> Self {
        assert!(self.stdout.contains(text), "does not say `{text}`: {}", self.all());
        self
    }

    /// Standard output as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.all()))
    }
}

/// Runs the program to its end.
pub fn dipaco_with(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
    run(command(args))
}

/// Runs a command to its end, within [`LIMIT`].
pub fn run(command: Command) -> Output {
    Running::start(command).finish()
}

/// A command that runs; it is killed when this is dropped.
pub struct Running {
    what: String,
    child: Child,
    stdout: Receiver<String>,
    lines: Receiver<String>,
    stderr: String,
}

impl Running {
    /// Starts a command.
    ///
    /// # Panics
    /// When it can't be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        let what = format!("{command:?}");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{what} can't be started: {error}"));
        let (mut out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (send, stdout) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = out.read_to_end(&mut bytes);
            let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
        });
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let mut err = BufReader::new(err);
            let mut line = Vec::new();
            while matches!(err.read_until(b'\n', &mut line), Ok(1..)) {
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
                line.clear();
            }
        });
        Self { what, child, stdout, lines, stderr: String::new() }
    }

    /// The process's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process still runs.
    ///
    /// # Panics
    /// When the system can't say.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for a line of standard error that holds `text` and gives it.
    ///
    /// # Panics
    /// When the process ends or the time is up before there is one.
    pub fn line_with(&mut self, text: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.stderr.push_str(&line);
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(_) => panic!("{} did not say `{text}`, but:\n{}", self.what, self.stderr),
            }
        }
    }

    /// Waits until `happened` says so: for what can only be seen in files.
    ///
    /// # Panics
    /// When the time is up or the process has ended before.
    pub fn until(&mut self, what: &str, happened: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !happened() {
            assert!(self.runs() && Instant::now() < deadline, "{}: ended before {what}", self.what);
            std::thread::yield_now();
        }
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When the process has ended and been waited for.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// When it does not come within [`LIMIT`].
    #[must_use]
    pub fn finish(mut self) -> Output {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.stderr.push_str(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} does not end; it said:\n{}", self.what, self.stderr)
                }
            }
        }
        let stdout = self.stdout.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let stdout = stdout.unwrap_or_else(|_| panic!("{} does not end", self.what));
        let status = self.child.wait().unwrap();
        Output { what: self.what.clone(), status, stdout, stderr: std::mem::take(&mut self.stderr) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
