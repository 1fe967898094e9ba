//! Going back to an earlier round on request, and listing what a token contributed.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;

use dipaco_store::{RollbackRecord, TrainingRecord};
use dipaco_telemetry::{Events, Progress};
use dipaco_topology::Topology;
use dipaco_train::{CoordinatorError, TokenContributions, contributions_of, roll_back};
use tokio_util::sync::CancellationToken;

use support::{Puppet, Run, config};

/// A run of three rounds whose second round is complete. Its checkpoints are those of rounds 1 and 2.
async fn stopped() -> Run {
    let mut config = config();
    config.train.rounds = 3;
    let run = Run::seeded(config).await;
    let reached = CancellationToken::new();
    // A worker joins, and each round has four paths, four modules and its beginning and end.
    let events = run.events_until(23, &reached);
    let (coordinator, token) = run.coordinator(events, reached.clone()).await;
    let worker = run.spawn_worker(&token, "worker");
    assert!(!coordinator.await.unwrap().unwrap().finished);
    worker.abort();
    run
}

async fn kept(run: &Run) -> Vec<u32> {
    run.manifest().await.checkpoints.iter().map(|checkpoint| checkpoint.round).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_back_to_a_kept_round_and_on_to_the_same_bits() {
    let run = stopped().await;
    let rounds = kept(&run).await;
    assert_eq!(rounds, [1, 2]);
    let calm = Run::seeded(run.config.clone()).await;
    calm.train(2).await;

    // A round that is not kept is refused, and the run is as before.
    let before = run.manifest().await;
    let error = roll_back(&run.store, 0, &Progress::hidden()).await.unwrap_err();
    assert!(matches!(&error, CoordinatorError::NotKept { round: 0, kept, .. } if *kept == rounds));
    assert!(error.to_string().contains("it keeps rounds 1, 2"), "{error}");
    assert_eq!(run.manifest().await, before);

    let rollback = roll_back(&run.store, 1, &Progress::hidden()).await.unwrap();
    assert_eq!(rollback, RollbackRecord { from: 2, to: 1, undone: vec![2] });
    let manifest = run.manifest().await;
    assert_eq!(manifest.rollbacks, [rollback]);
    let content = run.store.get(&before.checkpoints[0].object).await.unwrap();
    let first: TrainingRecord = serde_json::from_slice(&content).unwrap();
    assert_eq!(manifest.training, Some(first));
    assert_eq!(kept(&run).await, [1]);

    let (summary, _) = run.train(2).await;
    assert!(summary.finished);
    assert_eq!(run.bits().await, calm.bits().await);
    // The objects of the undone rounds are gone.
    let manifest = run.manifest().await;
    let training = manifest.training.as_ref().unwrap();
    let needed: BTreeSet<_> = training.objects().map(|object| object.name.clone()).collect();
    for prefix in ["modules", "momenta", "paths", "checkpoints", "outer-gradients"] {
        for object in run.store.list(prefix).await.unwrap() {
            assert!(needed.contains(&object.name), "{} is left over", object.name);
        }
    }
    let error = roll_back(&run.store, 1, &Progress::hidden()).await.unwrap_err();
    assert!(error.to_string().contains("a complete run needs none"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_checkpoint_is_no_place_to_go_back_to() {
    let run = stopped().await;
    let before = run.manifest().await;
    let content = run.store.get(&before.checkpoints[0].object).await.unwrap();
    let first: TrainingRecord = serde_json::from_slice(&content).unwrap();
    let weights = &first.modules[0].fragments[0].weights;
    let file = run.folder.path().join("store").join(&weights.name);
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let error = roll_back(&run.store, 1, &Progress::hidden()).await.unwrap_err();
    assert!(matches!(error, CoordinatorError::DamagedCheckpoint { round: 1, .. }), "{error}");
    assert_eq!(run.manifest().await, before);
}

async fn contributions(run: &Run, token: &str) -> TokenContributions {
    let topology = Topology::new(&run.config.topology, run.config.model.blocks).unwrap();
    contributions_of(&run.store, token, &topology, run.config.sync.fragments).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_token_contributed_is_listed_with_the_round_that_undoes_it() {
    let run = Run::seeded(config()).await;
    let stop = CancellationToken::new();
    let (coordinator, token) = run.coordinator(Events::off(), stop.clone()).await;
    let honest = Puppet::welcome(&token, "honest").await;
    for _ in 0..4 {
        let work = honest.lease().await;
        honest.carry_out(&run, &work, 0.5).await;
    }
    let stranger = Puppet::welcome(&run.token_of("stranger", &token), "stranger").await;
    let work = stranger.lease().await;
    stranger.carry_out(&run, &work, 0.5).await;
    let path = work.path;
    stop.cancel();
    drop((honest, stranger));
    coordinator.await.unwrap().unwrap();

    let found = contributions(&run, "stranger").await;
    assert_eq!(found.undone_by_round, Some(1), "{found:?}");
    assert_eq!(found.kept_rounds, kept(&run).await);
    let [of_path] = found.paths.as_slice() else { panic!("{found:?}") };
    assert_eq!((of_path.path, of_path.first_round, of_path.last_round), (path, 1, 1));
    // A puppet states one token for each outer gradient.
    assert_eq!((of_path.outer_gradients, of_path.tokens), (2, 2));
    let fragments: Vec<_> = of_path.fragments.iter().map(|of| (of.module, of.fragment)).collect();
    let topology = Topology::new(&run.config.topology, run.config.model.blocks).unwrap();
    let modules: Vec<_> = topology.modules_of(path).into_iter().map(|module| (module, 0)).collect();
    assert_eq!(fragments, modules);
    assert!(of_path.fragments.iter().all(|of| of.outer_gradients == 1));

    assert_eq!(contributions(&run, "test").await.paths.len(), 4);
    assert_eq!(contributions(&run, "nobody").await.paths, []);
    roll_back(&run.store, 1, &Progress::hidden()).await.unwrap();
    assert_eq!(contributions(&run, "stranger").await.paths, []);
    assert_eq!(contributions(&run, "test").await.paths.len(), 4);
}
