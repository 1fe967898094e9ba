use std::path::Path;

use super::*;
use crate::key::cell_key;
use crate::selection::Selection;

const SWEPT: &str = r#"
name = "swept"
seeds = [1, 2]
[[routers]]
name = "one start"
configuration.routing.restarts = 1
[[routers]]
name = "two starts"
configuration.routing.restarts = 2
[[evaluations]]
name = "once"
[[evaluations]]
name = "best"
early_stopping = true
[[sweeps]]
key = "outer.nesterov.learning_rate"
values = [0.2, 0.4, 0.7]
runs = ["dense", "2x2"]
configuration.train.rounds = 3
seeds = [1, 5]
[[sweeps]]
key = "train.inner_steps"
values = [5, 10]
runs = ["2x2"]
[[runs]]
name = "dense"
configuration.topology.levels = [{ modules = 1, blocks = "0..4", embedding = true, head = true }]
[[runs]]
name = "2x2"
configuration.outer.nesterov = { learning_rate = 0.9, momentum = 0.5 }
[[runs]]
name = "other"
"#;

fn parse(text: &str) -> Result<Experiment, ExperimentError> {
    Experiment::parse(text, Path::new("swept.toml"))
}

fn message(error: &ExperimentError) -> String {
    let source = std::error::Error::source(error);
    format!("{error} {}", source.map_or_else(String::new, ToString::to_string))
}

/// The result of a sweep in which this value is the best.
fn choice(sweep: &Sweep, index: usize) -> SweepResult {
    let perplexity = |place: usize| if place == index { 8.0 } else { 9.0 };
    let trials = sweep.trials.iter().enumerate();
    let measured: Vec<Vec<f64>> =
        trials.map(|(place, trial)| vec![perplexity(place); trial.cells.len()]).collect();
    sweep.judge(&measured)
}

#[test]
fn a_sweep_has_a_cell_for_each_run_value_and_seed() {
    let sweeps = parse(SWEPT).unwrap().sweeps().unwrap();
    let names: Vec<(&str, &str)> = sweeps.iter().map(|sweep| (&*sweep.run, &*sweep.key)).collect();
    assert_eq!(
        names,
        [
            ("dense", "outer.nesterov.learning_rate"),
            ("2x2", "outer.nesterov.learning_rate"),
            ("2x2", "train.inner_steps"),
        ]
    );
    let labels: Vec<String> = sweeps[1].cells().map(Cell::label).collect();
    assert_eq!(
        labels,
        [
            "2x2 · one start · outer.nesterov.learning_rate = 0.2 · seed 1",
            "2x2 · one start · outer.nesterov.learning_rate = 0.2 · seed 5",
            "2x2 · one start · outer.nesterov.learning_rate = 0.4 · seed 1",
            "2x2 · one start · outer.nesterov.learning_rate = 0.4 · seed 5",
            "2x2 · one start · outer.nesterov.learning_rate = 0.7 · seed 1",
            "2x2 · one start · outer.nesterov.learning_rate = 0.7 · seed 5",
        ]
    );
    let cell = &sweeps[1].trials[0].cells[1];
    let nesterov = &cell.config.outer.nesterov;
    assert_eq!((nesterov.learning_rate, nesterov.momentum), (0.2, 0.5), "the value wins, the rest stays");
    assert_eq!((cell.config.train.rounds, cell.config.run.seed, cell.config.routing.seed), (3, 5, 5));
    assert_eq!(cell.evaluations.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["once"]);
    assert_eq!(sweeps[2].seeds, [1], "the first seed of the run");
}

#[test]
fn the_runs_own_cells_have_the_chosen_value_and_no_other_key_of_the_sweep() {
    let mut experiment = parse(SWEPT).unwrap();
    let before = experiment.cells().unwrap();
    let first = experiment.sweep("2x2", "outer.nesterov.learning_rate").unwrap().unwrap();
    experiment.choose(&choice(&first, 1));
    let cells = experiment.cells().unwrap();
    for (cell, before) in cells.iter().zip(&before) {
        if cell.run == "2x2" {
            let mut expected = before.config.clone();
            expected.outer.nesterov.learning_rate = 0.4;
            assert_eq!(cell.config, expected);
            assert!(cell.evaluations.iter().all(|it| it.config.outer.nesterov.learning_rate == 0.4));
        } else {
            assert_eq!(cell, before);
        }
    }
    let second = experiment.sweep("2x2", "train.inner_steps").unwrap().unwrap();
    assert!(second.cells().all(|cell| cell.config.outer.nesterov.learning_rate == 0.4), "sweeps add up");
    experiment.choose(&choice(&second, 1));
    let last = experiment.cells().unwrap().into_iter().rfind(|cell| cell.run == "2x2").unwrap();
    assert_eq!((last.config.train.inner_steps, last.config.outer.nesterov.learning_rate), (10, 0.4));
    experiment.choose(&second.judge(&[]));
    assert_eq!(
        experiment.cells().unwrap().into_iter().rfind(|cell| cell.run == "2x2"),
        Some(last),
        "a sweep without results changes nothing"
    );
}

#[test]
fn a_cell_of_a_sweep_is_trained_once_with_the_runs_own_and_anew_when_its_configuration_changes() {
    let keys = |experiment: &Experiment| -> Vec<String> {
        let sweep = experiment.sweep("dense", "outer.nesterov.learning_rate").unwrap().unwrap();
        sweep.cells().map(|cell| cell_key(&cell.config, "data")).collect()
    };
    let short = keys(&parse(SWEPT).unwrap());
    let mut experiment = parse(&SWEPT.replace("configuration.train.rounds = 3", "")).unwrap();
    let whole = keys(&experiment);
    assert!(short.iter().all(|key| !whole.contains(key)), "other rounds are other cells");
    let sweep = experiment.sweep("dense", "outer.nesterov.learning_rate").unwrap().unwrap();
    experiment.choose(&choice(&sweep, 1));
    assert_eq!(cell_key(&experiment.cells().unwrap()[0].config, "data"), whole[2]);
}

#[test]
fn a_selection_has_the_sweeps_of_its_runs_with_all_their_seeds() {
    let experiment = parse(SWEPT).unwrap();
    let sweeps = |runs: &[&str], seeds: &[u64]| {
        let runs = runs.iter().map(|&name| name.to_owned()).collect();
        Selection { runs, seeds: seeds.to_vec() }.sweeps(&experiment).unwrap()
    };
    assert_eq!(sweeps(&[], &[]), experiment.sweeps().unwrap());
    let dense = sweeps(&["dense"], &[2]);
    assert_eq!(dense.iter().map(|sweep| &*sweep.run).collect::<Vec<_>>(), ["dense"]);
    assert_eq!(dense[0].seeds, [1, 5]);
    assert!(sweeps(&["other"], &[]).is_empty());
    assert!(sweeps(&[], &[9]).is_empty(), "no cell needs a value");
}

#[test]
fn a_mistake_in_a_sweep_is_named_before_any_training() {
    let (rate, steps) = ("\"outer.nesterov.learning_rate\"", "\"train.inner_steps\"");
    let broken = [
        (SWEPT.replace("[\"dense\", \"2x2\"]", "[\"4x4\"]"), "there is no run `4x4`: name runs of this file"),
        (SWEPT.replace("[5, 10]", "[5]"), "sweep of `train.inner_steps`: there is nothing to choose from"),
        (SWEPT.replace("[5, 10]", "[5, 5]"), "the value 5 stands there twice"),
        (SWEPT.replace("runs = [\"2x2\"]", "runs = []"), "name at least one run and one seed"),
        (SWEPT.replace("seeds = [1, 5]", "seeds = []"), "name at least one run and one seed"),
        (SWEPT.replace(rate, "\"outer.rate\""), "sweep of `outer.rate`: no configuration has this key"),
        (SWEPT.replace(rate, "\"outer.nesterov\""), "no configuration has this key"),
        (SWEPT.replace(rate, "\"topology.levels[0].modules\""), "that has no [] in it"),
        (SWEPT.replace(rate, "\"train.lease_seconds\""), "does not say how a run is trained"),
        (SWEPT.replace(rate, "\"prepare.vocab_size\""), "does not say how a run is trained"),
        (SWEPT.replace(rate, "\"routing.seed\""), "set by the seeds of the file"),
        (SWEPT.replace(steps, rate), "run `2x2` is swept twice: name it once"),
        (SWEPT.replace("[5, 10]", "[5, -1]"), "run `2x2 · train.inner_steps = -1`"),
        (SWEPT.replace("train.rounds = 3", "train.ronds = 3"), "unknown key `train.ronds`"),
        (SWEPT.replace("seeds = [1, 5]", "seed = 1"), "unknown field `seed`"),
    ];
    for (text, says) in broken {
        let error = parse(&text).and_then(|experiment| experiment.sweeps()).unwrap_err();
        assert!(message(&error).contains(says), "{says}: {}", message(&error));
        assert!(message(&error).contains("swept.toml") && error.is_configuration(), "{}", message(&error));
    }
    let values: Vec<String> = (1..20_000).map(|value| value.to_string()).collect();
    let many = SWEPT.replace("[5, 10]", &format!("[{}]", values.join(", ")));
    assert!(message(&parse(&many).unwrap_err()).contains("use fewer runs, routers, seeds or swept values"));
}
