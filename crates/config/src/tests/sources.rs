//! Tests of files, variables and overrides.

use super::*;

#[test]
fn later_sources_win() {
    let (_directory, path) = file("[train]\nrounds = 5\nbatch = 5\ninner_steps = 5\n");
    let sources = Sources {
        pretrained: None,
        file: Some(path.clone()),
        environment: vec![
            ("PATH".into(), "/bin".into()),
            ("DIPACO__TRAIN__BATCH".into(), "6".into()),
            ("DIPACO__TRAIN__INNER_STEPS".into(), "6".into()),
        ],
        overrides: vec!["train.inner_steps=7".into(), "run.name=given".into(), "run.seed = 0x10".into()],
    };
    let resolved = RunConfig::load(&sources).unwrap();
    let train = &resolved.config.train;
    assert_eq!((train.rounds, train.batch, train.inner_steps), (5, 6, 7));
    assert_eq!((resolved.config.run.name.as_str(), resolved.config.run.seed), ("given", 16));
    assert_eq!(resolved.origins["train.rounds"], Origin::File { path, line: 2 });
    assert_eq!(resolved.origins["train.batch"], Origin::Environment("DIPACO__TRAIN__BATCH".into()));
    assert!(!resolved.origins.contains_key("train.sequence_tokens"));
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_name() {
    assert_eq!(
        problems(
            "[train]\nrounds = 2\nbacth = 3\n[mdoel]\nblocks = 2\nheads = 4\n[run]\nrounds = 3\nxyzzy = 1\n"
        ),
        [
            ":5: unknown key `mdoel` (did you mean `model`?)",
            ":8: unknown key `run.rounds` (did you mean `train.rounds`?)",
            ":9: unknown key `run.xyzzy` (`dipaco config keys` lists all keys)",
            ":3: unknown key `train.bacth` (did you mean `train.batch`?)",
        ]
    );
    assert_eq!(
        problems("[[topology.levels]]\nmodules = 1\nblock = \"0..4\"\n"),
        [":3: unknown key `topology.levels[0].block` (did you mean `topology.levels[].blocks`?)"]
    );
}

#[test]
fn wrong_types_name_the_key_and_the_place() {
    let text = "[train]\nrounds = \"many\"\nbatch = -1\n[model]\ntie_embeddings = 1\n[run]\nname = true\n\
                [outer]\nrescale = \"sqrt\"\n";
    let mut found = problems(text);
    found.sort();
    assert_eq!(
        found,
        [
            ":2: train.rounds: expected a whole number from 0, found the string \"many\"",
            ":3: train.batch: expected a whole number from 0, found the number -1",
            ":5: model.tie_embeddings: expected true or false, found the number 1",
            ":7: run.name: expected a string, found true",
            ":9: outer.rescale: expected an exponent, \"none\", \"sqrt-paths\" or \"rda\", found the string \"sqrt\"",
        ]
    );
    assert_eq!(problems("train = 3\n"), [":1: train: expected a section, found the value 3"]);
    assert_eq!(
        problems("[train.rounds]\nx = 3\n"),
        [":2: train.rounds: expected a value, found a section or list"]
    );
    assert_eq!(
        problems("[train]\nholdout_fraction = inf\n"),
        [":2: train.holdout_fraction: inf is not a finite number"]
    );
}

#[test]
fn numbers_that_can_not_be_saved_are_refused() {
    let largest = set(&["train.holdout_sequences=9223372036854775807"]).unwrap().config;
    assert!(largest.to_toml().contains("holdout_sequences = 9223372036854775807\n"));
    for larger in ["9223372036854775808", "0xffff_ffff_ffff_ffff", "99999999999999999999"] {
        for key in ["train.holdout_sequences", "run.seed"] {
            let error = set(&[&format!("{key}={larger}")]).unwrap_err().to_string();
            assert!(error.contains("is out of range: the largest number is 9223372036854775807"), "{error}");
            assert!(error.contains(&format!("{key}: ")), "{error}");
        }
    }
}

#[test]
fn invalid_toml_is_reported_with_its_place() {
    let found = problems("[train]\nrounds = = 3\n");
    assert!(found[0].starts_with(":2: this is not valid TOML"), "{found:?}");
    assert!(problems("[run]\nseed = 1\nseed = 2\n")[0].starts_with(":3: this is not valid TOML"));
}

#[test]
fn a_file_replaces_the_levels_as_a_whole() {
    let text = "[model]\nblocks = 2\n[[topology.levels]]\nmodules = 3\nblocks = \"0..2\"\nembedding = true\nhead = true\n";
    let topology = load_text(text).unwrap().config.topology;
    assert_eq!((topology.levels.len(), topology.levels[0].modules), (1, dipaco_topology::Modules::Count(3)));
    let missing = problems("[[topology.levels]]\nblocks = \"0..4\"\n");
    assert_eq!(missing, [":2: topology.levels[0]: missing field `modules`"]);
}

#[test]
fn levels_can_be_set_one_by_one() {
    let config = set(&["topology.levels[1].modules=4", "topology.levels.0.modules=paths"]).unwrap().config;
    assert_eq!(config.topology.levels[0].modules, dipaco_topology::Modules::Paths);
    assert_eq!(config.topology.levels[1].modules, dipaco_topology::Modules::Count(4));
    let error = set(&["topology.levels[9].modules=4"]).unwrap_err().to_string();
    assert!(error.contains("topology.levels[9].modules: the list has no such element"), "{error}");
    let all =
        set(&["topology.levels=[{modules = 8, blocks = \"0..4\", embedding = true, head = true}]"]).unwrap();
    assert_eq!(all.config.topology.levels.len(), 1);
}

#[test]
fn overrides_are_toml_or_text() {
    assert_eq!(set(&["run.name=7"]).unwrap().config.run.name, "7");
    // In TOML it is a date.
    assert_eq!(set(&["run.name=2026-11-28"]).unwrap().config.run.name, "2026-11-28");
    let error = set(&["train.rounds=2026-11-28"]).unwrap_err().to_string();
    assert!(error.contains("expected a whole number from 0, found the string \"2026-11-28\""), "{error}");
    assert_eq!(
        problems("[run]\nname = 2026-11-28\n"),
        [":2: run.name: found the date or time 2026-11-28, but no key takes dates or times"]
    );
    assert_eq!(set(&["run.directory=some/where"]).unwrap().config.run.directory, Some("some/where".into()));
    assert_eq!(set(&["run.name=a=b"]).unwrap_err().to_string().matches("run.name").count(), 2);
    let error = set(&["train.rounds"]).unwrap_err().to_string();
    assert_eq!(error, "--set train.rounds: no value is given (write --set section.key=value)");
    assert!(set(&["=3"]).unwrap_err().to_string().contains("`` is not a key"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error =
        RunConfig::load(&Sources { file: Some("none.toml".into()), ..Sources::default() }).unwrap_err();
    assert!(error.to_string().contains("none.toml"), "{error}");
}

#[test]
fn a_pretrained_model_brings_its_rates_and_outer_step_and_the_user_may_choose_others() {
    let model = dipaco_model::ModelConfig { vocab_size: 1000, ..dipaco_model::ModelConfig::default() };
    let pretrained = Pretrained { path: "model".into(), model };
    let rates = |overrides: &[&str]| {
        let overrides = overrides.iter().map(|&set| set.to_owned()).collect();
        let resolved = RunConfig::load(&Sources {
            pretrained: Some(pretrained.clone()),
            overrides,
            ..Sources::default()
        });
        let resolved = resolved.unwrap();
        let RunConfig { seed_model, train, .. } = &resolved.config;
        (
            (seed_model.adamw.learning_rate, train.adamw.learning_rate),
            resolved.origins["train.adamw.learning_rate"].clone(),
        )
    };
    assert_eq!(rates(&[]), ((1e-4, 1e-4), Origin::Pretrained("model".into())));
    assert_eq!(rates(&["train.adamw.learning_rate=3e-5"]).0, (1e-4, 3e-5));
    let outer = |overrides: &[&str]| {
        let overrides = overrides.iter().map(|&set| set.to_owned()).collect();
        let sources = Sources { pretrained: Some(pretrained.clone()), overrides, ..Sources::default() };
        let outer = RunConfig::load(&sources).unwrap().config.outer;
        (outer.rescale.factor(4), outer.nesterov.learning_rate, outer.nesterov.momentum)
    };
    assert_eq!(outer(&[]), (1.0, 0.35, 0.9));
    let other =
        ["outer.rescale=sqrt-paths", "outer.nesterov.learning_rate=0.7", "outer.nesterov.momentum=0.5"];
    assert_eq!(outer(&other), (2.0, 0.7, 0.5));
    let random = set(&[]).unwrap().config;
    assert!(random.seed_model.adamw.learning_rate > 1e-4 && random.train.adamw.learning_rate > 1e-4);
}

#[test]
fn later_parts_win_and_each_problem_names_its_part() {
    let base = ConfigPart::of_file("[train]\nrounds = 5\nbatch = 5\n", Path::new("base.toml"));
    let part = |text: &str, name: &str| ConfigPart::named(text, name);
    let levels = "topology.levels = [{ modules = 1, blocks = \"0..4\", embedding = true, head = true }]";
    let parts = [base.clone(), part("train.batch = 6", "run `a`"), part(levels, "run `b`")];
    let config = RunConfig::from_parts(&parts, None).unwrap();
    assert_eq!((config.train.rounds, config.train.batch, config.topology.levels.len()), (5, 6, 1));

    let wrong =
        [base, part("train.batch = 6\ntrain.rouns = 3", "run `a`"), part("train.batch = -1", "run `b`")];
    let message = RunConfig::from_parts(&wrong, None).unwrap_err().to_string();
    for says in [
        "run `a`: unknown key `train.rouns` (did you mean `train.rounds`?)",
        "run `b`: train.batch: expected a whole number from 0, found the number -1",
    ] {
        assert!(message.contains(says), "{message}");
    }
    let base = ConfigPart::of_file("[train]\n\nrouns = 5\n", Path::new("base.toml"));
    let message = RunConfig::from_parts(&[base], None).unwrap_err().to_string();
    assert!(message.starts_with("base.toml:3: unknown key `train.rouns`"), "{message}");
    // A value out of range has its place, too.
    let message = RunConfig::from_parts(&[part("train.batch = 0", "router `r`")], None).unwrap_err();
    assert!(message.to_string().contains("router `r`: train.batch"), "{message}");
}
