//! The queue of due rounds during a training that goes on.

use std::path::Path;
use std::time::SystemTime;

use dipaco_store::{FragmentRecord, ManifestSequence, ModuleRecord, ObjectRef, PathRecord, names};
use dipaco_topology::{ModuleId, Topology};

use super::*;

/// Rounds of the training.
const ROUNDS: u32 = 6;

const MODULE: ModuleId = ModuleId { level: 0, index: 0 };

/// A training whose validation has a turn every second round.
struct Training {
    run: RunDirectory,
    config: RunConfig,
    store: RunStore,
    /// Length of the weights of a module in its manifests.
    bytes: u64,
}

impl Training {
    fn new(folder: &Path, bytes: u64) -> Self {
        let mut config = RunConfig::default();
        config.model.vocab_size = 64;
        config.train.validate_every = 2;
        Self { run: RunDirectory::new(folder), config, store: RunStore::in_memory(), bytes }
    }

    /// Its validation under a coordinator that begins after so many rounds.
    fn validation(&self, rounds: u32) -> Validation<'_> {
        Validation::of_store(&self.run, &self.config, self.store.clone(), Events::off(), rounds)
    }

    /// The manifest after a round: each module has the version of the round. Nothing reads their weights.
    fn manifest(&self, round: u32) -> RunManifest {
        let topology = Topology::new(&self.config.topology, self.config.model.blocks).unwrap();
        let module = |module| {
            let (name, hash) = (names::weights(module, 0, round, 0), String::new());
            let weights = ObjectRef { name, hash, bytes: self.bytes };
            let fragment = FragmentRecord { version: round, ..FragmentRecord::first(weights) };
            ModuleRecord { module, fragments: vec![fragment] }
        };
        let measured = round == ROUNDS;
        let path = PathRecord { steps: round.into(), measured, ..PathRecord::default() };
        let training = TrainingRecord {
            rounds: ROUNDS,
            inner_steps: 1,
            modules: topology.module_ids().map(module).collect(),
            paths: topology.path_ids().map(|_| path.clone()).collect(),
            ..TrainingRecord::default()
        };
        RunManifest { training: Some(training), ..RunManifest::new("run".to_owned()) }
    }

    /// Ends a round.
    async fn complete(&self, round: u32) {
        let before = self.store.load::<RunManifest>().await.unwrap();
        let before = before.map_or(ManifestSequence::NONE, |loaded| loaded.sequence);
        self.store.replace(&self.manifest(round), before).await.unwrap();
    }

    /// The versions of a module that stay in the store for readers.
    async fn pinned(&self) -> Vec<u32> {
        let pinned = self.store.pinned(SystemTime::now()).await.unwrap();
        (0..=ROUNDS).filter(|&version| pinned.contains(&names::weights(MODULE, 0, version, 0))).collect()
    }
}

impl Validation<'_> {
    /// The rounds that wait.
    fn waiting_rounds(&self) -> Vec<u32> {
        self.waiting.iter().map(|due| due.cost.round).collect()
    }
}

#[tokio::test]
async fn every_due_round_waits_with_its_weights_while_training_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let training = Training::new(folder.path(), 1);
    let mut validation = training.validation(0);
    for round in 0..ROUNDS {
        training.complete(round).await;
        validation.look().await;
    }
    assert_eq!(validation.waiting_rounds(), [2, 4]);
    assert_eq!(training.pinned().await, [2, 4]);
    // At the end the last round has its turn, too. Each measurement fails for want of text, and the next one follows.
    training.complete(ROUNDS).await;
    let cancel = CancellationToken::new();
    validation.measure_rest(DeviceChoice::Cpu, &Progress::hidden(), &cancel).await;
    assert_eq!((validation.last, validation.waiting_rounds().len()), (ROUNDS, 0));
    validation.end(true, DeviceChoice::Cpu, &Progress::hidden(), &cancel).await;
    assert!(training.pinned().await.is_empty());
}

#[tokio::test]
async fn an_interrupt_ends_the_wait_for_measurements_and_no_pin_stays() {
    let folder = tempfile::tempdir().unwrap();
    let training = Training::new(folder.path(), 1);
    let mut validation = training.validation(0);
    for round in [2, 4] {
        training.complete(round).await;
        validation.look().await;
    }
    let cancel = CancellationToken::new();
    cancel.cancel();
    validation.measure_rest(DeviceChoice::Cpu, &Progress::hidden(), &cancel).await;
    assert_eq!(validation.waiting_rounds(), [2, 4], "the rounds that are told as not measured");
    validation.end(true, DeviceChoice::Cpu, &Progress::hidden(), &cancel).await;
    assert!(training.pinned().await.is_empty());
}

#[tokio::test]
async fn a_full_queue_leaves_rounds_out_but_not_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let training = Training::new(folder.path(), WAITING_BYTES);
    let mut validation = training.validation(0);
    for round in 0..=ROUNDS {
        training.complete(round).await;
        validation.look().await;
    }
    assert_eq!(validation.waiting_rounds(), [2, ROUNDS]);
    assert_eq!(training.pinned().await, [2, ROUNDS]);
}

#[tokio::test]
async fn a_coordinator_that_goes_on_keeps_the_turns_of_the_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let training = Training::new(folder.path(), 1);
    for (begin, due) in [(4, vec![4]), (5, vec![])] {
        training.complete(begin).await;
        let mut validation = training.validation(begin);
        validation.look().await;
        assert_eq!(validation.waiting_rounds(), due);
    }
}

#[test]
fn a_run_without_validation_text_is_told_that_nothing_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::new(folder.path());
    assert!(missing_text(&run).unwrap().starts_with("train.validate_every has no effect"));
    std::fs::create_dir_all(run.data()).unwrap();
    std::fs::write(run.validation_tokens(), "").unwrap();
    assert_eq!(missing_text(&run), None);
}
