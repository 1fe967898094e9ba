//! A run that is trained by several processes, for tests that disturb them.

use std::sync::OnceLock;

use crate::fixtures::{corpus, validation};
use crate::process::{Process, command, output};
use crate::run::{Run, shared};

/// Changes of the tests' configuration: a round is long enough to be disturbed in its middle, workers share no threads,
/// and documents are reserved for a router of a later phase.
const SETTINGS: &str =
    "--set train.inner_steps=12 --set train.threads_per_worker=1 --set routing.router_share=0.2";

/// A run of its own, prepared, with a seed and shards.
#[must_use]
pub fn untrained() -> Run {
    static PREPARED: OnceLock<Run> = OnceLock::new();
    let prepared = PREPARED.get_or_init(|| {
        let prepared = shared("untrained");
        let mut prepare = prepared.command(&format!("prepare {SETTINGS}"));
        prepare.args(corpus()).arg("--validation").arg(validation());
        let _ = output(prepare).succeeded();
        prepared.seed_and_route();
        prepared
    });
    prepared.copy()
}

/// The hashes that one undisturbed worker gives to the run.
pub fn undisturbed() -> &'static [String] {
    static BITS: OnceLock<Vec<String>> = OnceLock::new();
    BITS.get_or_init(|| {
        let run = untrained();
        let _ = run.train("--workers 1").finish().succeeded();
        run.bits()
    })
}

impl Run {
    /// Starts `dipaco train`.
    #[must_use]
    pub fn train(&self, words: &str) -> Process {
        Process::start(self.command(&format!("train -v {words}")))
    }

    /// Starts `dipaco coordinator`.
    #[must_use]
    pub fn coordinator(&self, words: &str) -> Process {
        Process::start(self.command(&format!("coordinator -v {words}")))
    }

    /// Starts a worker as on another machine: it has only a join token, and the coordinator does not start it.
    #[must_use]
    pub fn worker(&self, name: &str) -> Process {
        let mut worker = command(["worker", "-v", "--threads", "1", "--name", name]);
        worker
            .arg("--join")
            .arg(self.file("secrets/join.token"))
            .arg("--cache")
            .arg(self.folder().join(name));
        Process::start(worker)
    }

    /// Starts `dipaco synchronizer` for the modules of a level.
    #[must_use]
    pub fn synchronizer(&self, level: &str) -> Process {
        Process::start(self.command(&format!("synchronizer -v --json --modules {level} --name {level}")))
    }

    /// The hashes of all results of training, of a run whose modules are one fragment each.
    #[must_use]
    pub fn bits(&self) -> Vec<String> {
        self.bits_at(&[3])
    }

    /// The hashes of all results of training; `versions` are those of the fragments of every module.
    ///
    /// # Panics
    /// When the run is not complete, or when an inner step counts more or less than once.
    #[must_use]
    pub fn bits_at(&self, versions: &[u32]) -> Vec<String> {
        let training = self.status()["training"].clone();
        let _ = self.dipaco("status --data").succeeded().says("every inner step counts once");
        let mut bits = Vec::new();
        for module in training["modules"].as_array().unwrap() {
            let fragments = module["fragments"].as_array().unwrap();
            assert_eq!(fragments.iter().map(|fragment| &fragment["version"]).collect::<Vec<_>>(), versions);
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
