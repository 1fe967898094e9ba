use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dipaco_topology::{ModuleId, Topology};
use serde_json::Value;

use super::*;

mod sources;
mod values;

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
    config.outer.optimizer = dipaco_optim::OuterOptimizer::AdamW;
    config.topology.levels[0].frozen = true;
    (config.topology.paths, config.topology.kept_paths) = (vec![vec![0, 0]], 1);
    (config.train.optimizer, config.seed_model.optimizer) = (Optimizer::Muon, Optimizer::Muon);
    config.train.paths_per_round = PathsPerRound::Always(2);
    config.train.state_dtype = dipaco_model::Dtype::Bf16;
    config.transformer_router.micro_batch = 1;
    for schedule in
        [&mut config.train.schedule, &mut config.seed_model.schedule, &mut config.transformer_router.schedule]
    {
        schedule.decay_fraction = Some(0.2);
    }
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
fn a_frozen_level_is_written_only_where_there_is_one() {
    let default = RunConfig::default();
    assert!(!serde_json::to_string(&default).unwrap().contains("frozen"));
    assert!(!default.to_toml().contains("\nfrozen"), "{}", default.to_toml());
    let frozen = set(&["topology.levels[0].frozen=true"]).unwrap().config;
    assert!(frozen.to_toml().contains("frozen = true"));
    assert_ne!(frozen.hash(), default.hash());
    let error = set(&["topology.levels[0].frozen=true", "topology.levels[1].frozen=true"]).unwrap_err();
    assert!(error.to_string().contains("nothing to train"), "{error}");
}

#[test]
fn listed_and_kept_paths_are_written_and_read_back() {
    let default = RunConfig::default();
    let json = serde_json::to_string(&default.topology).unwrap();
    assert!(!json.contains("paths") && !json.contains("kept"), "older hashes stay: {json}");
    let config = set(&["topology.paths=[[0,0],[0,1],[1,0],[1,1]]", "topology.kept_paths=4"]).unwrap().config;
    let text = config.to_toml();
    assert!(
        text.contains("paths = [[0, 0], [0, 1], [1, 0], [1, 1]]") && text.contains("kept_paths = 4"),
        "{text}"
    );
    assert_eq!(RunConfig::from_toml(&text, Path::new("config.toml")).unwrap(), config, "{text}");
    assert_ne!(config.hash(), default.hash());
    let error = set(&["topology.kept_paths=1"]).unwrap_err().to_string();
    assert!(error.contains("which path 0 of topology.kept_paths keeps"), "{error}");
    let phases = "routing.phases=[{round=1}]";
    let error = set(&["topology.kept_paths=4", "routing.router_share=0.1", phases]).unwrap_err().to_string();
    assert!(error.contains("so leave routing.phases out"), "{error}");
}

#[test]
fn the_optimizer_is_written_only_if_it_is_not_adamw() {
    let default = RunConfig::default();
    assert!(!serde_json::to_string(&default).unwrap().contains("optimizer"));
    let muon = set(&["train.optimizer=muon"]).unwrap().config;
    assert_eq!((muon.train.optimizer, muon.seed_model.optimizer), (Optimizer::Muon, Optimizer::AdamW));
    let read = RunConfig::from_toml(&muon.to_toml(), Path::new("config.toml")).unwrap();
    assert_eq!(read, muon);
    assert_ne!(muon.hash(), default.hash());
    let error = set(&["train.optimizer=sgd"]).unwrap_err().to_string();
    assert!(error.contains("adamw") && error.contains("muon"), "{error}");
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
        // Optimizer, decay, paths of a round and the type of states are not written if they are the default.
        let other = match default.value(doc.key).unwrap().as_str() {
            "not set" if doc.key.ends_with("paths_per_round") => "2".to_owned(),
            "not set" if doc.key.ends_with("state_dtype") => "bf16".to_owned(),
            "not set" => "muon".to_owned(),
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
    ["beta1", "beta2", "decay_fraction", "final_fraction", "holdout_fraction"]
        .iter()
        .any(|name| key.ends_with(name))
}

#[test]
fn the_number_of_paths_of_a_round_is_checked() {
    let of = |value: &str| problems(&format!("[train]\nrounds = 10\npaths_per_round = {value}\n")).join(" ");
    for good in ["2", "[[0, 2]]", "[[0, 1], [3, 0], [9, 4]]"] {
        let loaded = load_text(&format!("[train]\nrounds = 10\npaths_per_round = {good}\n"));
        loaded.unwrap_or_else(|error| panic!("{good}: {error}"));
    }
    for wrong in ["[]", "[[1, 2]]", "[[0, 2], [0, 3]]", "[[0, 2], [5, 3], [4, 1]]", "[[0, 2], [10, 3]]"] {
        assert!(
            of(wrong).contains("must begin with 0 rounds, go up, and end before the 10 rounds"),
            "{wrong}"
        );
    }
    assert!(of("[[0, 2], [5, 5]]").contains("train.paths_per_round is 5 but 4 paths train"));
    assert!(of("\"many\"").contains("a number of paths, or a list of [rounds before, paths]"));
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
        let topology = Topology::new(&config.topology, config.model.blocks).unwrap();
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
            ("quickstart", 4, 4),
            ("serve", 4, 4),
            ("small", 16, 8),
            ("smollm2-2x2", 4, 5),
            ("smollm2-2x2-upper", 4, 5),
            ("smollm2-4x4", 16, 9),
            ("tiny", 4, 4),
        ]
    );
}

#[test]
fn the_configurations_of_the_paper_have_its_sizes() {
    // arXiv:2403.10616, tables 1 and 3; arXiv:2311.08105, table 1. For the path-specific modules table 1 says 5.3B: its
    // blocks have relative positions too. 16 × 16 is not counted there.
    let sizes = [
        ("2x4", 8, 0.5),
        ("8x8", 64, 1.2),
        ("8x8-path-specific", 64, 5.1),
        ("16x16", 256, 2.4),
        ("flat-moe-64", 64, 9.7),
        ("diloco", 8, 0.15),
    ];
    for (name, paths, billions) in sizes {
        let file = format!("{}/../../configs/paper/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let config =
            RunConfig::load(&Sources { file: Some(file.into()), ..Sources::default() }).unwrap().config;
        let topology = Topology::new(&config.topology, config.model.blocks).unwrap();
        assert_eq!(topology.paths(), paths, "{name}");
        let of_module = |module: ModuleId| {
            dipaco_model::parameters(&dipaco_model::level_specs(
                &config.model,
                &topology,
                module.level.into(),
            ))
        };
        let parameters: usize = topology.module_ids().map(of_module).sum();
        let found = parameters as f64 / 1e9;
        assert!((found / billions - 1.0).abs() < 0.05, "{name}: {found:.3}B parameters");
        // 24,000 steps of the seed and 64,000 of each path.
        assert_eq!(config.seed_model.steps, 24_000, "{name}");
        let steps = config.train.rounds as u64 * config.train.inner_steps as u64;
        assert!((64_000..64_100).contains(&steps), "{name}: {steps}");
        // §4: rounds of 150 steps; DiLoCo has 500. Evaluation has 2,048 tokens, of which the first 32 are not counted.
        assert_eq!(config.train.inner_steps, if name == "diloco" { 500 } else { 150 }, "{name}");
        let evaluation = &config.evaluation;
        assert_eq!((evaluation.prefix_tokens, evaluation.sequence_tokens), (32, 2048), "{name}");
        if name == "diloco" {
            continue;
        }
        // §2.4: 0.5 % of the documents for the router of a second phase, and a transformer router of 2,000 steps. With 16 × 16
        // paths each document goes to its two best.
        let routing = &config.routing;
        assert_eq!((routing.router_share, routing.phases.len()), (0.005, 1), "{name}");
        assert_eq!(routing.overlap, if name == "16x16" { 2 } else { 1 }, "{name}");
        assert_eq!(config.transformer_router.steps, 2_000, "{name}");
        // §7.2.2: a step of the router has as many tokens as one of a path. Its sequences have the length of the context.
        let of_path = config.train.batch * config.train.sequence_tokens;
        let of_router = config.transformer_router.batch * config.model.context;
        assert_eq!((of_path, of_router), (512 * 1_024, 512 * 1_024), "{name}");
        // Clusters keep the numbers that k-means gave them.
        assert!(!routing.arrange, "{name}");
    }
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
    for folder in [folder.to_owned(), folder.join("paper"), folder.join("schemes")] {
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
