use dipaco_model::ModelConfig;

use super::*;
use crate::key::{cell_key, evaluation_key, seed_config, seed_key};

const TWO: &str = r#"
name = "two"
seeds = [1, 2]
[configuration.train]
rounds = 3
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
configuration.evaluation.batch_sequences = 4
[[runs]]
name = "dense"
[runs.configuration.topology]
levels = [{ modules = 1, blocks = "0..4", embedding = true, head = true }]
[[runs]]
name = "2x2"
configuration.train.inner_steps = 7
"#;

fn parse(text: &str) -> Result<Experiment, ExperimentError> {
    Experiment::parse(text, Path::new("two.toml"))
}

fn message(error: &ExperimentError) -> String {
    let source = std::error::Error::source(error);
    format!("{error} {}", source.map_or_else(String::new, ToString::to_string))
}

#[test]
fn runs_are_multiplied_with_routers_and_seeds_and_one_path_needs_no_router() {
    let cells = parse(TWO).unwrap().cells().unwrap();
    let labels: Vec<String> = cells.iter().map(Cell::label).collect();
    assert_eq!(
        labels,
        [
            "dense · seed 1",
            "2x2 · one start · seed 1",
            "2x2 · two starts · seed 1",
            "dense · seed 2",
            "2x2 · one start · seed 2",
            "2x2 · two starts · seed 2",
        ]
    );
    let names = |cell: &Cell| cell.evaluations.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&cells[0]), ["once"]);
    assert_eq!(names(&cells[1]), ["once", "best"]);
    let last = &cells[5];
    let config = &last.config;
    assert_eq!((config.train.rounds, config.train.inner_steps, config.routing.restarts), (3, 7, 2));
    assert_eq!((config.run.seed, config.routing.seed), (2, 2));
    assert!(last.evaluations[1].early_stopping);
    assert_eq!(last.evaluations[1].config.evaluation.batch_sequences, 4);
}

#[test]
fn the_key_of_a_cell_hashes_everything_that_its_weights_depend_on() {
    let cells = parse(TWO).unwrap().cells().unwrap();
    let key = |cell: &Cell| cell_key(&cell.config, "data");
    let keys: BTreeSet<String> = cells.iter().map(key).collect();
    assert_eq!(keys.len(), cells.len());
    let mut same = cells[1].config.clone();
    same.run.name = "other".into();
    same.evaluation.max_documents = 40;
    same.serve.queued_requests += 1;
    same.train.lease_seconds += 1;
    same.seed_model.checkpoint_every += 1;
    assert_eq!(cell_key(&same, "data"), key(&cells[1]));
    assert_ne!(cell_key(&same, "other data"), key(&cells[1]));
}

#[test]
fn cells_of_one_seed_share_the_seed_model() {
    let cells = parse(TWO).unwrap().cells().unwrap();
    let keys: BTreeSet<String> = cells.iter().map(|cell| seed_key(&cell.config, "data")).collect();
    assert_eq!(keys.len(), 2);
    let mut other = cells[0].config.clone();
    other.seed_model.steps += 1;
    assert!(!keys.contains(&seed_key(&other, "data")));
    // A seed model that leaves the documents of routers out is another one.
    let mut reserving = cells[0].config.clone();
    reserving.routing.router_share = 0.04;
    assert!(!keys.contains(&seed_key(&reserving, "data")));
    assert_eq!(seed_config(&reserving).routing.router_share, 0.04);
}

#[test]
fn an_evaluation_is_known_by_its_settings() {
    let cells = parse(TWO).unwrap().cells().unwrap();
    let [once, best] = &cells[1].evaluations[..] else { panic!("two evaluations") };
    let key = evaluation_key(once, None);
    assert_ne!(key, evaluation_key(once, Some("labels")));
    assert_ne!(key, evaluation_key(best, None));
    let same = CellEvaluation { early_stopping: false, ..best.clone() };
    assert_eq!(key, evaluation_key(&same, None), "how much is scored at once changes no result");
}

#[test]
fn an_evaluation_may_be_of_another_model_of_the_cell() {
    let entry = |model: &str| format!("[[evaluations]]\nname = '{model}'\nmodel = {model}\n");
    let models = ["'routed'", "'oracle'", "'random-path'", "'soup'", "'seed'", "'imported'"];
    let ensembles = ["{ ensemble = 1 }", "{ ensemble = 2 }"];
    let entries = models.into_iter().chain(ensembles).map(|model| entry(model).replace("''", "'"));
    let text = TWO.replace(
        "[[runs]]\nname = \"2x2\"",
        &format!("{}[[runs]]\nname = \"2x2\"", entries.collect::<String>()),
    );
    let cells = parse(&text).unwrap().cells().unwrap();
    let evaluations = &cells[1].evaluations;
    assert_eq!(evaluations[0].model, EvaluatedModel::Routed);
    assert_eq!(evaluations[3].model, EvaluatedModel::Oracle);
    let keys: BTreeSet<String> = evaluations.iter().map(|it| evaluation_key(it, None)).collect();
    // "once" and "routed" are the same.
    assert_eq!(keys.len(), evaluations.len() - 1);
    for (wrong, says) in [("{ ensemble = 0 }", "nonzero"), ("'best'", "unknown variant `best`")] {
        let error = parse(&format!("{TWO}{}", entry(wrong).replace("''", "'"))).unwrap_err();
        assert!(message(&error).contains(says), "{}", message(&error));
    }
}

#[test]
fn a_pretrained_model_gives_all_runs_the_shape_of_their_paths() {
    let model = ModelConfig { blocks: 4, heads: 2, vocab_size: 300, ..ModelConfig::default() };
    let pretrained = Pretrained { path: "model".into(), model };
    let experiment = parse(TWO).unwrap().beginning_with(pretrained.clone());
    for cell in experiment.cells().unwrap() {
        assert_eq!((cell.config.model.heads, cell.config.prepare.vocab_size), (2, 300));
    }
    let other =
        TWO.replace("[configuration.train]", "[configuration.model]\nheads = 8\n[configuration.train]");
    let error = parse(&other).unwrap().beginning_with(pretrained).cells().unwrap_err();
    assert!(
        message(&error).contains("model.heads is 8, but the model in model has 2"),
        "{}",
        message(&error)
    );
}

#[test]
fn an_error_names_its_place() {
    let broken = [
        (
            TWO.replace("rounds = 3", "ronds = 3"),
            "run `dense`: its configuration can't be used [configuration]: unknown key",
        ),
        (TWO.replace("train.inner_steps = 7", "train.inner = 7"), "run `2x2`: unknown key `train.inner`"),
        (
            TWO.replace("routing.restarts = 2", "routing.restart = 2"),
            "run `2x2 · two starts · once`: its configuration can't be used router `two starts`: unknown key",
        ),
        (
            TWO.replace("batch_sequences = 4", "batch = 4"),
            "evaluation `best`: unknown key `evaluation.batch`",
        ),
        (TWO.replace("seeds = [1, 2]", "seed = [1, 2]"), "unknown field `seed`"),
        (TWO.replace("seeds = [1, 2]", "seeds = []"), "at least one run and one seed"),
        (TWO.replace("\"2x2\"", "\"dense\""), "two runs have the name `dense`"),
        (TWO.replace("\"2x2\"", "\"2x2\"\nrouters = [\"none\"]"), "run `2x2`: there is no router `none`"),
        (TWO.replace("\"two\"", "\"a/b\""), "use letters, digits"),
        (format!("baseline = \"x\"\n{TWO}"), "there is no run `x`"),
        (format!("base = \"missing.toml\"\n{TWO}"), "can't read missing.toml"),
    ];
    for (text, says) in broken {
        let error = parse(&text).and_then(|experiment| experiment.cells()).unwrap_err();
        assert!(message(&error).contains(says), "{says}: {}", message(&error));
    }
}

#[test]
fn every_experiment_that_is_shipped_can_be_resolved() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/experiments"));
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    // A base is no experiment.
    let experiments = files.filter(|file| !file.to_string_lossy().ends_with("base.toml"));
    for file in experiments {
        let experiment = Experiment::load(&file).unwrap();
        assert_eq!(experiment.name(), file.file_stem().unwrap().to_string_lossy());
        let cells = experiment.cells().unwrap_or_else(|error| panic!("{}", message(&error)));
        let keys: BTreeSet<String> = cells.iter().map(|cell| cell_key(&cell.config, "")).collect();
        assert_eq!(keys.len(), cells.len(), "{}: two cells are the same", file.display());
        let sweeps = experiment.sweeps().unwrap_or_else(|error| panic!("{}", message(&error)));
        for sweep in sweeps {
            let keys: BTreeSet<String> = sweep.cells().map(|cell| cell_key(&cell.config, "")).collect();
            let (run, key, file) = (&sweep.run, &sweep.key, file.display());
            assert_eq!(keys.len(), sweep.cells().count(), "{file}: two values of {key} train {run} alike");
        }
        assert!(cells.iter().any(|cell| cell.run == experiment.baseline()), "{}", file.display());
        // Each file has a dense model with outer momentum as a baseline.
        let momentum = |cell: &Cell| cell.config.outer.nesterov.momentum > 0.0;
        let mut dense = cells.iter().filter(|cell| cell.run.starts_with("dense"));
        assert!(dense.any(momentum), "{}", file.display());
        count += 1;
    }
    assert!(count > 0);
}
