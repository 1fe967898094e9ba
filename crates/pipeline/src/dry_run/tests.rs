use dipaco_config::PathsPerRound;
use dipaco_topology::{AddedPaths, PathId};

use super::*;

fn config() -> RunConfig {
    let mut config = RunConfig::default();
    config.model.vocab_size = 4096;
    config
}

#[test]
fn a_grid_is_counted() {
    let plan = DryRun::new(&config(), String::new(), 2, 1, None).unwrap();
    let (d, f, v) = (256, 704, 4096);
    let block = 4 * d * d + 3 * f * d + 2 * d;
    let levels: Vec<_> = plan.levels.iter().map(|l| (l.modules, l.parameters, l.paths_per_module)).collect();
    assert_eq!(levels, [(2, v * d + 2 * block, 2), (2, v * d + d + 2 * block, 2)]);
    let path = 2 * v * d + d + 4 * block;
    assert_eq!(plan.parameters, Parameters { path, trained: path, all_modules: 2 * path });
    assert_eq!(plan.paths_per_worker, 2);
    // The worker keeps both states, and sends each with each fifth lease.
    assert_eq!(plan.kept_states, 8 * path);
    let from_worker = 2 * (4 * path + 24 + 8 * path / 5);
    assert_eq!(plan.wire, Wire { to_worker: 2 * 4 * path, from_worker });
    // Without room for them, modules and state go to the worker with each lease, gradients and state from it.
    let mut full = config();
    full.train.held_paths = 1;
    let plan = DryRun::new(&full, String::new(), 2, 1, None).unwrap();
    assert_eq!((plan.kept_states, plan.paths_per_worker), (0, 2));
    assert_eq!(plan.wire, Wire { to_worker: 2 * 12 * path, from_worker: 2 * (12 * path + 24) });
    assert_eq!(plan.tokens, TokenCounts { step: 2048, round: 4 * 30 * 2048, all: 10 * 4 * 30 * 2048 });
    assert_eq!((plan.memory.fits, plan.memory.remedies.len()), (None, 0));
}

#[test]
fn an_extended_run_counts_the_paths_through_the_modules_that_train() {
    let mut extended = config();
    let grid = Topology::new(&extended.topology, extended.model.blocks).unwrap();
    let added = AddedPaths { like: vec![PathId(0); 3], own_levels: vec![1], share: true, train_all: false };
    extended.topology = grid.with_paths(&extended.topology, &added).unwrap().config;
    let plan = DryRun::new(&extended, String::new(), 2, 1, None).unwrap();
    // Three new paths share a new module of level 1. In level 0, which is frozen, they share one of the two others.
    let levels: Vec<_> = plan.levels.iter().map(|l| (l.modules, l.paths_in_words(), l.trains)).collect();
    assert_eq!(levels, [(2, "2 to 5".to_owned(), false), (3, "3".to_owned(), true)]);
}

#[test]
fn tokens_and_time_are_sums_over_rounds_of_different_numbers_of_paths() {
    let mut changing = config();
    changing.train.paths_per_round = PathsPerRound::Changing(vec![(0, 1), (4, 0)]);
    let plan = DryRun::new(&changing, String::new(), 2, 1, None).unwrap();
    assert_eq!(plan.rounds, [RoundSpan { rounds: 4, paths: 1 }, RoundSpan { rounds: 6, paths: 4 }]);
    // A round of four paths needs the most, and the other rounds less.
    let all = (4 + 6 * 4) * 30 * 2048;
    assert_eq!(plan.tokens, TokenCounts { step: 2048, round: 4 * 30 * 2048, all });
    let always = DryRun::new(&config(), String::new(), 2, 1, None).unwrap();
    assert_eq!((plan.paths_per_worker, plan.wire), (2, always.wire));
    // Of two workers the busiest trains one path in each of four rounds, and two in each of six.
    let seconds = |plan: DryRun, config: &RunConfig| {
        let speed = Speed {
            tokens_per_second: 2048.0,
            seconds_per_step: 1.0,
            measured_blocks: config.model.blocks,
            measured_sequences: 8,
        };
        plan.with_speed(config, Measured::Speed(speed)).seconds
    };
    assert_eq!(seconds(plan, &changing), Some(30.0 * (4.0 + 6.0 * 2.0)));
    assert_eq!(seconds(always, &config()), Some(30.0 * 10.0 * 2.0));
}

#[test]
fn a_frozen_level_needs_no_wire_and_less_memory() {
    let mut frozen = config();
    frozen.topology.levels[0].frozen = true;
    let whole = DryRun::new(&config(), String::new(), 4, 1, None).unwrap();
    let plan = DryRun::new(&frozen, String::new(), 4, 1, None).unwrap();
    assert_eq!(plan.levels.iter().map(|level| level.trains).collect::<Vec<_>>(), [false, true]);
    let trained = plan.levels[1].parameters;
    assert_eq!((plan.parameters.path, plan.parameters.trained), (whole.parameters.path, trained));
    // The state, 8 bytes a parameter, travels with each fifth lease.
    let from_worker = 4 * trained + 24 + 8 * trained / 5;
    assert_eq!(plan.wire, Wire { to_worker: 4 * trained, from_worker });
    let saved = 4 * (whole.parameters.path - trained);
    // The base of the outer gradient, and in the step the gradients, two moments and kept activations.
    assert_eq!(whole.memory.round - plan.memory.round, saved);
    assert!(whole.memory.step.total() - plan.memory.step.total() > 2 * saved);
}

#[test]
fn muon_moves_and_keeps_one_moment_of_a_matrix() {
    let mut muon = config();
    muon.train.optimizer = Optimizer::Muon;
    let adamw = DryRun::new(&config(), String::new(), 4, 1, None).unwrap();
    let plan = DryRun::new(&muon, String::new(), 4, 1, None).unwrap();
    let (d, f) = (256, 704);
    let matrices = 4 * (4 * d * d + 3 * f * d);
    assert_eq!(adamw.memory.step.moments - plan.memory.step.moments, 4 * matrices);
    // The state travels with each fifth lease.
    let path = plan.parameters.path;
    assert_eq!(adamw.wire.from_worker - plan.wire.from_worker, 8 * path / 5 - (8 * path - 4 * matrices) / 5);
    assert_eq!(plan.memory.step.workspace - adamw.memory.step.workspace, 4 * 2 * (f * d + d * d));
}

#[test]
fn states_in_bf16_halve_the_wire_and_the_disk_and_not_the_memory() {
    let mut bf16 = config();
    bf16.train.state_dtype = Dtype::Bf16;
    let f32 = DryRun::new(&config(), String::new(), 2, 1, None).unwrap();
    let plan = DryRun::new(&bf16, String::new(), 2, 1, None).unwrap();
    assert_eq!(plan.kept_states, f32.kept_states / 2);
    // Each of the two states travels with each fifth lease: 4 bytes less for each parameter.
    let path = plan.parameters.path;
    assert_eq!(f32.wire.from_worker - plan.wire.from_worker, 2 * (8 * path / 5 - 4 * path / 5));
    assert_eq!(plan.memory, f32.memory);
}

#[test]
fn a_state_travels_with_the_leases_of_every_fragment() {
    let mut cut = config();
    cut.sync.fragments = 3;
    let whole = DryRun::new(&config(), String::new(), 2, 1, None).unwrap();
    let plan = DryRun::new(&cut, String::new(), 2, 1, None).unwrap();
    // Each of the two states travels with each fifth lease, of which a round has three.
    let path = plan.parameters.path;
    assert_eq!(plan.wire.from_worker - whole.wire.from_worker, 2 * (8 * path * 3 / 5 - 8 * path / 5));
    assert_eq!(plan.wire.to_worker, whole.wire.to_worker);
}

#[test]
fn a_worker_for_each_path_keeps_its_state() {
    let plan = DryRun::new(&config(), String::new(), 4, 1, None).unwrap();
    let path = plan.parameters.path;
    // The state travels with each fifth lease.
    let from_worker = 4 * path + 24 + 8 * path / 5;
    assert_eq!(plan.wire, Wire { to_worker: 4 * path, from_worker });
    let idle = DryRun::new(&config(), String::new(), 40, 1, None).unwrap();
    assert_eq!(idle.memory.all_workers, plan.memory.all_workers, "idle workers hold no path");
}

#[test]
fn what_does_not_fit_has_remedies_that_lower_it() {
    let plan = DryRun::new(&config(), String::new(), 2, 1, Some(1 << 20)).unwrap();
    assert_eq!(plan.memory.fits, Some(false));
    let sets: Vec<&str> = plan.memory.remedies.iter().map(|remedy| remedy.set.as_str()).collect();
    assert!(
        sets.contains(&"train.activation_checkpointing=true") && sets.contains(&"--workers 1"),
        "{sets:?}"
    );
    assert!(plan.memory.remedies.iter().all(|remedy| remedy.all_workers < plan.memory.all_workers));
    assert!(plan.memory.remedies.iter().all(|remedy| !remedy.fits));
    let all = "train.micro_batch=1 train.activation_checkpointing=true model.dtype=bf16";
    assert!(sets.contains(&all), "{sets:?}");
    // Between what the batch needs in one pass and in two.
    let half = StepShape { micro_batch: 4, ..shape(&config().train) };
    let topology = Topology::new(&config().topology, config().model.blocks).unwrap();
    let available = 2 * worker_memory(&config().model, &topology, Optimizer::AdamW, &half).all;
    let plan = DryRun::new(&config(), String::new(), 2, 1, Some(available)).unwrap();
    let first = &plan.memory.remedies[0];
    assert_eq!((first.set.as_str(), first.fits), ("train.micro_batch=4", true));
    let plan = DryRun::new(&config(), String::new(), 2, 1, Some(1 << 40)).unwrap();
    assert_eq!((plan.memory.fits, plan.memory.remedies.len()), (Some(true), 0));
}

#[test]
fn a_training_that_exceeds_the_whole_memory_of_the_machine_is_refused_with_remedies() {
    let config = config();
    let workers = |workers, total| workers_too_large(&config, workers, total).unwrap();
    let plan = DryRun::new(&config, String::new(), 2, 1, None).unwrap();
    let needed = plan.memory.all_workers;
    // Up to all of the memory, and where nobody knows it. A coordinator alone trains nothing.
    for (count, total) in [(2, Some(needed)), (2, None), (0, Some(0))] {
        assert_eq!(workers(count, total), None, "{total:?}");
    }
    let refused = workers(2, Some(needed - 1)).unwrap();
    assert_eq!((refused.needed, refused.total), (needed, needed - 1));
    assert!(refused.to_string().starts_with("the workers on this machine need "), "{refused}");
    let remedy = refused.remedy();
    for set in ["train.micro_batch=4", "--workers 1"] {
        assert!(remedy.contains(&format!("{set} needs ")), "{remedy}");
    }

    let seed = |config: &RunConfig, total| seed_too_large(config, total).unwrap();
    let needed = seed(&config, Some(0)).unwrap().needed;
    for total in [Some(needed), None] {
        assert_eq!(seed(&config, total), None, "{total:?}");
    }
    let refused = seed(&config, Some(needed - 1)).unwrap();
    assert!(refused.to_string().starts_with("the seed needs "), "{refused}");
    assert!(refused.remedy().contains("seed_model.micro_batch=4 needs "), "{}", refused.remedy());
    // Without steps it is its first weights, which no setting of a step makes smaller.
    let mut untrained = config.clone();
    untrained.seed_model.steps = 0;
    let refused = seed(&untrained, Some(1 << 20)).unwrap();
    assert_eq!(refused.needed, 4 * plan.parameters.path);
    assert_eq!(refused.remedy(), "choose a smaller model or a larger machine");
}
