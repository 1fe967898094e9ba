//! Runs in which a part of the paths trains in each round.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_config::{PathsPerRound, PhaseConfig, RunConfig};
use dipaco_optim::Optimizer;
use dipaco_path::{MomentSpecs, PathState};
use dipaco_protocol::WorkerPlan;
use dipaco_telemetry::Events;
use dipaco_topology::PathId;
use dipaco_train::coordinate;
use tokio_util::sync::CancellationToken;

use support::{Run, config};

const ROUNDS: u32 = 6;

/// Six rounds, in each of which two of the four paths train.
fn sampled() -> RunConfig {
    let mut config = config();
    (config.train.rounds, config.train.paths_per_round) = (ROUNDS, PathsPerRound::Always(2));
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_paths_of_a_round_do_not_depend_on_workers_or_stops() {
    let one = Run::trained(sampled(), 1).await;
    let bits = one.weights().await;
    assert_eq!(Run::trained(sampled(), 3).await.weights().await, bits);
    // States stay with workers, and a worker that takes a path over repeats its leases over the rounds between them.
    let mut kept = sampled();
    (kept.train.state_every, kept.train.held_paths) = (100, 4);
    assert_eq!(Run::trained(kept.clone(), 2).await.weights().await, bits);
    let stopped = Run::seeded(kept).await;
    stopped.train_with_stops((6..).step_by(9)).await;
    assert_eq!(stopped.weights().await, bits);
    let mut all = sampled();
    all.train.paths_per_round = PathsPerRound::default();
    assert_ne!(Run::trained(all.clone(), 1).await.weights().await, bits);
    all.train.paths_per_round = PathsPerRound::Always(4);
    let all_again = Run::trained(all, 1).await;
    assert_ne!(all_again.weights().await, bits);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_paths_may_change_during_the_run() {
    let mut config = sampled();
    config.train.paths_per_round = PathsPerRound::Changing(vec![(0, 1), (2, 0), (4, 3)]);
    let run = Run::trained(config.clone(), 2).await;
    let schedule = WorkerPlan::new(&run.config).schedule().unwrap();
    let of_round = |round: u64| {
        let (from, to) = ((round - 1) * config.train.inner_steps, round * config.train.inner_steps);
        (0..4).filter(|&path| schedule.trained(PathId(path), from, to) > 0).count()
    };
    assert_eq!((1..=6).map(of_round).collect::<Vec<_>>(), [1, 1, 4, 4, 3, 3]);
    let bits = run.weights().await;
    assert_eq!(Run::trained(config, 1).await.weights().await, bits);
    assert_ne!(Run::trained(sampled(), 1).await.weights().await, bits);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_round_is_told_with_the_losses_of_the_paths_that_trained() {
    let run = Run::seeded(sampled()).await;
    let (coordinator, token) = run.coordinator(run.events(), CancellationToken::new()).await;
    let worker = run.spawn_worker(&token, "alone");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    let told = run.completed_rounds();
    assert!(told.iter().all(|(_, loss)| loss.is_finite()), "{told:?}");
    let rounds: Vec<u64> = told.into_iter().map(|(round, _)| round).collect();
    assert_eq!(rounds, (0..u64::from(ROUNDS)).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_counts_the_steps_that_it_took() {
    let mut config = sampled();
    config.train.state_every = 1;
    let run = Run::trained(config, 2).await;
    let plan = WorkerPlan::new(&run.config);
    let schedule = plan.schedule().unwrap();
    let training = run.manifest().await.training.unwrap();
    let mut all = 0;
    for (path, record) in (0..).map(PathId).zip(&training.paths) {
        let took = schedule.trained(path, 0, schedule.total());
        assert!(record.counted.iter().all(|counted| counted.steps == took), "{:?} {took}", record.counted);
        assert_eq!(record.steps, schedule.total());
        let Some(state) = &record.state else {
            assert_eq!(took, 0);
            continue;
        };
        let state = run.store.get(state).await.unwrap();
        let specs = MomentSpecs::whole(&run.config.model, Optimizer::AdamW);
        let state = PathState::decode(&state, &specs).unwrap();
        assert_eq!(
            state.position,
            took * run.config.train.batch as u64,
            "no text of the shard is passed over"
        );
        all += took;
    }
    assert_eq!(all, u64::from(ROUNDS) * 2 * run.config.train.inner_steps);
}

/// A path may train in the last round of a phase and rest in the first rounds of the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_rests_when_a_phase_begins_reads_its_new_shard_from_the_beginning() {
    const BOUNDARY: u64 = 3;
    let mut config = sampled();
    config.routing.router_share = 0.1;
    config.routing.phases = vec![PhaseConfig { round: BOUNDARY as u32, ..PhaseConfig::default() }];
    let steps = config.train.inner_steps;
    // The rounds in which a path trains, counted from 0.
    let rounds = |config: &RunConfig, path| -> Vec<u64> {
        let schedule = WorkerPlan::new(config).schedule().unwrap();
        (0..u64::from(ROUNDS)).filter(|round| !schedule.rests_after(PathId(path), round * steps)).collect()
    };
    let rests_first = |config: &RunConfig, path| {
        let rounds = rounds(config, path);
        let [before, first] = [BOUNDARY - 1, BOUNDARY].map(|round| rounds.contains(&round));
        before && !first && rounds.last() > Some(&BOUNDARY)
    };
    while !(0..4).any(|path| rests_first(&config, path)) {
        config.run.seed += 1;
    }
    let mut weights = Vec::new();
    for workers in [1, 2] {
        let run = Run::seeded(config.clone()).await;
        let mut options = run.options(run.start(false).await.unwrap(), Events::off());
        let shards = run.shards.clone();
        options.reroute = Some(Box::new(move |_| {
            let shards = shards.clone();
            Box::pin(async move { Ok(Some(shards)) })
        }));
        let (server, token) = run.server().await;
        let coordinator = tokio::spawn(coordinate(options, server, CancellationToken::new()));
        let workers: Vec<_> =
            (0..workers).map(|number| run.spawn_worker(&token, &format!("w{number}"))).collect();
        for worker in workers {
            // A worker whose state is refused ends with the reason.
            worker.await.unwrap().unwrap();
        }
        assert!(coordinator.await.unwrap().unwrap().finished);
        weights.push(run.weights().await);
        let training = run.manifest().await.training.unwrap();
        for (path, record) in (0..).zip(&training.paths) {
            let rounds = rounds(&run.config, path);
            let Some(state) = &record.state else {
                assert!(rounds.is_empty());
                continue;
            };
            let state = run.store.get(state).await.unwrap();
            let state = PathState::decode(&state, &MomentSpecs::whole(&run.config.model, Optimizer::AdamW));
            let (old, new): (Vec<u64>, Vec<u64>) = rounds.into_iter().partition(|round| *round < BOUNDARY);
            let of_phase = if new.is_empty() { old.len() } else { new.len() };
            let sequences = (of_phase * run.config.train.batch) as u64 * steps;
            assert_eq!(state.unwrap().position, sequences, "path {path}");
        }
    }
    assert_eq!(weights[0], weights[1]);
}
