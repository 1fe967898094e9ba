//! A tiny run over real text.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::fixtures::{TINY, corpus};
use crate::process::{Output, Process, command};

/// A run directory and its configuration file.
#[derive(Debug)]
pub struct Run {
    folder: PathBuf,
    /// Variables that each of its commands gets.
    environment: Vec<(String, String)>,
    /// Removed with the run; shared runs lie in the build directory instead.
    _own: Option<TempDir>,
}

impl Run {
    /// An empty run in a temporary folder, configured by [`TINY`].
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a folder on the disk is no default value")]
    pub fn new() -> Self {
        let own = tempfile::tempdir().unwrap();
        let run = Self { folder: own.path().to_owned(), environment: Vec::new(), _own: Some(own) };
        fs::write(run.config(), TINY).unwrap();
        run
    }

    /// A copy that may be damaged.
    #[must_use]
    pub fn copy(&self) -> Self {
        let own = tempfile::tempdir().unwrap();
        copy(&self.folder, own.path());
        Self { folder: own.path().to_owned(), environment: Vec::new(), _own: Some(own) }
    }

    /// The run on another machine, which has these files and folders of the run directory and nothing else. The old
    /// folder is removed.
    #[must_use]
    pub fn moved(self, names: &[&str]) -> Self {
        let own = tempfile::tempdir().unwrap();
        let moved =
            Self { folder: own.path().to_owned(), environment: self.environment.clone(), _own: Some(own) };
        fs::create_dir(moved.directory()).unwrap();
        for name in names {
            fs::rename(self.file(name), moved.file(name)).unwrap();
        }
        // Both machines have the key of the run's authority.
        if self.keys().exists() {
            fs::rename(self.keys(), moved.keys()).unwrap();
        }
        moved
    }

    /// The same run, whose commands get these variables.
    #[must_use]
    pub fn with_environment(self, environment: Vec<(String, String)>) -> Self {
        Self { environment, ..self }
    }

    /// The folder that holds the run, and other files of a test beside it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the keys of the run's authority.
    fn keys(&self) -> PathBuf {
        self.folder().join("keys")
    }

    /// The configuration file that the run begins with.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder.join("e2e.toml")
    }

    /// The run directory.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// A file of the run directory.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// A command about this run, its words separated by spaces.
    #[must_use]
    pub fn command(&self, words: &str) -> Command {
        let mut command = command(words.split_whitespace());
        // Copies of a run have its name: each needs keys of its own.
        command.env("DIPACO_SECRETS", self.keys());
        command.arg("--run").arg(self.directory()).envs(self.environment.clone());
        if !self.file("config.toml").exists() {
            command.arg("--config").arg(self.config());
        }
        command
    }

    /// Runs a command about this run to its end.
    #[must_use]
    pub fn dipaco(&self, words: &str) -> Output {
        crate::process::output(self.command(words))
    }

    /// Prepares `inputs`.
    #[must_use]
    pub fn prepare(&self, inputs: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
        let mut command = self.command("prepare");
        command.args(inputs);
        crate::process::output(command)
    }

    /// Prepares the corpus, pretrains the seed and divides the text: all steps before training.
    pub fn route(&self) {
        let _ = self.prepare(corpus()).succeeded();
        self.seed_and_route();
    }

    /// Pretrains the seed and divides the text, which has been prepared.
    pub fn seed_and_route(&self) {
        for step in ["seed", "route fit", "route assign"] {
            let _ = self.dipaco(step).succeeded();
        }
    }

    /// The manifest.
    #[must_use]
    pub fn status(&self) -> serde_json::Value {
        self.dipaco("status --json").succeeded().json()
    }

    /// Content hashes of the seed and of every module.
    #[must_use]
    pub fn weights(&self) -> Vec<String> {
        let status = self.status();
        let modules = status["training"]["modules"].as_array().into_iter().flatten();
        let modules = modules.map(|module| &module["fragments"][0]["weights"]["hash"]);
        std::iter::once(&status["seed"]["weights"]["hash"])
            .chain(modules)
            .map(|hash| hash.as_str().unwrap().to_owned())
            .collect()
    }

    /// Serves the run on a free port.
    #[must_use]
    pub fn serve(&self, words: &str) -> Server {
        let mut process = Process::start(self.command(&format!("serve --address 127.0.0.1:0 {words}")));
        let line = process.line_with("http://");
        let address = line.split("http://").nth(1).unwrap().trim().to_owned();
        Server { process, address }
    }
}

/// A server; killed when dropped.
pub struct Server {
    /// Its process.
    pub process: Process,
    /// Its address, as `127.0.0.1:PORT`.
    pub address: String,
}

/// The trained run that the tests of one binary share. They must not change it.
pub fn trained() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let run = shared("trained");
        run.route();
        let _ = run.dipaco("train --workers 2").succeeded();
        run
    })
}

/// The run, routed but not trained, that the tests of one binary share. They must not change it.
pub fn routed() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let run = shared("routed");
        run.route();
        run
    })
}

/// A run in a fresh folder of the build directory: a static is never dropped, so the next execution removes the folder.
pub(crate) fn shared(name: &str) -> Run {
    let binary = std::env::current_exe().unwrap();
    let test = binary.file_stem().unwrap().to_string_lossy().into_owned();
    let test = test.rsplit_once('-').map_or(test.as_str(), |(name, _)| name).to_owned();
    let target = binary.ancestors().nth(3).unwrap();
    let folder = target.join("tmp").join(format!("dipaco-tests-{test}-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let run = Run { folder, environment: Vec::new(), _own: None };
    fs::write(run.config(), TINY).unwrap();
    run
}

/// Copies a folder and its content.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        // The pins of those who read the original just now come and go, and pin nothing of the copy.
        if entry.file_name() == "readers" {
            continue;
        }
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Every file below `folder` with the hash of its content, to assert that nothing has changed.
#[must_use]
pub fn snapshot(folder: &Path) -> Vec<(PathBuf, u64)> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let mut hasher = DefaultHasher::new();
                fs::read(&path).unwrap().hash(&mut hasher);
                files.push((path, hasher.finish()));
            }
        }
    }
    files.sort();
    files
}
