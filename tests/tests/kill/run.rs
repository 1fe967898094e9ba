//! A tiny run on the repository's own text, ready to be trained.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::process::Process;

const CONFIG: &str = include_str!("tiny.toml");

/// Runs a command that must succeed, and returns its standard output.
pub(crate) fn dipaco(words: &[&str]) -> String {
    Process::start(words).succeed()
}

/// A run of its own, prepared, seeded and routed.
pub(crate) struct Run {
    folder: tempfile::TempDir,
}

impl Run {
    pub(crate) fn new() -> Self {
        static PREPARED: OnceLock<tempfile::TempDir> = OnceLock::new();
        let prepared = PREPARED.get_or_init(prepare);
        let folder = tempfile::tempdir().unwrap();
        copy(&prepared.path().join("run"), &folder.path().join("run"));
        Self { folder }
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn path(&self) -> String {
        self.file("run")
    }

    /// `dipaco train` on this run.
    pub(crate) fn train(&self, words: &[&str]) -> Process {
        Process::start(&[&["train", "-v", "--run", &self.path()], words].concat())
    }

    /// `dipaco coordinator` on this run.
    pub(crate) fn coordinator(&self, words: &[&str]) -> Process {
        Process::start(&[&["coordinator", "-v", "--run", &self.path()], words].concat())
    }

    /// A worker of its own machine, which the coordinator does not start.
    pub(crate) fn worker(&self, name: &str) -> Process {
        let (token, cache) = (self.file("run/join.token"), self.file(name));
        let words = ["worker", "-v", "--threads", "1", "--join", &token, "--name", name, "--cache", &cache];
        Process::start(&words)
    }

    /// `dipaco synchronizer` for the modules of a level.
    pub(crate) fn synchronizer(&self, level: &str) -> Process {
        let words = ["synchronizer", "-v", "--json", "--modules", level, "--name", level];
        Process::start(&[&words[..], &["--run", &self.path()]].concat())
    }

    /// The hashes of everything that training decides, of modules that are not cut.
    pub(crate) fn bits(&self) -> Vec<String> {
        self.bits_at(&[3])
    }

    /// The hashes of everything that training decides; `versions` are those of the fragments of every module.
    pub(crate) fn bits_at(&self, versions: &[u32]) -> Vec<String> {
        let status = dipaco(&["status", "--json", "--run", &self.path()]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let training = &status["training"];
        let accounts = dipaco(&["status", "--data", "--run", &self.path()]);
        assert!(accounts.contains("every inner step counts once"), "{accounts}");
        let mut bits = Vec::new();
        for module in training["modules"].as_array().unwrap() {
            let fragments = module["fragments"].as_array().unwrap();
            assert_eq!(fragments.iter().map(|f| &f["version"]).collect::<Vec<_>>(), versions);
            for fragment in fragments {
                bits.extend([&fragment["weights"]["hash"], &fragment["momentum"]["hash"]]);
            }
        }
        for path in training["paths"].as_array().unwrap() {
            let steps = 3 * training["inner_steps"].as_u64().unwrap();
            assert_eq!((&path["steps"], &path["measured"]), (&steps.into(), &true.into()));
            // A state may stay with its worker.
            bits.extend(path["state"].get("hash"));
        }
        bits.into_iter().map(|hash| hash.as_str().unwrap().to_owned()).collect()
    }
}

/// What one worker makes of the run when nobody disturbs it.
pub(crate) fn undisturbed() -> &'static [String] {
    static BITS: OnceLock<Vec<String>> = OnceLock::new();
    BITS.get_or_init(|| {
        let run = Run::new();
        run.train(&["--workers", "1"]).succeed();
        run.bits()
    })
}

fn prepare() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (run, config) = (folder.path().join("run"), folder.path().join("tiny.toml"));
    fs::write(&config, CONFIG).unwrap();
    let (run, config) = (run.to_str().unwrap(), config.to_str().unwrap());
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let text = ["../docs", "../crates/train/src", "../crates/optim/src", "../crates/sync/src"]
        .map(|part| root.join(part));
    let [docs, train, optim, sync] = text.each_ref().map(|path| path.to_str().unwrap());
    dipaco(&["prepare", "--run", run, "--config", config, docs, train, optim, "--validation", sync]);
    dipaco(&["seed", "--run", run]);
    dipaco(&["route", "fit", "--run", run]);
    dipaco(&["route", "assign", "--run", run]);
    folder
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
