//! A small run for tests of routing: prepared text with addresses, and an untrained seed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dipaco_config::RunConfig;
use dipaco_path::DeviceChoice;
use dipaco_routing::Router;
use dipaco_telemetry::Progress;
use tokio::runtime::Runtime;

use crate::error::PipelineError;
use crate::prepare::prepare;
use crate::route::{self, Division};
use crate::run_directory::RunDirectory;
use crate::seed::{SeedHow, seed};
use crate::version::Version;
use crate::vocabulary::with_vocabulary;
use crate::weights::Weights;

/// Number of training documents of a text.
pub(crate) const DOCUMENTS: usize = 80;

pub(crate) struct SmallRun {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) run: RunDirectory,
    /// Has its vocabulary.
    pub(crate) config: RunConfig,
    pub(crate) runtime: Runtime,
}

impl SmallRun {
    pub(crate) fn seeded() -> Self {
        let tiny = include_str!("../../../tests/fixtures/tiny.toml");
        let mut config = RunConfig::from_toml(tiny, Path::new("tiny.toml")).unwrap();
        config.prepare.vocab_size = 280;
        config.seed_model.steps = 0;
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path().join("run"));
        let mut small = Self { folder, run, config, runtime: Runtime::new().unwrap() };
        small.prepare("first", "first");
        // Later texts are read with the tokenizer of the first.
        let tokenizer = small.folder.path().join("tokenizer.json");
        std::fs::copy(small.run.tokenizer(), &tokenizer).unwrap();
        small.config = with_vocabulary(&small.run, &small.config).unwrap();
        small.config.prepare.tokenizer = Some(tokenizer);
        small.prepare("first", "first");
        small.seed(SeedHow::default());
        small
    }

    pub(crate) fn seed(&self, how: SeedHow) {
        let (hidden, stop) = (Progress::hidden(), Arc::new(AtomicBool::new(false)));
        let seeding = seed(&self.run, &self.config, how, &hidden, stop, || Ok(()));
        self.runtime.block_on(seeding).unwrap();
    }

    /// Prepares a training text and a validation text of these words.
    pub(crate) fn prepare(&self, training: &str, validation: &str) {
        let (training, validation) =
            (self.text("training", training, DOCUMENTS), self.text("validation", validation, 12));
        let stop = AtomicBool::new(false);
        prepare(&self.run, &self.config, &[training], &[validation], &Progress::hidden(), &stop).unwrap();
    }

    fn text(&self, name: &str, word: &str, documents: usize) -> PathBuf {
        let line = |i: usize| {
            let topic = ["rivers", "stones", "clouds", "roads"][i % 4];
            let text = format!("The {word} document {i} tells of {topic} and {}. ", i * 31 % 17).repeat(4);
            format!("{}\n", serde_json::json!({ "url": format!("{name}/{i}"), "text": text }))
        };
        let file = self.folder.path().join(format!("{name}-{word}.jsonl"));
        std::fs::write(&file, (0..documents).map(line).collect::<String>()).unwrap();
        file
    }

    pub(crate) fn weights(&self) -> Weights {
        self.runtime.block_on(Weights::open(&self.run, &self.config, Version::Current)).unwrap()
    }

    pub(crate) fn fit(&self) -> Result<(Router, bool), PipelineError> {
        let (hidden, stop) = (Progress::hidden(), AtomicBool::new(false));
        route::fit(&self.run, &self.weights(), DeviceChoice::Cpu, &hidden, &stop)
    }

    pub(crate) fn assign(&self) -> Result<Division, PipelineError> {
        let (hidden, stop) = (Progress::hidden(), AtomicBool::new(false));
        route::assign(&self.run, 0, &self.weights(), DeviceChoice::Cpu, &hidden, &stop)
    }
}
