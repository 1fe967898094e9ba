//! Tests of values, and of values that do not fit together.

use super::*;

#[test]
fn phases_are_read_written_and_checked() {
    let text = "[routing]\nrouter_share = 0.1\n[[routing.phases]]\nround = 2\n[[routing.phases]]\nround = 5\nkind = \"discriminative\"\n";
    let config = load_text(text).unwrap().config;
    assert_eq!(config.routing.phases.iter().map(|phase| phase.round).collect::<Vec<_>>(), [2, 5]);
    assert_eq!(RunConfig::from_toml(&config.to_toml(), Path::new("again.toml")).unwrap(), config);
    assert_eq!(
        set(&["routing.phases.0.round=2", "routing.router_share=0.1"]).unwrap().config.routing.phases.len(),
        1
    );
    let (late, none) =
        ("[[routing.phases]]\nround = 10\n", "[[routing.phases]]\nkind = \"discriminative\"\n");
    let message = load_text(late).unwrap_err().to_string();
    assert!(message.contains("routing.phases[].round is 10 but train.rounds is 10"), "{message}");
    assert!(message.contains("routing.phases are set but routing.router_share is 0"), "{message}");
    assert_eq!(problems(none), [":2: routing.phases[0]: missing field `round`"]);
}

#[test]
fn values_that_do_not_fit_are_all_reported() {
    let text = "[model]\nblocks = 6\ncontext = 128\n[train]\nrounds = 0\nholdout_fraction = 1.5\n[train.adamw]\nbeta1 = 1\n[routing]\nprefix_tokens = 64\n";
    let text = load_text(text).unwrap_err().to_string();
    for named in [
        ":5: train.rounds is 0",
        "train.holdout_fraction is 1.5",
        ":8: train.adamw.beta1 is 1: it must be at least 0 and below 1",
        "train.sequence_tokens is 256 but model.context is 128",
        "evaluation.prefix_tokens is 32 but the router reads routing.prefix_tokens = 64",
        "block 4 is held by 0 levels",
    ] {
        assert!(text.contains(named), "{named}: {text}");
    }
}

#[test]
fn a_micro_batch_divides_its_batch() {
    for key in ["train", "seed_model", "transformer_router"] {
        for right in [0, 1, 2, 4, 8] {
            assert!(set(&[&format!("{key}.micro_batch={right}")]).is_ok(), "{right}");
        }
        for wrong in [3, 16] {
            let error = set(&[&format!("{key}.micro_batch={wrong}")]).unwrap_err().to_string();
            let says =
                format!("{key}.micro_batch is {wrong} but {key}.batch is 8: use a number that divides it");
            assert!(error.contains(&says), "{error}");
        }
    }
}

#[test]
fn the_micro_batch_of_a_router_is_written_only_if_there_is_one() {
    let default = RunConfig::default();
    // The settings of routers and the keys of experiments from before the key are still the same.
    assert!(!serde_json::to_string(&default.transformer_router).unwrap().contains("micro_batch"));
    let config = set(&["transformer_router.micro_batch=2"]).unwrap().config;
    assert_eq!(RunConfig::from_toml(&config.to_toml(), Path::new("again.toml")).unwrap(), config);
    assert_ne!(config.hash(), default.hash());
}

#[test]
fn the_numbers_of_products_are_named() {
    assert_eq!(set(&["model.dtype=bf16"]).unwrap().config.model.dtype, dipaco_model::Dtype::Bf16);
    let error = set(&["model.dtype=fp8"]).unwrap_err().to_string();
    assert!(error.contains("model.dtype: expected `f32` or `bf16`, found `fp8`"), "{error}");
}

#[test]
fn moments_that_are_rounded_fade_in_each_lease() {
    let config = set(&["train.state_dtype=bf16"]).unwrap().config;
    assert_eq!(config.train.state_dtype, dipaco_model::Dtype::Bf16);
    assert_eq!(RunConfig::from_toml(&config.to_toml(), Path::new("again.toml")).unwrap(), config);
    // Runs from before the key are still the same runs.
    let default = RunConfig::default();
    assert!(!serde_json::to_string(&default).unwrap().contains("state_dtype"));
    assert_ne!(config.hash(), default.hash());
    assert_eq!(config.train.of_weights().state_dtype, config.train.state_dtype, "it changes the weights");
    let error = set(&["train.state_dtype=f16"]).unwrap_err().to_string();
    assert!(error.contains("train.state_dtype: expected `f32` or `bf16`"), "{error}");
    let of = |overrides: &[&str]| {
        let bf16 = ["train.state_dtype=bf16", "train.adamw.beta2=0.999"];
        set(&bf16.iter().chain(overrides).copied().collect::<Vec<_>>())
    };
    for good in [&["train.inner_steps=8"][..], &["train.inner_steps=1", "outer.optimizer=adamw"]] {
        of(good).unwrap();
    }
    assert!(of(&["train.inner_steps=1", "train.state_dtype=f32"]).is_ok());
    for (wrong, steps) in [
        (&["train.inner_steps=7"][..], "the 7 steps of"),
        (&["train.inner_steps=30", "sync.fragments=4"], "the 7 steps of"),
        (&["sync.quorum=1", "sync.dynamic_steps=true"], "the 1 step of"),
    ] {
        let error = of(wrong).unwrap_err().to_string();
        assert!(error.contains(steps) && error.contains("at least 8 steps"), "{error}");
    }
}

#[test]
fn rescaling_is_an_exponent_or_a_name() {
    let rescale = |value: &str| set(&[&format!("outer.rescale={value}")]).unwrap().config;
    assert_eq!(rescale("none"), rescale("0"));
    assert_eq!(rescale("sqrt-paths"), rescale("0.5"));
    assert_eq!(rescale("0.5").hash(), RunConfig::default().hash());
    assert_eq!(rescale("0.25").value("outer.rescale").unwrap(), "0.25");
    assert_eq!(rescale("-0.5").outer.rescale, dipaco_sync::Rescale::Paths(-0.5));
    let text = rescale("0.25").to_toml();
    assert_eq!(RunConfig::from_toml(&text, Path::new("config.toml")).unwrap(), rescale("0.25"));
    for wrong in ["1.5", "-2"] {
        let error = set(&[&format!("outer.rescale={wrong}")]).unwrap_err().to_string();
        assert!(error.contains("use an exponent from -1 to 1"), "{error}");
    }
}

#[test]
fn an_optional_key_without_value_is_not_set() {
    let default = RunConfig::default();
    for key in [
        "model.kv_heads",
        "seed_model.optimizer",
        "seed_model.schedule.decay_fraction",
        "topology.paths",
        "routing.labels",
    ] {
        assert_eq!(default.value(key).as_deref(), Some("not set"), "{key}");
    }
    assert_eq!(set(&["model.kv_heads=2"]).unwrap().config.value("model.kv_heads").as_deref(), Some("2"));
    assert_eq!(default.value("topology.levels[0].modules").as_deref(), Some("2"));
    for key in ["topology.levels[].modules", "topology.levels[9].modules", "train.rouns"] {
        assert_eq!(default.value(key), None, "{key}");
    }
}

#[test]
fn features_can_come_from_an_untrained_seed_and_from_a_lower_block() {
    let seed = "routing.features=seed";
    assert!(set(&["seed_model.steps=0", "routing.feature_blocks=0", seed]).is_ok());
    let error = set(&["routing.feature_blocks=5", seed]).unwrap_err().to_string();
    assert!(error.contains("routing.feature_blocks is 5 but model.blocks is 4"), "{error}");
    let error = set(&["routing.feature_blocks=0"]).unwrap_err().to_string();
    assert!(error.contains("set routing.features = \"seed\""), "{error}");
}

#[test]
fn every_level_can_have_its_outer_learning_rate() {
    let config = set(&["outer.level_learning_rates=[0.5, 1]"]).unwrap().config;
    let rates = [0, 1].map(|level| config.outer.of_level(level).nesterov.learning_rate);
    assert_eq!(rates, [0.5, 1.0]);
    let default = RunConfig::default().outer.of_level(1).nesterov;
    assert_eq!(config.outer.of_level(1).nesterov.momentum, default.momentum);
    assert_eq!((default.learning_rate, default.momentum), (0.7, 0.5));
    let error = set(&["outer.level_learning_rates=[0.5]"]).unwrap_err().to_string();
    assert!(
        error.contains("outer.level_learning_rates has 1 numbers but the topology has 2 levels"),
        "{error}"
    );
    let error = set(&["outer.level_learning_rates=[0.5, 0]"]).unwrap_err().to_string();
    assert!(error.contains("outer.level_learning_rates has 0: use numbers above 0"), "{error}");
}

#[test]
fn rows_count_as_touched_only_where_nothing_else_moves_them() {
    let touched = ["outer.embedding_mean=touched", "model.embedding_decay=false"];
    assert!(set(&touched).is_ok());
    for (against, says) in [
        ("model.embedding_decay=true", "set model.embedding_decay = false"),
        ("model.tie_embeddings=true", "with model.tie_embeddings every step"),
        ("outer.delay=4", "outer.delay applies contributions one by one"),
        ("sync.eager=true", "with sync.eager a path must know"),
    ] {
        let error = set(&[touched[0], touched[1], against]).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_merge_that_compares_contributions_needs_them_together() {
    for merge in ["clipped", "trimmed"] {
        let merge = format!("outer.merge={merge}");
        assert!(set(&[&merge]).is_ok());
        let error = set(&[&merge, "outer.delay=4", "sync.quorum=1"]).unwrap_err().to_string();
        assert!(error.contains("use \"mean\", or outer.delay = 0"), "{error}");
        let error = set(&[&merge, "sync.eager=true"]).unwrap_err().to_string();
        assert!(error.contains("with sync.eager a path must know its part of the result"), "{error}");
    }
    for wrong in ["outer.trim_share=0.5", "outer.trim_share=-0.1", "outer.clip_radius=0"] {
        let (key, _) = wrong.split_once('=').unwrap();
        let error = set(&[wrong]).unwrap_err().to_string();
        assert!(error.contains(&format!("{key} is ")), "{error}");
    }
    let error = set(&["outer.clip_radius=nan"]).unwrap_err().to_string();
    assert!(error.contains("outer.clip_radius: nan is not a finite number"), "{error}");
    assert!(set(&["outer.merge=median"]).is_err());
}

#[test]
fn a_part_of_the_paths_trains_only_in_rounds_of_their_own() {
    let of = |overrides: &[&str]| {
        let all: Vec<&str> = ["train.paths_per_round=2"].iter().chain(overrides).copied().collect();
        set(&all)
    };
    assert_eq!(of(&[]).unwrap().config.train.paths_per_round, PathsPerRound::Always(2));
    for against in
        ["sync.fragments=2", "sync.overlap_steps=1", "sync.quorum=1", "sync.blend=0.5", "sync.drop_rate=0.1"]
    {
        let error = of(&[against]).unwrap_err().to_string();
        assert!(error.contains("each outer gradient must belong to one round"), "{against}: {error}");
    }
    let error = set(&["train.paths_per_round=5"]).unwrap_err().to_string();
    assert!(error.contains("train.paths_per_round is 5 but 4 paths train: use at most 4"), "{error}");
    // Runs from before the key are still the same runs.
    let default = RunConfig::default();
    assert!(!serde_json::to_string(&default).unwrap().contains("paths_per_round"));
    assert_ne!(of(&[]).unwrap().config.hash(), default.hash());
}

#[test]
fn synchronous_training_has_nothing_beside_its_steps() {
    let good = "[outer]\noptimizer = \"adamw\"\n[train]\ninner_steps = 1\n";
    let config = load_text(good).unwrap().config;
    assert_eq!(config.inner_optimizer(), Optimizer::Gradient);
    assert_eq!(RunConfig::default().inner_optimizer(), Optimizer::AdamW);
    let wrong = "[outer]\noptimizer = \"adamw\"\ndelay = 2\nbroadcast = \"int8\"\nlevel_learning_rates = [1]\n\
                 [train]\noptimizer = \"muon\"\n[sync]\nfragments = 2\n";
    let message = load_text(wrong).unwrap_err().to_string();
    for named in [
        "set train.inner_steps = 1",
        "train.optimizer is another one",
        "outer.delay delays",
        "outer.broadcast rounds",
        "outer.level_learning_rates are",
        "a step needs the weights after the step before",
    ] {
        assert!(message.contains(named), "{named}: {message}");
    }
    // The paths' own plain steps are no choice of a user.
    assert!(load_text("[train]\noptimizer = \"gradient\"\n").is_err());
}

#[test]
fn synchronous_training_has_one_schedule_over_all_phases() {
    let load = |schedule: &str, phases: &str| {
        load_text(&format!(
            "[outer]\noptimizer = \"adamw\"\n[train]\ninner_steps = 1\nschedule_at_phase = \"{schedule}\"\n{phases}"
        ))
    };
    let phases = "[routing]\nrouter_share = 0.1\n[[routing.phases]]\nround = 2\n";
    load("continue", phases).unwrap();
    load("restart", "").unwrap();
    let message = load("restart", phases).unwrap_err().to_string();
    assert!(message.contains("use train.schedule_at_phase = \"continue\""), "{message}");
}
