use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.toml");
    std::fs::write(&path, text).unwrap();
    (directory, path)
}

fn load_text(text: &str) -> Result<Resolved, ConfigError> {
    let (_directory, path) = file(text);
    RunConfig::load(&Sources { file: Some(path), ..Sources::default() })
}

fn problems(text: &str) -> Vec<String> {
    let ConfigError::Problems(problems) = load_text(text).unwrap_err() else { panic!("no problems") };
    // The path of the temporary directory is cut off.
    problems.iter().map(|p| p.to_string().split_once("run.toml").unwrap().1.to_owned()).collect()
}

fn set(overrides: &[&str]) -> Result<Resolved, ConfigError> {
    RunConfig::load(&Sources {
        overrides: overrides.iter().map(|&s| s.to_owned()).collect(),
        ..Sources::default()
    })
}

#[test]
fn every_key_is_documented_and_every_documented_key_exists() {
    fn collect(value: &Value, path: &str, out: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    collect(value, &path, out);
                }
            }
            Value::Array(list) if list.iter().any(Value::is_object) => {
                list.iter().for_each(|element| collect(element, &format!("{path}[]"), out));
            }
            _ => {
                out.insert(path.to_owned());
            }
        }
    }
    let mut exist = BTreeSet::new();
    let mut config = RunConfig::default();
    config.routing.phases.push(PhaseConfig::default());
    // Not written if it is not set.
    config.model.kv_heads = Some(2);
    collect(&serde_json::to_value(config).unwrap(), "", &mut exist);
    let documented: BTreeSet<String> = keys().map(|doc| doc.key.to_owned()).collect();
    assert_eq!(exist, documented);
    assert_eq!(keys().count(), documented.len(), "a key is documented twice");
    let sections: BTreeSet<&str> = keys().map(|doc| doc.key.rsplit_once('.').unwrap().0).collect();
    assert_eq!(sections, SECTIONS.iter().map(|&(section, _)| section).collect());
    for doc in keys() {
        assert!(
            doc.text.ends_with('.') && !doc.unit.is_empty(),
            "{} is not documented in a sentence",
            doc.key
        );
    }
}

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
    assert_eq!(set(&["run.directory=some/where"]).unwrap().config.run.directory, Some("some/where".into()));
    assert_eq!(set(&["run.name=a=b"]).unwrap_err().to_string().matches("run.name").count(), 2);
    let error = set(&["train.rounds"]).unwrap_err().to_string();
    assert_eq!(error, "--set train.rounds: no value is given (write --set section.key=value)");
    assert!(set(&["=3"]).unwrap_err().to_string().contains("`` is not a key"));
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
    for key in ["train", "seed_model"] {
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
fn the_numbers_of_products_are_named() {
    assert_eq!(set(&["model.dtype=bf16"]).unwrap().config.model.dtype, dipaco_model::Dtype::Bf16);
    let error = set(&["model.dtype=fp8"]).unwrap_err().to_string();
    assert!(error.contains("model.dtype: expected `f32` or `bf16`, found `fp8`"), "{error}");
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
    assert_eq!(config.outer.of_level(1).nesterov.momentum, 0.9);
    assert_eq!(RunConfig::default().outer.of_level(1).nesterov.learning_rate, 0.35);
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
fn a_written_configuration_is_read_back() {
    let mut config = RunConfig::default();
    config.run.directory = Some("runs/other \"one\"".into());
    config.train.adamw.epsilon = 1.5e-9;
    config.topology.levels[1].modules = dipaco_topology::Modules::Paths;
    for config in [RunConfig::default(), config] {
        let text = config.to_toml();
        assert_eq!(RunConfig::from_toml(&text, Path::new("config.toml")).unwrap(), config, "{text}");
    }
    let text = RunConfig::default().to_toml();
    assert!(text.contains("# H, inner steps of a path per round."), "{text}");
    assert!(text.contains("Unit: steps. Default: 30.\ninner_steps = 30\n"), "{text}");
}

#[test]
fn the_hash_is_about_the_result() {
    let config = RunConfig::default();
    let mut moved = config.clone();
    moved.run.name = "other".into();
    moved.train.threads_per_worker = 3;
    assert_eq!(config.hash(), moved.hash());
    assert!(config.differences(&moved).is_empty());
    let mut other = config.clone();
    other.train.inner_steps = 31;
    other.topology.levels.pop();
    assert_ne!(config.hash(), other.hash());
    let differences = config.differences(&other);
    assert!(differences.contains(&("train.inner_steps".into(), "30".into(), "31".into())), "{differences:?}");
    assert!(differences.contains(&("topology.levels[1].modules".into(), "2".into(), "not set".into())));
}

#[test]
fn free_keys_do_not_count_for_the_weights() {
    let default = RunConfig::default();
    for doc in keys().filter(|doc| doc.key.starts_with("train.") || doc.key.starts_with("seed_model.")) {
        let other = match default.value(doc.key).unwrap().as_str() {
            "false" => "true".to_owned(),
            "\"continue\"" => "restart".to_owned(),
            "\"same\"" => "any".to_owned(),
            number => format!("{}", number.parse::<f64>().unwrap() / 2.0 + 2.0).replace(".5", ""),
        };
        let other = if number_below_one(doc.key) { "0.5".to_owned() } else { other };
        let config = set(&[&format!("{}={other}", doc.key)]).unwrap().config;
        let same = config.seed_model.of_weights() == default.seed_model.of_weights()
            && config.train.of_weights() == default.train.of_weights();
        assert_eq!(same, !doc.affects_result, "{}", doc.key);
    }
}

fn number_below_one(key: &str) -> bool {
    ["beta1", "beta2", "final_fraction", "holdout_fraction"].iter().any(|name| key.ends_with(name))
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error =
        RunConfig::load(&Sources { file: Some("none.toml".into()), ..Sources::default() }).unwrap_err();
    assert!(error.to_string().contains("none.toml"), "{error}");
}

#[test]
fn every_ready_configuration_loads() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        // `dipaco-experiment` tests the experiments.
        if path.is_dir() {
            continue;
        }
        let resolved = RunConfig::load(&Sources { file: Some(path.clone()), ..Sources::default() });
        let config = resolved.unwrap_or_else(|error| panic!("{error}")).config;
        let topology = dipaco_topology::Topology::new(&config.topology, config.model.blocks).unwrap();
        paths.push((
            path.file_stem().unwrap().to_str().unwrap().to_owned(),
            topology.paths(),
            topology.module_ids().count(),
        ));
    }
    paths.sort();
    let paths: Vec<(&str, u32, usize)> =
        paths.iter().map(|(name, paths, modules)| (name.as_str(), *paths, *modules)).collect();
    assert_eq!(
        paths,
        [
            ("dense", 1, 1),
            ("diloco", 4, 1),
            ("flat-moe", 4, 4),
            ("paper-150m-16x16", 256, 32),
            ("paper-8x8-path-specific", 64, 80),
            ("quickstart", 4, 4),
            ("serve", 4, 4),
            ("small", 16, 8),
            ("smollm2-2x2", 4, 5),
            ("smollm2-4x4", 16, 9),
            ("tiny", 4, 4),
        ]
    );
}

#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("DIPACO_WRITE_DOCS").is_some() {
        std::fs::write(&path, reference()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == reference(),
        "docs/configuration.md is out of date: DIPACO_WRITE_DOCS=1 cargo test -p dipaco-config writes it"
    );
}

#[test]
fn every_configuration_of_the_repository_can_be_run() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs"));
    let mut checked = 0;
    for folder in [folder.to_owned(), folder.join("schemes")] {
        for file in std::fs::read_dir(folder).unwrap() {
            let file = file.unwrap().path();
            if file.extension().is_some_and(|ending| ending == "toml") {
                let text = std::fs::read_to_string(&file).unwrap();
                RunConfig::from_toml(&text, &file).unwrap().check().unwrap();
                checked += 1;
            }
        }
    }
    assert!(checked >= 12, "{checked} files");
}
