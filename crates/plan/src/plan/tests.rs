use super::*;
use crate::time::WorkerLink;

fn level(paths_per_module: u32, outer_rate: Option<f64>) -> PlannedLevel {
    let outer_rate = outer_rate.map(|rate| OuterRate { rate, momentum: 0.9 });
    let default = OuterRate { rate: 0.7 * f64::from(paths_per_module).sqrt(), momentum: 0.5 };
    PlannedLevel {
        level: 0,
        paths_per_module,
        paths_per_step: paths_per_module,
        trains: true,
        outer_rate,
        default_outer_rate: Some(default),
    }
}

/// DiPaCo 8 × 8 of arXiv:2403.10616 with the rule of the square root.
fn paper() -> Setting {
    Setting {
        parameters: 151_181_184,
        paths: 64,
        trained_paths: 64,
        levels: vec![level(8, Some(0.7 * 8f64.sqrt())); 2],
        seed: PlannedSeed { steps: 24_000, step_tokens: 512 * 1024 },
        rounds: vec![PlannedRounds { rounds: 427, paths: 64 }],
        inner_steps: 150,
        step_tokens: 512 * 1024,
        sequence_tokens: 1024,
        packing: true,
        learning_rate: 4e-4,
        overlap: 1,
        corpus_tokens: Some(156_000_000_000),
        corpus_documents: None,
        trained_share: 1.0,
        workers: None,
        measured: None,
    }
}

#[test]
fn the_papers_run_reads_its_shards_fourteen_times() {
    let plan = Plan::new(&paper());
    assert!((plan.training.seed_share - 0.27).abs() < 0.01);
    assert!((plan.training.tokens_per_parameter - 222.0).abs() < 1.0);
    assert!((plan.shard.unwrap().epochs - 13.8).abs() < 0.1);
    assert!(plan.warnings.iter().any(|text| text.contains("this run has 222") && text.contains("law")));
    assert!(
        plan.warnings.iter().any(|text| text.contains("13.8 times") && text.contains("--early-stopping"))
    );
    let [level, _] = &plan.levels[..] else { panic!() };
    // 20 times the batch of a replica of the law.
    assert!((paper().step_tokens as f64 / level.advised_step_tokens.unwrap() - 20.7).abs() < 0.2);
}

#[test]
fn modules_without_outer_momentum_have_no_outer_rate() {
    let levels = vec![level(8, None); 2];
    let few = vec![PlannedRounds { rounds: 50, paths: 64 }];
    let plan = Plan::new(&Setting { levels, rounds: few.clone(), ..paper() });
    let none = |level: &LevelPlan| {
        (level.outer_rate, level.default_outer_rate, level.literature_outer_rate) == (None, None, None)
    };
    assert!(plan.levels.iter().all(none), "{:?}", plan.levels);
    let told = |plan: &Plan| plan.warnings.iter().any(|text| text.contains("outer"));
    assert!(!told(&plan), "{:?}", plan.warnings);
    assert!(told(&Plan::new(&Setting { rounds: few, ..paper() })));
}

#[test]
fn an_outer_rate_stands_beside_that_of_the_program_and_that_of_the_literature() {
    let plan = Plan::new(&paper());
    let level = &plan.levels[0];
    assert!((level.default_outer_rate.unwrap().rate - 1.98).abs() < 0.005, "{level:?}");
    assert!((level.literature_outer_rate.unwrap() - 0.8).abs() < 1e-9, "{level:?}");
    let told = |text: &String| text.contains("2503.09799 has about 0.80") && text.contains("default is 1.98");
    assert!(plan.warnings.iter().any(told), "{:?}", plan.warnings);
}

#[test]
fn a_lower_outer_momentum_than_the_papers_needs_fewer_rounds_and_has_no_rate_of_theirs() {
    let lower = |level: &PlannedLevel| PlannedLevel { outer_rate: level.default_outer_rate, ..*level };
    let of = |rounds| {
        let rounds = vec![PlannedRounds { rounds, paths: 64 }];
        Plan::new(&Setting { levels: paper().levels.iter().map(lower).collect(), rounds, ..paper() })
    };
    let few = |plan: &Plan| plan.warnings.iter().any(|text| text.contains("outer steps are few"));
    assert!(few(&of(19)) && !few(&of(20)));
    let told = of(19).warnings.join(" ");
    assert!(told.contains("the last 2 outer gradients: give it at least 20, 10 times as many"), "{told}");
    let papers =
        |rounds| Plan::new(&Setting { rounds: vec![PlannedRounds { rounds, paths: 64 }], ..paper() });
    assert!(few(&papers(99)) && !few(&papers(100)), "the number that the warning names is enough");
    let plan = of(20);
    assert!(plan.levels.iter().all(|level| level.literature_outer_rate.is_none()), "{:?}", plan.levels);
    assert!(!plan.warnings.iter().any(|text| text.contains("outer rate")), "{:?}", plan.warnings);
}

#[test]
fn outside_of_the_data_the_literature_has_no_outer_rate_and_nothing_is_warned_of() {
    let wide = Setting { levels: vec![level(16, Some(2.8)); 2], ..paper() };
    let small = Setting { parameters: 5_300_000, levels: vec![level(2, Some(2.8)); 2], ..paper() };
    for (setting, range) in [(wide, "1 to 8 replicas"), (small, "35M to 2.4B")] {
        let plan = Plan::new(&setting);
        let LevelPlan { default_outer_rate, literature_outer_rate, refused, .. } = &plan.levels[0];
        assert!(default_outer_rate.is_some() && literature_outer_rate.is_none(), "{:?}", plan.levels);
        assert!(refused.as_ref().unwrap().contains(range), "{refused:?}");
        assert!(!plan.warnings.iter().any(|text| text.contains("outer rate")), "{:?}", plan.warnings);
    }
}

#[test]
fn another_h_than_that_of_the_law_is_told_where_the_law_has_an_outer_rate() {
    let told = |setting: &Setting| {
        Plan::new(setting).warnings.iter().any(|text| text.contains("those of H = 30, and this run has 150"))
    };
    assert!(told(&paper()));
    assert!(!told(&Setting { inner_steps: 30, ..paper() }));
    assert!(!told(&Setting { parameters: 5_300_000, ..paper() }));
}

#[test]
fn a_path_that_rests_in_three_of_four_rounds_reads_a_quarter() {
    let rounds = vec![PlannedRounds { rounds: 427, paths: 16 }];
    let plan = Plan::new(&Setting { rounds, ..paper() });
    assert!((plan.shard.unwrap().epochs - 13.8 / 4.0).abs() < 0.05);
    assert!((plan.training.tokens_per_parameter - 222.0 / 4.0).abs() < 0.3);
}

#[test]
fn the_law_is_that_of_the_paths_in_an_outer_step() {
    let resting = PlannedLevel { paths_per_step: 2, ..level(8, Some(2.8)) };
    let plan = Plan::new(&Setting { levels: vec![resting, level(2, Some(2.8))], ..paper() });
    let [resting, two] = &plan.levels[..] else { panic!() };
    assert_eq!((resting.paths_per_module, resting.paths_per_step), (8, 2));
    assert_eq!(resting.prediction, two.prediction);
    assert_eq!(resting.literature_outer_rate, two.literature_outer_rate);
    assert_eq!(resting.advised_step_tokens, two.advised_step_tokens);
    let told = |text: &String| text.contains("a module of 8 paths (about 2 in an outer step)");
    assert!(plan.warnings.iter().any(told), "{:?}", plan.warnings);
}

#[test]
fn padding_is_no_text() {
    // A document has 256 tokens, and a sequence 1,024.
    let (corpus_tokens, corpus_documents) = (Some(64_000_000 * 256), Some(64_000_000));
    let padded = Setting { packing: false, corpus_tokens, corpus_documents, ..paper() };
    let training = |setting: &Setting| Plan::new(setting).training;
    let packed = training(&Setting { packing: true, ..padded.clone() });
    assert_eq!((packed.text_tokens, packed.at_most), (packed.path_tokens, false));
    let found = training(&padded);
    assert_eq!((found.path_tokens, found.text_tokens), (packed.path_tokens, packed.path_tokens / 4));
    assert!(found.at_most && (found.tokens_per_parameter - 222.0 / 4.0).abs() < 0.3, "{found:?}");
    let unknown = training(&Setting { corpus_documents: None, ..padded });
    assert_eq!((unknown.text_tokens, unknown.at_most), (packed.path_tokens, true));
}

#[test]
fn documents_that_no_path_trains_on_make_the_shards_smaller() {
    let plan = Plan::new(&Setting { trained_share: 0.125, ..paper() });
    assert!((plan.shard.unwrap().epochs - 13.8 * 8.0).abs() < 0.8);
}

#[test]
fn without_packing_each_document_fills_a_sequence_at_least() {
    // 300 steps of 8 sequences, and 1,000 documents of 100 tokens.
    let known = Setting {
        paths: 1,
        trained_paths: 1,
        rounds: vec![PlannedRounds { rounds: 10, paths: 1 }],
        inner_steps: 30,
        step_tokens: 8 * 256,
        sequence_tokens: 256,
        packing: false,
        corpus_tokens: Some(1000 * 100),
        corpus_documents: Some(1000),
        ..paper()
    };
    let told = |plan: &Plan| plan.warnings.iter().find(|text| text.contains("reads its shard")).cloned();
    let plan = Plan::new(&known);
    let shard = plan.shard.unwrap();
    assert!((shard.epochs - 2.4).abs() < 1e-9, "{shard:?}");
    assert_eq!(
        (shard.documents, shard.times().as_str(), told(&plan)),
        (Some(1000.0), "at most 2.4 times", None)
    );
    // The bound of the tokens alone is less close.
    let plan = Plan::new(&Setting { corpus_documents: None, ..known.clone() });
    assert_eq!(plan.shard.unwrap().times(), "at most 6.1 times");
    assert!(told(&plan).unwrap().contains("at most 6.1 times"), "{:?}", plan.warnings);
    // Long documents are several sequences. One more token in each would make it three.
    let long = Plan::new(&Setting { corpus_tokens: Some(1000 * 512), ..known.clone() });
    let shard = long.shard.unwrap();
    assert!((shard.epochs - 1.2).abs() < 1e-9 && shard.at_most, "{shard:?}");
    let packed = Plan::new(&Setting { packing: true, ..known });
    assert_eq!(packed.shard.unwrap().times(), "6.1 times");
}

#[test]
fn a_frozen_level_has_no_rate_no_prediction_and_no_warning() {
    let frozen = PlannedLevel { trains: false, ..level(4, Some(2.8)) };
    let levels = vec![frozen, PlannedLevel { level: 1, ..level(8, Some(2.8)) }];
    let plan = Plan::new(&Setting { levels: levels.clone(), ..paper() });
    let LevelPlan { outer_rate, default_outer_rate, prediction, refused, .. } = &plan.levels[0];
    assert_eq!((outer_rate, default_outer_rate, prediction), (&None, &None, &None));
    assert!(refused.as_ref().unwrap().contains("frozen"), "{refused:?}");
    assert!(plan.levels[1].outer_rate.is_some() && plan.levels[1].prediction.is_some());
    let warned = |plan: &Plan| plan.warnings.iter().any(|text| text.contains("module of 4 paths"));
    assert!(!warned(&plan), "{:?}", plan.warnings);
    let trains = levels.iter().map(|level| PlannedLevel { trains: true, ..*level }).collect();
    assert!(warned(&Plan::new(&Setting { levels: trains, ..paper() })));
}

#[test]
fn a_tiny_path_gets_no_prediction() {
    let plan = Plan::new(&Setting { parameters: 1_400_000, ..paper() });
    assert!(plan.levels.iter().all(|level| level.prediction.is_none()));
    assert!(plan.levels[0].refused.as_ref().unwrap().contains("35M to 2.4B"), "{:?}", plan.levels[0]);
    assert_eq!(plan.dense, None);
    assert!(!plan.warnings.iter().any(|text| text.contains("law")), "{:?}", plan.warnings);
}

#[test]
fn the_time_of_a_slow_link_says_how_long_a_round_must_be() {
    let link = Some(WorkerLink { down: 1e9, up: 1e8 });
    let workers = WorkerFleet {
        workers: 16,
        tokens_per_second: 524_288.0,
        bytes_down: 4 * 1_250_000_000,
        bytes_up: 4 * 125_000_000,
        link,
    };
    let plan = Plan::new(&Setting { workers: Some(workers), ..paper() });
    let time = plan.time.unwrap();
    // A step of a path takes a second, and each worker has four paths.
    assert_eq!((time.paths_per_worker, time.training_seconds), (4, 427.0 * 150.0 * 4.0));
    assert!((time.worker_hours - 427.0 * 150.0 * 64.0 / 3600.0).abs() < 1e-6);
    // 40 s down and 40 s up in each round.
    assert!((time.transfer_seconds.unwrap() - 427.0 * 80.0).abs() < 1e-6);
    assert_eq!(time.inner_steps_for_90_percent, Some(180.0));
    // The seed's steps take a second, too.
    assert_eq!(time.seed_seconds, 24_000.0);
    assert!((time.total_seconds - (24_000.0 + 427.0 * 680.0)).abs() < 1e-6);
    let unknown = Plan::new(&Setting { workers: Some(WorkerFleet { link: None, ..workers }), ..paper() });
    assert!((unknown.time.unwrap().total_seconds - (24_000.0 + 427.0 * 600.0)).abs() < 1e-6);
}

#[test]
fn the_time_follows_a_number_of_paths_that_changes() {
    let workers = WorkerFleet {
        workers: 2,
        tokens_per_second: 1000.0,
        bytes_down: 2_000_000,
        bytes_up: 500_000,
        link: Some(WorkerLink { down: 1e6, up: 1e6 }),
    };
    let part = |rounds, paths| PlannedRounds { rounds, paths };
    let plan = Plan::new(&Setting {
        paths: 18,
        trained_paths: 4,
        rounds: vec![part(5, 1), part(4, 4), part(1, 3)],
        inner_steps: 30,
        step_tokens: 2000,
        workers: Some(workers),
        ..paper()
    });
    // 24 rounds of paths; six for each of them.
    assert_eq!((plan.training.rounds, plan.training.path_tokens), (10, 6 * 30 * 2000));
    let time = plan.time.unwrap();
    // A round of a path takes a minute. The busiest worker has one path in five rounds, and two in the others.
    assert_eq!((time.paths_per_worker, time.training_seconds), (2, 15.0 * 60.0));
    assert!((time.worker_hours - 24.0 / 60.0).abs() < 1e-9);
    // 10 s for each of its paths in each round.
    assert!((time.transfer_seconds.unwrap() - 150.0).abs() < 1e-9);
    assert_eq!(time.inner_steps_for_90_percent, Some(45.0));
}
