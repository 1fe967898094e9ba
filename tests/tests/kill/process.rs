//! A process of the program and all that it starts, watched without waiting by the clock.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// What takes longer hangs; nothing here is expected to come near it.
const HANG: Duration = Duration::from_secs(100);

/// The program, beside the test's own executable.
pub(crate) fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join("dipaco");
    assert!(program.exists(), "{} is missing: run `cargo build --bin dipaco` first", program.display());
    program
}

/// A running command.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    /// What was read of standard error so far.
    log: Vec<String>,
    /// Standard output, once every process that holds it is gone.
    family: Receiver<String>,
}

impl Process {
    /// Starts the program with these words. Descriptor 3 is a copy of its standard output that the processes it
    /// starts inherit: the end of that pipe says that all of them are gone.
    pub(crate) fn start(words: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec "$0" "$@" 3>&1"#]).arg(program()).args(words);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DIPACO") || name == "RUST_LOG")
        {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (send, lines) = channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let (send, family) = channel();
        let mut output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            send.send(text)
        });
        Self { child, lines, log: Vec::new(), family }
    }

    /// Reads standard error up to the next line that holds `words`, and returns it.
    pub(crate) fn line(&mut self, words: &str) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(HANG) else {
                panic!("`{words}` was never said; it said:\n{}", self.log.join("\n"));
            };
            self.log.push(line);
            if let Some(line) = self.log.last().filter(|line| line.contains(words)) {
                return line.clone();
            }
        }
    }

    /// The number of the process of a worker that `train` has started, from the lines read so far.
    pub(crate) fn worker_process(&self, worker: &str) -> u32 {
        let said =
            |line: &&String| line.contains("a worker process starts") && field(line, "worker") == worker;
        field(self.log.iter().rfind(said).unwrap(), "pid").parse().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub(crate) fn interrupt(&self) {
        signal("INT", self.child.id());
    }

    /// Waits until the process and every one that it started is gone; returns its standard output and its log.
    pub(crate) fn end(mut self) -> (ExitStatus, String, String) {
        let output = self.family.recv_timeout(HANG);
        self.log.extend(self.lines.try_iter());
        let Ok(output) = output else {
            self.child.kill().unwrap();
            panic!("a process is left; it said:\n{}", self.log.join("\n"));
        };
        let status = self.child.wait().unwrap();
        self.log.extend(self.lines.iter());
        (status, output, self.log.join("\n"))
    }

    /// As [`end`](Self::end), for a process that must succeed.
    pub(crate) fn succeed(self) -> String {
        let (status, output, log) = self.end();
        assert!(status.success(), "{status}:\n{log}");
        output
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(name: &str, process: u32) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status().unwrap();
    assert!(sent.success());
}

/// The value of a field in a line of the log.
pub(crate) fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let start =
        line.find(&format!("{name}=")).unwrap_or_else(|| panic!("no {name} in `{line}`")) + name.len() + 1;
    let value = &line[start..];
    value.split(' ').next().unwrap().trim_matches('"')
}
