use std::fs;

use dipaco_eval::Ranking;
use dipaco_path::DeviceChoice;
use dipaco_telemetry::Progress;
use tokio::runtime::Runtime;

use super::*;
use crate::experiment::{Cancel, ExperimentOptions};

const SWEPT: &str = r#"
name = "swept"
[configuration]
prepare.vocab_size = 280
[[runs]]
name = "2x2"
[[sweeps]]
key = "outer.nesterov.learning_rate"
values = [0.5, 1.0]
runs = ["2x2"]
"#;

/// A file of some short documents.
fn text(folder: &Path, name: &str) -> PathBuf {
    let file = folder.join(name);
    let line = |i: usize| {
        let text = format!("Document {i} of {name} speaks of {}. ", i * 31 % 17);
        format!("{}\n", serde_json::json!({ "text": text }))
    };
    fs::write(&file, (0..60).map(line).collect::<String>()).unwrap();
    file
}

/// An evaluation with this perplexity.
fn evaluation(perplexity: f64) -> Evaluation {
    serde_json::from_value(serde_json::json!({
        "documents": 1, "sequences": 1, "tokens_counted": 4, "nll_sum": 8.0, "perplexity": perplexity,
        "bits_per_byte": 1.5, "prefix_tokens": 2, "sequence_tokens": 8, "per_path": [],
    }))
    .unwrap()
}

/// Options of experiments on two short texts, beside the folder of the results.
fn options(folder: &Path) -> ExperimentOptions {
    ExperimentOptions {
        data: vec![text(folder, "train.jsonl")],
        validation: vec![text(folder, "validation.jsonl")],
        model: None,
        labels: None,
        out: folder.join("out"),
        workers: 1,
        program: PathBuf::from("no program"),
        device: DeviceChoice::Cpu,
        keep_all: false,
    }
}

fn opened(options: ExperimentOptions, runtime: &Runtime) -> ExperimentFolder {
    ExperimentFolder::open(options, &Progress::hidden(), Cancel::default(), runtime.handle().clone()).unwrap()
}

#[test]
fn a_finished_cell_is_read_once() {
    let temporary = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut folder = opened(options(temporary.path()), &runtime);
    let experiment = Experiment::parse(SWEPT, Path::new("swept.toml")).unwrap();

    // Both values of the sweep are finished, and the run's own cell with the better one.
    let sweep = experiment.sweeps().unwrap().remove(0);
    let mut chosen = experiment.clone();
    chosen.choose(&sweep.judge(&[vec![7.0], vec![9.0]]));
    let own = chosen.cells().unwrap();
    let all: Vec<&Cell> = sweep.cells().chain(&own).collect();
    let finished = |(cell, perplexity): (&&Cell, f64)| {
        cell::tests::finished_before(&mut folder, cell, &evaluation(perplexity))
    };
    let records: BTreeSet<PathBuf> = all.iter().zip([7.0, 9.0, 7.0]).map(finished).collect();
    assert_eq!(records.len(), 2, "the own cell is that of the sweep");

    let selection = Selection::default();
    let missing = all.iter().map(|cell| cell.label()).collect();
    let mut work = Work::new(&mut folder, &experiment, missing);
    work.pass(&experiment).unwrap();
    let read = work.results.clone();
    assert_eq!((read.cells.len(), read.sweeps.len(), read.missing.len()), (1, 1, 0));

    // The next pass has no record to read, and no program to train with.
    records.iter().for_each(|record| fs::remove_file(record).unwrap());
    work.selection = Some(&selection);
    work.pass(&experiment).unwrap();
    assert_eq!((work.begun, work.failed), (3, 0));
    assert_eq!(work.results, read);
}

#[test]
fn the_ranking_of_an_evaluation_is_in_the_results() {
    let temporary = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut folder = opened(options(temporary.path()), &runtime);
    let text = "name = 'ranked'\nconfiguration.prepare.vocab_size = 280\n[[runs]]\nname = '2x2'\n";
    let experiment = Experiment::parse(text, Path::new("ranked.toml")).unwrap();
    let ranking = Some(Ranking { candidates: 4, prompt_tokens: 2, prompts: 8, right: 3 });
    let found = Evaluation { ranking, ..evaluation(7.0) };
    cell::tests::finished_before(&mut folder, &experiment.cells().unwrap()[0], &found);
    let mut work = Work::new(&mut folder, &experiment, Vec::new());
    work.pass(&experiment).unwrap();
    assert_eq!(work.results.cells[0].measurements[0].ranking, Some(0.375));
}

#[test]
fn a_cell_that_diverged_is_read_again() {
    let temporary = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut folder = opened(options(temporary.path()), &runtime);
    let experiment = Experiment::parse(SWEPT, Path::new("swept.toml")).unwrap();
    let sweep = experiment.sweeps().unwrap().remove(0);
    for (cell, perplexity) in sweep.cells().zip([f64::INFINITY, 9.0]) {
        cell::tests::finished_before(&mut folder, cell, &evaluation(perplexity));
    }
    let outcome = run(&mut folder, &experiment, &Selection::default()).unwrap();
    assert_eq!(outcome.failed, 0);
    let chosen = outcome.results.sweeps[0].chosen.as_ref();
    assert_eq!(chosen.and_then(|value| value.as_float()), Some(1.0));

    let plain = "name = 'plain'\nconfiguration.prepare.vocab_size = 280\n[[runs]]\nname = '2x2'\n";
    let experiment = Experiment::parse(plain, Path::new("plain.toml")).unwrap();
    let cell = experiment.cells().unwrap().remove(0);
    cell::tests::finished_before(&mut folder, &cell, &evaluation(f64::INFINITY));
    let outcome = run(&mut folder, &experiment, &Selection::default()).unwrap();
    assert_eq!(outcome.failed, 0);
    let read = Results::load(&results_file(folder.out(), "plain")).unwrap();
    assert_eq!(read.cells[0].measurements[0].perplexity, f64::INFINITY);
}

#[test]
fn label_files_are_read_before_the_first_cell() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let plain = "name = 'labelled'\nconfiguration.prepare.vocab_size = 280\n[[runs]]\nname = '2x2'\n";
    for of_command in [false, true] {
        let temporary = tempfile::tempdir().unwrap();
        let labels = temporary.path().join("labels.jsonl");
        fs::write(&labels, "{\"url\": 3}\n").unwrap();
        let (mut options, mut text) = (options(temporary.path()), plain.to_owned());
        if of_command {
            options.labels = Some(labels);
        } else {
            let routing = format!("routing = {{ kind = 'labels', labels = '{}' }}", labels.display());
            text += &format!("[[runs]]\nname = 'by-label'\nconfiguration.{routing}\n");
        }
        let mut folder = opened(options, &runtime);
        let experiment = Experiment::parse(&text, Path::new("labelled.toml")).unwrap();
        let refused = run(&mut folder, &experiment, &Selection::default()).unwrap_err().to_string();
        assert!(refused.contains("labels.jsonl, line 1"), "{refused}");
        assert!(!folder.out().join("seeds").exists(), "a cell has begun");
    }
}

#[test]
fn cells_of_a_text_that_can_not_be_used_leave_finished_results_as_they_are() {
    let temporary = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let options = options(temporary.path());
    fs::write(&options.data[0], "").unwrap();
    let results = results_file(&options.out, "swept");
    fs::create_dir(&options.out).unwrap();
    fs::write(&results, "finished results").unwrap();
    let mut folder = opened(options, &runtime);
    let experiment = Experiment::parse(SWEPT, Path::new("swept.toml")).unwrap();
    let outcome = run(&mut folder, &experiment, &Selection::default()).unwrap();
    assert_eq!(outcome.failed, 2, "both values of the sweep, and the run's own cell waits");
    assert_eq!(fs::read_to_string(&results).unwrap(), "finished results");
}
