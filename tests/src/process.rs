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
pub fn binary() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let binary = own.parent().and_then(|deps| deps.parent()).unwrap().join("dipaco");
    assert!(binary.exists(), "{} is missing: run cargo build --bin dipaco first", binary.display());
    binary
}

/// The library of the Python module, which `cargo build -p dipaco-python` puts beside the binary.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn extension() -> PathBuf {
    let library = binary().with_file_name("lib_dipaco.so");
    assert!(library.exists(), "{} is missing: run cargo build -p dipaco-python first", library.display());
    library
}

/// A command of the program, without settings of the caller's environment that would change its behaviour.
///
/// Descriptor 3 is a copy of its standard output. The processes that the program starts inherit it, so that the end of
/// the pipe means that all of them have ended: [`Process::finish`] waits for it.
#[must_use]
pub fn command(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"exec "$0" "$@" 3>&1"#]).arg(binary());
    clean(shell, args)
}

/// A command of another program with these arguments and a clean environment.
#[must_use]
pub fn clean(mut command: Command, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    command.args(args).env_remove("RUST_LOG").env("NO_COLOR", "1").stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DIPACO_")) {
        command.env_remove(name);
    }
    // Keys of runs do not go to the caller's home folder.
    let keys = std::env::current_exe().unwrap().with_file_name("keys-of-tests");
    command.env("DIPACO_SECRETS", keys);
    command
}

/// The same command with files limited to this size: a larger file fails as on a full disk, in the middle of a write.
#[must_use]
pub fn short_of_space(command: &Command, kilobytes: u32) -> Command {
    let mut limited = Command::new("sh");
    // Signal 25 is SIGXFSZ, which would end the process where a full disk would not. The unit of `ulimit -f` is 512 bytes.
    let script = format!("trap '' 25; ulimit -f {}; exec \"$0\" \"$@\"", 2 * kilobytes);
    limited.args(["-c", &script]).arg(command.get_program());
    clean(limited, command.get_args())
}

/// Output and exit status of a command that has ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// The command, for messages.
    pub command: String,
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    fn all(&self) -> String {
        format!("{}\n{}\n--- stdout\n{}\n--- stderr\n{}", self.command, self.status, self.stdout, self.stderr)
    }

    /// Asserts that the command succeeded without a panic.
    #[must_use]
    pub fn succeeded(self) -> Self {
        assert!(self.status.success() && !self.stderr.contains("panicked"), "should succeed: {}", self.all());
        self
    }

    /// Asserts that the command failed with `code`, did not panic, and printed each of `texts` on standard error.
    #[must_use]
    pub fn failed(self, code: i32, texts: &[&str]) -> Self {
        assert_eq!(self.status.code(), Some(code), "wrong exit code: {}", self.all());
        assert!(!self.stderr.contains("panicked"), "it panicked: {}", self.all());
        for text in texts {
            assert!(self.stderr.contains(text), "does not print `{text}`: {}", self.all());
        }
        self
    }

    /// Asserts that SIGKILL ended the command.
    #[must_use]
    pub fn killed(self) -> Self {
        assert_eq!(self.status.code(), None, "was not killed: {}", self.all());
        self
    }

    /// Asserts that standard output holds `text`.
    #[must_use]
    pub fn says(self, text: &str) -> Self {
        assert!(self.stdout.contains(text), "does not print `{text}`: {}", self.all());
        self
    }

    /// Standard output as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.all()))
    }
}

/// Runs the program to its end, with words separated by spaces.
#[must_use]
pub fn dipaco(words: &str) -> Output {
    output(command(words.split_whitespace()))
}

/// Runs a command to its end, within [`LIMIT`].
#[must_use]
pub fn output(command: Command) -> Output {
    Process::start(command).finish()
}

/// A running command and the processes that it starts. The command is killed when this is dropped.
pub struct Process {
    command: String,
    child: Child,
    stdout: Receiver<String>,
    lines: Receiver<String>,
    /// Standard error as far as it has been read.
    stderr: String,
}

impl Process {
    /// Starts a command.
    ///
    /// # Panics
    /// When it can't be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        let text = format!("{command:?}");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{text} can't be started: {error}"));
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
        Self { command: text, child, stdout, lines, stderr: String::new() }
    }

    /// Returns whether the process still runs.
    ///
    /// # Panics
    /// When the system can't tell.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Reads standard error up to the next line that holds `text`, and returns that line without its end.
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
                        return line.trim_end().to_owned();
                    }
                }
                Err(_) => panic!("{} did not print `{text}`, but:\n{}", self.command, self.stderr),
            }
        }
    }

    /// Waits until `happened` returns true, for events that only files show.
    ///
    /// # Panics
    /// When the time is up or the process has ended before.
    pub fn until(&mut self, event: &str, happened: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !happened() {
            let waiting = self.is_running() && Instant::now() < deadline;
            assert!(waiting, "{}: ended before this happened: {event}", self.command);
            std::thread::yield_now();
        }
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    /// When the process has ended and its status has been read.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills the process of a worker that `train` has started, by its name in the lines read so far.
    ///
    /// # Panics
    /// When no line names the worker, or when its process has ended.
    pub fn kill_worker(&self, worker: &str) {
        let starts =
            |line: &&str| line.contains("a worker process starts") && field(line, "worker") == worker;
        let line = self.stderr.lines().rfind(starts).unwrap_or_else(|| panic!("{worker} was not started"));
        let pid = Pid::from_raw(field(line, "pid").parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }

    /// Waits until the process and every process that it started have ended.
    ///
    /// # Panics
    /// When that takes longer than [`LIMIT`].
    #[must_use]
    pub fn finish(mut self) -> Output {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.stderr.push_str(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} does not end; it printed:\n{}", self.command, self.stderr)
                }
            }
        }
        let stdout = self.stdout.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let stdout = stdout.unwrap_or_else(|_| {
            panic!("{} or a process that it started does not end; it printed:\n{}", self.command, self.stderr)
        });
        let status = self.child.wait().unwrap();
        let (command, stderr) = (std::mem::take(&mut self.command), std::mem::take(&mut self.stderr));
        Output { command, status, stdout, stderr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of a field in a line of the log.
///
/// # Panics
/// When the line has no such field.
#[must_use]
pub fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, value) = line.split_once(&format!("{name}=")).unwrap_or_else(|| panic!("no {name} in `{line}`"));
    value.split(' ').next().unwrap().trim_matches('"')
}
