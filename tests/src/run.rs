//! A tiny run over real text: the repository's own files.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::binary::{Output, Running, command, dipaco_with};

/// Two levels of two modules, D = 32, T = 64: every mechanism, in a few seconds.
pub const CONFIG: &str = r#"
[run]
name = "e2e"
[model]
hidden_size = 32
blocks = 2
heads = 2
head_dim = 16
ffn_size = 64
context = 64
[[topology.levels]]
modules = 2
blocks = "0"
embedding = true
[[topology.levels]]
modules = 2
blocks = "1"
head = true
[prepare]
vocab_size = 384
text_document_bytes = 1024
validation_fraction = 0.05
[seed_model]
steps = 40
batch = 4
sequence_tokens = 64
validate_every = 20
validation_sequences = 8
checkpoint_every = 20
[seed_model.adamw]
learning_rate = 0.004
[seed_model.schedule]
warmup_steps = 5
[routing]
restarts = 2
[train]
rounds = 3
inner_steps = 5
batch = 4
sequence_tokens = 64
holdout_sequences = 4
[train.schedule]
warmup_steps = 2
"#;

/// The repository's root.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize().unwrap()
}

/// Real text of several domains: sources, documentation, a licence, a lock file.
#[must_use]
pub fn corpus() -> Vec<PathBuf> {
    ["crates/model/src", "crates/train/src", "docs", "LICENSE-APACHE", "Cargo.lock"]
        .map(|name| root().join(name))
        .to_vec()
}

/// A run directory and its configuration file.
#[derive(Debug)]
pub struct Run {
    folder: PathBuf,
    /// Removed with the run; shared runs lie in the build directory instead.
    _own: Option<TempDir>,
}

impl Run {
    /// An empty run in a temporary folder, configured by [`CONFIG`] and `more` lines.
    #[must_use]
    pub fn new(more: &str) -> Self {
        let own = tempfile::tempdir().unwrap();
        let run = Self { folder: own.path().to_owned(), _own: Some(own) };
        fs::write(run.config(), format!("{CONFIG}\n{more}")).unwrap();
        run
    }

    /// A copy that may be damaged.
    #[must_use]
    pub fn copy(&self) -> Self {
        let own = tempfile::tempdir().unwrap();
        copy(&self.folder, own.path());
        Self { folder: own.path().to_owned(), _own: Some(own) }
    }

    /// The folder that the run lies in, for whatever a test puts beside it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
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
        command.arg("--run").arg(self.directory());
        if !self.file("config.toml").exists() {
            command.arg("--config").arg(self.config());
        }
        command
    }

    /// Runs a command about this run to its end.
    #[must_use]
    pub fn dipaco(&self, words: &str) -> Output {
        crate::binary::run(self.command(words))
    }

    /// Prepares `inputs`.
    #[must_use]
    pub fn prepare(&self, inputs: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
        let mut command = self.command("prepare");
        command.args(inputs);
        crate::binary::run(command)
    }

    /// Prepares the corpus, pretrains the seed and divides the text: all that comes before training.
    pub fn route(&self) {
        let _ = self.prepare(corpus()).succeeded();
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
        let mut running = Running::start(self.command(&format!("serve --address 127.0.0.1:0 {words}")));
        let line = running.line_with("http://");
        let address = line.split("http://").nth(1).unwrap().trim().to_owned();
        Server { running, address }
    }
}

/// A server; killed when dropped.
pub struct Server {
    /// Its process.
    pub running: Running,
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

/// A fresh folder in the build directory: what is static is never dropped, so the next execution removes it.
fn shared(name: &str) -> Run {
    let binary = std::env::current_exe().unwrap();
    let test = binary.file_stem().unwrap().to_string_lossy().into_owned();
    let test = test.rsplit_once('-').map_or(test.as_str(), |(name, _)| name).to_owned();
    let target = binary.ancestors().nth(3).unwrap();
    let folder = target.join("tmp").join(format!("dipaco-tests-{test}-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let run = Run { folder, _own: None };
    fs::write(run.config(), CONFIG).unwrap();
    run
}

/// Copies a folder with what is in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Every file below `folder` with its content's hash, for "nothing has changed".
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

/// Runs the program without a run.
#[must_use]
pub fn dipaco(words: &str) -> Output {
    dipaco_with(words.split_whitespace())
}
