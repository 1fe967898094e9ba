//! Phases of routing: only the shards change between two rounds.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use dipaco_config::{PhaseConfig, RunConfig, ScheduleAtPhase};
use dipaco_optim::Optimizer;
use dipaco_path::{MomentSpecs, PathState};
use dipaco_store::ShardRecord;
use dipaco_telemetry::Events;
use dipaco_train::{CoordinatorSummary, Reroute, coordinate, work};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use support::{Run, config, tokens};

const PHASES: [u32; 2] = [1, 2];

fn phased() -> RunConfig {
    let mut config = config();
    config.routing.router_share = 0.1;
    config.routing.phases =
        PHASES.iter().map(|&round| PhaseConfig { round, ..PhaseConfig::default() }).collect();
    config
}

/// The shards of a phase: other text for every path, in a folder of the phase.
fn shards(folder: &Path, phase: u32) -> Vec<ShardRecord> {
    let place = format!("phase-{phase}");
    std::fs::create_dir_all(folder.join(&place)).unwrap();
    let shard = |path: u32| {
        let name = format!("{place}/path-{path:03}.h5");
        let file = tokens(&folder.join(&name), 10 * phase + path, 50 - 10 * path);
        let (documents, tokens) = (file.documents(), file.tokens());
        ShardRecord { file: name, hash: file.content_hash().to_owned(), documents, tokens }
    };
    (0..4).map(shard).collect()
}

fn reroute(run: &Run) -> Reroute {
    let folder = run.folder.path().to_owned();
    Box::new(move |phase| {
        let shards = shards(&folder, phase);
        Box::pin(async move { Ok(Some(shards)) })
    })
}

/// Continues the run in its current phase until the coordinator ends. Workers read the shards from the routing folder.
async fn train(run: &mut Run, workers: usize, reroute: Option<Reroute>) -> CoordinatorSummary {
    let manifest = run.manifest().await;
    if let Some(training) = manifest.training {
        run.shards = training.shards;
    }
    let started = run.start(true).await.unwrap();
    let (server, token) = run.server().await;
    let leave = CancellationToken::new();
    let working: Vec<_> = (0..workers)
        .map(|number| {
            let mut options = run.worker(&token, &format!("w{number}"));
            options.shards = (number == 0).then(|| run.folder.path().to_owned());
            tokio::spawn(work(options, leave.clone()))
        })
        .collect();
    let mut options = run.options(started, Events::off());
    options.reroute = reroute;
    let summary = coordinate(options, server, CancellationToken::new()).await.unwrap();
    leave.cancel();
    for worker in working {
        worker.await.unwrap().unwrap();
    }
    summary
}

async fn undisturbed(config: RunConfig) -> Vec<String> {
    let mut run = Run::seeded(config).await;
    let reroute = reroute(&run);
    assert!(train(&mut run, 1, Some(reroute)).await.finished);
    run.bits().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_make_the_bits_of_one_and_paths_keep_their_states() {
    let mut run = Run::seeded(phased()).await;
    let reroute = reroute(&run);
    assert!(train(&mut run, 2, Some(reroute)).await.finished);
    assert_eq!(run.bits().await, undisturbed(phased()).await);

    let training = run.manifest().await.training.unwrap();
    assert_eq!((training.phase, &training.boundaries[..]), (2, &PHASES[..]));
    assert_eq!(training.shards, shards(run.folder.path(), 2));
    for path in &training.paths {
        let state = run.store.get(path.state.as_ref().unwrap()).await.unwrap();
        let state =
            PathState::decode(&state, &MomentSpecs::whole(&run.config.model, Optimizer::AdamW)).unwrap();
        // Three rounds of four steps on batches of four. One round of them is in this phase.
        assert_eq!((state.step, state.position), (12, 16));
        // Measured on the held-out documents of this phase only.
        assert!(path.best.as_ref().unwrap().round >= 2 && path.last.as_ref().unwrap().round == 3);
    }

    let mut unphased = Run::seeded(config()).await;
    train(&mut unphased, 1, None).await;
    assert_ne!(run.bits().await, unphased.bits().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_stops_at_every_boundary_makes_the_same_bits() {
    let mut run = Run::seeded(phased()).await;
    for (phase, round) in (0u32..).zip(PHASES) {
        let summary = train(&mut run, 2, None).await;
        assert!(summary.at_boundary && !summary.finished);
        assert_eq!(summary.rounds, round);
        // Another coordinator at the same boundary changes nothing.
        assert!(train(&mut run, 1, None).await.at_boundary);
        let manifest = run.manifest().await;
        assert_eq!(manifest.phase(), phase);
        assert!(manifest.training.unwrap().at_boundary());
        // The next phase begins, and its coordinator stops at the boundary after it.
        let one = tokio::sync::Mutex::new(Some(reroute(&run)(phase + 1)));
        let reroute: Reroute = Box::new(move |_| match one.try_lock().unwrap().take() {
            Some(shards) => shards,
            None => Box::pin(async { Ok(None) }),
        });
        train(&mut run, 1, Some(reroute)).await;
    }
    assert_eq!(run.bits().await, undisturbed(phased()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_go_on_with_the_successor_of_a_coordinator_that_stopped_while_routing() {
    let mut run = Run::seeded(phased()).await;
    let (server, token) = run.server().await;
    let address: SocketAddr = server.local_addr();
    let leave = CancellationToken::new();
    let worker = tokio::spawn(work(run.worker(&token, "w"), leave.clone()));
    let (dividing, stop) = (Arc::new(Notify::new()), CancellationToken::new());
    let mut options = run.options(run.start(false).await.unwrap(), Events::off());
    let begun = dividing.clone();
    options.reroute = Some(Box::new(move |_| {
        begun.notify_one();
        Box::pin(std::future::pending())
    }));
    let coordinating = tokio::spawn(coordinate(options, server, stop.clone()));
    dividing.notified().await;
    stop.cancel();
    let summary = coordinating.await.unwrap().unwrap();
    assert!(!summary.finished && !summary.at_boundary && summary.rounds == 1);

    run.shards = run.manifest().await.training.unwrap().shards;
    let (server, _) = run.server_at(address).await;
    let mut options = run.options(run.start(true).await.unwrap(), Events::off());
    options.reroute = Some(reroute(&run));
    assert!(coordinate(options, server, CancellationToken::new()).await.unwrap().finished);
    leave.cancel();
    worker.await.unwrap().unwrap();
    assert_eq!(run.bits().await, undisturbed(phased()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_learning_rate_schedule_may_begin_anew_with_a_phase() {
    let mut config = phased();
    config.train.schedule_at_phase = ScheduleAtPhase::Restart;
    assert_ne!(undisturbed(config).await, undisturbed(phased()).await);
}
