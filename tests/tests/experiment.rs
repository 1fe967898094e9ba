//! Experiments through the real binary: each cell is trained once, despite interruptions.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dipaco_tests::fixtures::{TINY, corpus, fixture, root};
use dipaco_tests::process::{Output, Process, Signal, command, dipaco, output};
use dipaco_tests::run::snapshot;
use tempfile::TempDir;

const EXPERIMENT: &str = r#"
name = "tiny"
title = "Tiny"
seeds = [1, 2]
base = "base.toml"
[configuration]
seed_model.steps = 20
routing.restarts = 1
train.rounds = 2
[[evaluations]]
name = "once"
[[evaluations]]
name = "best"
early_stopping = true
[[runs]]
name = "dense"
[runs.configuration]
topology.levels = [{ modules = 1, blocks = "0..2", embedding = true, head = true }]
outer = { rescale = "none", nesterov = { learning_rate = 1.0, momentum = 0.0 } }
[[runs]]
name = "2 × 2"
"#;

/// An experiment file and the folder of its results.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(bench.folder.path().join("base.toml"), TINY).unwrap();
        fs::write(bench.file(), EXPERIMENT).unwrap();
        bench
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("tiny.toml")
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    fn command(&self, words: &str) -> Command {
        let mut command = command(["experiment", "run"]);
        command.arg(self.file()).arg("--out").arg(self.out()).args(words.split_whitespace());
        for input in corpus() {
            command.arg("--data").arg(input);
        }
        command
    }

    fn run(&self, words: &str) -> Output {
        output(self.command(words))
    }

    fn results(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.out().join("tiny.json")).unwrap()).unwrap()
    }
}

/// Perplexities by cell and evaluation.
fn perplexities(results: &serde_json::Value) -> Vec<(String, f64)> {
    let cells = results["cells"].as_array().unwrap().iter();
    cells
        .flat_map(|cell| {
            let measured = cell["measurements"].as_array().unwrap().iter();
            measured.map(move |found| {
                let name = format!("{} {} {}", cell["run"], cell["seed"], found["evaluation"]);
                (name, found["perplexity"].as_f64().unwrap())
            })
        })
        .collect()
}

#[test]
fn an_experiment_becomes_a_table_and_is_not_repeated() {
    let bench = Bench::new();
    let first = bench.run("").succeeded().says("| dense | once | 1 |").says("| 2 × 2 | best | 4 |");
    let found = perplexities(&bench.results());
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "\"dense\" 1 \"once\"",
            "\"2 × 2\" 1 \"once\"",
            "\"2 × 2\" 1 \"best\"",
            "\"dense\" 2 \"once\"",
            "\"2 × 2\" 2 \"once\"",
            "\"2 × 2\" 2 \"best\""
        ]
    );
    assert_eq!(fs::read_dir(bench.out().join("seeds")).unwrap().count(), 2, "one seed model for each seed");
    let before = snapshot(&bench.out());
    // A part of the experiment shows the other finished cells as well.
    for words in ["", "--run dense --seed 2"] {
        let again = bench.run(words).succeeded();
        assert_eq!(again.stdout, first.stdout);
        assert_eq!(snapshot(&bench.out()), before);
    }
    let table =
        command(["experiment", "table"]).arg(bench.file()).arg("--out").arg(bench.out()).output().unwrap();
    assert_eq!(String::from_utf8(table.stdout).unwrap(), first.stdout);
    for typo in ["--validation nowhere", "--data nowhere", "--labels nowhere"] {
        let _ = bench.run(typo).failed(1, &["nowhere", "No such file"]);
        assert_eq!(snapshot(&bench.out()), before, "{typo}: the results stay");
    }
    let manifests = bench.folder.path().join("text/store/manifest");
    fs::create_dir_all(&manifests).unwrap();
    fs::write(manifests.join("00000000000000000001.json"), r#"{"schema":"dipaco-run"}"#).unwrap();
    let mut around = bench.command("");
    around.arg("--data").arg(bench.folder.path().join("text"));
    let _ = output(around).failed(2, &["is the store of a run"]);
    assert_eq!(snapshot(&bench.out()), before, "a store in the text: the results stay");
}

/// A sweep of outer rates for the run `dense`.
fn swept(values: &str) -> String {
    let sweep = format!("key = \"outer.nesterov.learning_rate\"\nvalues = {values}\nruns = [\"dense\"]\n");
    format!("{EXPERIMENT}[[sweeps]]\n{sweep}")
}

#[test]
fn a_run_has_the_value_that_its_sweep_chose() {
    let bench = Bench::new();
    fs::write(bench.file(), swept("[0.5, 1.0]")).unwrap();
    let listed = bench.run("--dry-run").succeeded();
    let _ = listed.says("6 cells").says("dense · outer.nesterov.learning_rate = 0.5 · seed 1");
    let first = bench.run("").succeeded().says("| dense | outer.nesterov.learning_rate | 1 | 0.5: ");
    let results = bench.results();
    let sweep = &results["sweeps"][0];
    let perplexity = |index: usize| sweep["values"][index]["perplexity"].as_f64().unwrap();
    let best = if perplexity(1) < perplexity(0) { 1 } else { 0 };
    assert_eq!(sweep["chosen"], sweep["values"][best]["value"]);
    let dense = perplexities(&results)[0].clone();
    assert_eq!(dense, ("\"dense\" 1 \"once\"".to_owned(), perplexity(best)));
    let cells = fs::read_dir(bench.out().join("cells")).unwrap().count();
    assert_eq!(cells, 5, "the cell of the best value is the run's own");
    let before = snapshot(&bench.out());
    for words in ["", "--run dense", "--seed 2"] {
        assert_eq!(bench.run(words).succeeded().stdout, first.stdout);
        assert_eq!(snapshot(&bench.out()), before);
    }
}

#[test]
fn a_swept_value_that_fails_is_not_chosen() {
    let bench = Bench::new();
    fs::write(bench.file(), swept("[1.0, 1e38]")).unwrap();
    let _ = bench.run("--run dense --seed 2").failed(1, &["0.0 · seed 1, failed", "1 of 3 cells failed"]);
    let results = bench.results();
    let sweep = &results["sweeps"][0];
    assert_eq!((&sweep["chosen"], &sweep["at_end"]), (&serde_json::json!(1.0), &serde_json::json!(true)));
    assert!(sweep["values"][1]["perplexity"].is_null());
    let names: Vec<String> = perplexities(&results).into_iter().map(|(name, _)| name).collect();
    // The cell of seed 1 is that of the sweep.
    assert_eq!(names, ["\"dense\" 1 \"once\"", "\"dense\" 2 \"once\""]);
    fs::write(bench.file(), swept("[2e38, 3e38]")).unwrap();
    let _ = bench.run("--run dense --seed 2").failed(1, &["no value has a result", "2 of 3 cells failed"]);
    assert!(bench.results()["cells"].as_array().unwrap().is_empty(), "no value, no cell");
}

/// The rows of the run's own router need no transformer router, and equal those of one `evaluate`.
#[test]
fn a_table_compares_the_ways_to_choose_paths() {
    let bench = Bench::new();
    let ways = r#"
[[evaluations]]
name = "by window"
configuration.evaluation.route = "window"
[[evaluations]]
name = "by features"
configuration.evaluation = { reroute_tokens = 16, reroute_by = "features" }
[[runs]]
name = "2 × 2"
"#;
    let best = "[[evaluations]]\nname = \"best\"\nearly_stopping = true\n";
    let text = EXPERIMENT.replace(best, "").replace("\n[[runs]]\nname = \"2 × 2\"\n", ways);
    fs::write(bench.file(), text).unwrap();
    let _ = bench.run("--seed 1").succeeded().says("| 2 × 2 | by window | 4 |");
    let results = bench.results();
    let cell = results["cells"].as_array().unwrap().iter().find(|cell| cell["run"] == "2 × 2").unwrap();
    let run = bench.out().join("cells").join(cell["key"].as_str().unwrap());
    assert!(!run.join("routing/transformer.json").exists(), "no evaluation needs a transformer router");
    let words = "evaluate --route-window --reroute 16 --reroute-by features --json --run";
    let evaluated = dipaco(&format!("{words} {}", run.display())).succeeded().json();
    let expected = evaluated.as_array().unwrap()[1..].iter().map(|row| &row["perplexity"]);
    let found = cell["measurements"].as_array().unwrap().iter().map(|found| &found["perplexity"]);
    assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

/// The rows of other models equal those of one `evaluate`.
#[test]
fn a_table_has_ensembles_bounds_and_the_seed() {
    let bench = Bench::new();
    let models = r#"
[[evaluations]]
name = "two paths"
model = { ensemble = 2 }
[[evaluations]]
name = "in hindsight"
model = "oracle"
[[evaluations]]
name = "by chance"
model = "random-path"
[[evaluations]]
name = "mean of weights"
model = "soup"
[[evaluations]]
name = "before"
model = "seed"
[[runs]]
name = "2 × 2"
"#;
    let best = "[[evaluations]]\nname = \"best\"\nearly_stopping = true\n";
    let text = EXPERIMENT.replace(best, "").replace("\n[[runs]]\nname = \"2 × 2\"\n", models);
    fs::write(bench.file(), text).unwrap();
    let _ = bench.run("--seed 1").succeeded().says("| 2 × 2 | in hindsight | 4 |");
    let results = bench.results();
    let cell = results["cells"].as_array().unwrap().iter().find(|cell| cell["run"] == "2 × 2").unwrap();
    let run = bench.out().join("cells").join(cell["key"].as_str().unwrap());
    let words = "evaluate --ensemble 2 --oracle --random-path --soup --json --run";
    let evaluated = dipaco(&format!("{words} {}", run.display())).succeeded().json();
    let of = |rows: &serde_json::Value| {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row["perplexity"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    // `evaluate` begins with the seed, the table ends with it.
    let mut expected = of(&evaluated);
    expected.rotate_left(1);
    assert_eq!(of(&cell["measurements"]), expected);
    // Differences on the same documents, as `evaluate` finds them too.
    let dense = &results["cells"][0];
    assert!(dense["measurements"][0]["against_baseline"].is_null(), "{dense}");
    let dense = bench.out().join("cells").join(dense["key"].as_str().unwrap());
    let words = format!("evaluate --no-seed --json --documents --dense {} --run", dense.display());
    let rows = dipaco(&format!("{words} {}", run.display())).succeeded().json();
    assert_eq!(rows[1]["against_first"], cell["measurements"][0]["against_baseline"]);
    let difference = rows[1]["against_first"]["bits_per_byte"].as_f64().unwrap();
    let bits = |row: usize| rows[row]["bits_per_byte"].as_f64().unwrap();
    assert!((difference - (bits(1) - bits(0))).abs() < 1e-9, "{rows}");
    assert_eq!(
        rows[0]["document_losses"].as_array().unwrap().len() as u64,
        rows[0]["documents"].as_u64().unwrap()
    );
}

#[test]
fn an_experiment_may_begin_with_a_pretrained_model() {
    let bench = Bench::new();
    fs::copy(fixture("imported.toml"), bench.folder.path().join("base.toml")).unwrap();
    let text = r#"
name = "tiny"
base = "base.toml"
baseline = "2 × 2"
[configuration]
model.dtype = "f32"
[[evaluations]]
name = "routed"
[[evaluations]]
name = "as it is"
model = "imported"
[[evaluations]]
name = "adapted"
model = "seed"
[[runs]]
name = "2 × 2"
"#;
    fs::write(bench.file(), text).unwrap();
    let model = root().join("crates/model/tests/fixtures/pretrained");
    let import = format!("--import {}", model.display());
    let first = bench.run(&import).succeeded().says("| 2 × 2 | as it is | 4 | 0.01M |");
    let results = bench.results();
    let cell = &results["cells"][0];
    let run = bench.out().join("cells").join(cell["key"].as_str().unwrap());
    let measured = cell["measurements"].as_array().unwrap();
    let of = |name: &str| {
        measured.iter().find(|found| found["evaluation"] == name).unwrap()["perplexity"].as_f64().unwrap()
    };
    let seed = fs::read_dir(bench.out().join("seeds")).unwrap().next().unwrap().unwrap().path();
    let evaluated = dipaco(&format!("evaluate --seed --json --run {}", seed.display())).succeeded().json();
    let rows = evaluated.as_array().unwrap();
    assert_eq!((&rows[0]["model"], &rows[1]["model"]), (&"imported".into(), &"seed".into()));
    assert_eq!(
        (&rows[0]["perplexity"], &rows[1]["perplexity"]),
        (&of("as it is").into(), &of("adapted").into())
    );
    assert_ne!(of("as it is"), of("adapted"));
    let tokenizer = |run: &Path| {
        let config: toml::Table = fs::read_to_string(run.join("config.toml")).unwrap().parse().unwrap();
        fs::read(config["prepare"]["tokenizer"].as_str().unwrap()).unwrap()
    };
    assert_eq!(tokenizer(&run), fs::read(model.join("tokenizer.json")).unwrap());
    // Nothing is made twice, and another model makes another cell.
    let before = snapshot(&bench.out());
    assert_eq!(bench.run(&import).succeeded().stdout, first.stdout);
    assert_eq!(snapshot(&bench.out()), before);
    // Without the model the levels do not fit.
    let _ = bench.run("").failed(2, &["its configuration can't be used"]);
    let _ = bench.run("--import nowhere").failed(1, &["nowhere"]);
}

#[test]
fn a_cell_is_a_run_that_every_command_takes() {
    let bench = Bench::new();
    // A run's name may have other letters and any length.
    let name = format!(".{} – dense", "long ".repeat(20));
    fs::write(bench.file(), EXPERIMENT.replace("\"dense\"", &format!("{name:?}"))).unwrap();
    let mut only_this = bench.command("--seed 1");
    only_this.args(["--run", &name]);
    let _ = output(only_this).succeeded();
    let results = bench.results();
    let run = bench.out().join("cells").join(results["cells"][0]["key"].as_str().unwrap());
    let evaluate = dipaco(&format!("evaluate --json --run {}", run.display())).succeeded().json();
    let routed = evaluate.as_array().unwrap().iter().find(|row| row["model"] == "routed").unwrap();
    assert_eq!(routed["perplexity"], results["cells"][0]["measurements"][0]["perplexity"]);
}

#[test]
fn cells_and_results_become_pictures() {
    let bench = Bench::new();
    let _ = bench.run("--seed 1").succeeded();
    let results = bench.results();
    assert!(results["cells"][1]["facts"]["seconds"].as_f64().unwrap() > 0.0, "no round was told");
    let cell = results["cells"][1]["key"].as_str().unwrap().to_owned();
    let out = bench.out();
    let (cell, results, pictures) =
        (out.join("cells").join(cell), out.join("tiny.json"), out.join("pictures"));
    let words = format!(
        "plot --json --run {} --results {} --out {}",
        cell.display(),
        results.display(),
        pictures.display()
    );
    let drawn = dipaco(&words).succeeded().json();
    let names = [
        "loss-steps",
        "loss-tokens",
        "loss-seconds",
        "loss-bytes",
        "shards-documents-2---2-s1",
        "shards-tokens-2---2-s1",
        "cosine-2---2-s1",
        "tiny",
    ];
    let expected: Vec<String> =
        names.iter().map(|name| pictures.join(format!("{name}.png")).display().to_string()).collect();
    assert_eq!(drawn, serde_json::json!(expected));
    for file in expected {
        assert!(fs::read(&file).unwrap().starts_with(b"\x89PNG"), "{file}");
        assert!(fs::read_to_string(file.replace(".png", ".svg")).unwrap().starts_with("<svg"), "{file}");
    }
    let _ = dipaco(&format!("plot --run {}", bench.folder.path().display())).failed(2, &["is no run"]);
}

#[test]
fn an_interrupted_experiment_ends_with_the_same_numbers() {
    let whole = Bench::new();
    let _ = whole.run("--seed 1").succeeded();
    let bench = Bench::new();
    for (signal, moment) in
        [(Signal::KILL, "cell 1 of 2"), (Signal::TERM, "cell 2 of 2"), (Signal::KILL, "joined")]
    {
        let mut process = Process::start(bench.command("--seed 1"));
        let _ = process.line_with(moment);
        process.signal(signal);
        assert!(!process.finish().status.success());
    }
    let _ = bench.run("--seed 1").succeeded();
    assert_eq!(perplexities(&bench.results()), perplexities(&whole.results()));
}

#[test]
fn the_results_of_an_interrupted_experiment_have_all_finished_cells() {
    let bench = Bench::new();
    let _ = bench.run("--seed 2").succeeded();
    for words in ["", "--seed 1"] {
        let mut process = Process::start(bench.command(words));
        let _ = process.line_with("cell 2 of");
        process.signal(Signal::KILL);
        assert!(!process.finish().status.success());
        let results = bench.results();
        let names: Vec<String> = perplexities(&results).into_iter().map(|(name, _)| name).collect();
        let seed_2 = ["\"dense\" 2 \"once\"", "\"2 × 2\" 2 \"once\"", "\"2 × 2\" 2 \"best\""];
        assert_eq!(names[0], "\"dense\" 1 \"once\"", "{words}");
        assert_eq!(names[1..], seed_2, "{words}");
        assert_eq!(results["missing"], serde_json::json!(["2 × 2 · seed 1"]), "{words}");
    }
}

/// How often a training is measured is no part of a cell's key.
#[test]
fn a_cell_that_was_trained_without_the_wanted_measurements_is_named() {
    let bench = Bench::new();
    let words = "--run dense --seed 1";
    let warning = "dense · seed 1 was trained without measurements on validation text";
    assert!(!bench.run(words).succeeded().stderr.contains(warning));
    let measured = EXPERIMENT.replace("train.rounds = 2", "train.rounds = 2\ntrain.validate_every = 1");
    fs::write(bench.file(), measured).unwrap();
    let again = bench.run(words).succeeded();
    assert_eq!(again.stderr.matches(warning).count(), 1, "{}", again.stderr);
    let results = bench.results();
    let place = Path::new("cells").join(results["cells"][0]["key"].as_str().unwrap());
    assert!(again.stderr.contains(&format!("{} to train it again", place.display())), "{}", again.stderr);
    fs::remove_dir_all(bench.out().join(place)).unwrap();
    assert!(!bench.run(words).succeeded().stderr.contains(warning));
    assert!(!bench.results()["cells"][0]["facts"]["validation"].as_array().unwrap().is_empty());
}

#[test]
fn paths_that_rest_in_a_round_take_no_steps_in_it() {
    let bench = Bench::new();
    fs::write(bench.file(), format!("{EXPERIMENT}configuration.train.paths_per_round = 2\n")).unwrap();
    let listed = bench.run("--dry-run --seed 1 --json").succeeded().json();
    let cells = listed[0]["cells"].as_array().unwrap();
    let cell = cells.iter().find(|cell| cell["paths"] == 4).unwrap();
    // Two of four paths take five steps of 256 tokens in each of two rounds.
    assert_eq!(
        (&cell["inner_steps"], &cell["tokens"]),
        (&serde_json::json!(5), &serde_json::json!(5120)),
        "{listed}"
    );
}

#[test]
fn a_cell_that_fails_does_not_stop_the_others() {
    let bench = Bench::new();
    // No check of the configuration can foresee that training diverges at this rate.
    fs::write(bench.file(), EXPERIMENT.replace("learning_rate = 1.0", "learning_rate = 1e38")).unwrap();
    let _ = bench.run("--seed 1").failed(1, &["dense · seed 1, failed", "1 of 2 cells failed"]);
    assert_eq!(perplexities(&bench.results()).len(), 2);
    assert_eq!(bench.results()["missing"][0], "dense · seed 1");
}

#[test]
fn a_mistake_is_reported_before_any_training() {
    let bench = Bench::new();
    let _ = bench.run("--run 4x4").failed(2, &["no run `4x4`"]);
    let seeds = ["no selected run of experiment tiny has seed 99", "name one of their seeds: 1, 2"];
    let _ = bench.run("--seed 1 --seed 99").failed(2, &seeds);
    let nine = "[[evaluations]]\nname = \"nine\"\nmodel = { ensemble = 9 }\n[[runs]]\nname = \"2 × 2\"\n";
    fs::write(bench.file(), EXPERIMENT.replace("[[runs]]\nname = \"2 × 2\"\n", nine)).unwrap();
    let _ = bench.run("").failed(2, &["`nine` is an ensemble of 9 paths", "give at most 4"]);
    fs::write(bench.file(), EXPERIMENT.replace("restarts = 1", "restarts = 0")).unwrap();
    let _ = bench.run("").failed(2, &["tiny.toml, run `dense`", "routing.restarts"]);
    let missing = Path::new("no-such-experiment.toml");
    let output = dipaco(&format!("experiment run {} --data docs", missing.display()));
    let _ = output.failed(2, &["no-such-experiment.toml", "check the name"]);
    assert!(!bench.out().exists());
}
