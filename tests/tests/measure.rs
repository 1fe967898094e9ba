//! `bench step`, `bench lease` and `train --dry-run`: measurements and forecasts before hours of training.
#![allow(clippy::unwrap_used)]

use std::fs;

use dipaco_tests::process::{command, dipaco, output};
use dipaco_tests::run::{Run, routed, snapshot};
use serde_json::Value;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Parameters of the tests' run: V 384, D 32, A 32, F 64, two blocks.
const PARAMETERS: u64 = 2 * 384 * 32 + 2 * (4 * 32 * 32 + 3 * 64 * 32 + 2 * 32) + 32;

#[test]
fn the_step_of_a_configuration_is_measured() {
    let run = Run::new();
    let words = format!("bench step --config {} --steps 3 --threads 1", run.config().display());
    let report = dipaco(&format!("{words} --json")).succeeded().json();
    assert_eq!(report["params"], PARAMETERS);
    assert_eq!(
        (&report["dtype"], &report["threads"], &report["steps"]),
        (&"f32".into(), &1.into(), &3.into())
    );
    assert_eq!((&report["batch"], &report["sequence_tokens"]), (&4.into(), &64.into()));
    let [median, least, most] = ["ms_per_step", "ms_min", "ms_max"].map(|name| number(&report[name]));
    assert!(0.0 < least && least <= median && median <= most, "{report}");
    let tokens = number(&report["tokens_per_s"]);
    assert!((tokens * median / 1e3 / 256.0 - 1.0).abs() < 1e-9, "4 x 64 tokens a step: {report}");
    let (kernels, reason) = (&report["kernels"], &report["kernels_reason"]);
    assert!([kernels, reason].into_iter().all(|text| text.as_str().is_some_and(|text| !text.is_empty())));
    let share = number(&report["gflops"]) / number(&report["product_gflops"]);
    assert!((number(&report["share"]) / share - 1.0).abs() < 1e-9, "{report}");
    let phases = ["products", "attention", "head", "optimizer", "rest"];
    let phases: f64 = phases.iter().map(|phase| number(&report["phases"][phase])).sum();
    assert!(least * 0.999 <= phases && phases <= most * 1.001, "the phases make up a step: {report}");
    // A model can't learn from random tokens: the loss is about ln V.
    assert!((number(&report["loss"]) - 384f64.ln()).abs() < 0.5, "{report}");

    let text = dipaco(&words).succeeded();
    for says in
        ["4 x 64 tokens, f32, 1 thread\nkernels ", "products", "slowest of 3", "tokens/s", "GFLOP/s", "loss"]
    {
        let _ = text.clone().says(says);
    }

    let other = dipaco(&format!("{words} --batch 2 --json")).succeeded().json();
    let tokens = number(&other["tokens_per_s"]) * number(&other["ms_per_step"]) / 1e3;
    assert!(other["batch"] == 2 && (tokens / 128.0 - 1.0).abs() < 1e-9, "2 x 64 tokens a step: {other}");
}

#[test]
fn a_step_that_can_not_be_measured_is_a_usage_error() {
    let run = Run::new();
    let config = run.config().display().to_string();
    for (words, says) in [
        ("--steps 0", &["--steps 0", "at least 1"][..]),
        ("--threads 0", &["--threads 0", "one thread per core"]),
        ("--size x", &["--size", "s, m, l"]),
        ("--dtype f16", &["--dtype", "f32, bf16"]),
        ("--micro-batch 3", &["does not divide the batch of 8", "or 0"]),
        ("--batch 5 --micro-batch 2", &["does not divide the batch of 5", "or 0"]),
        ("--batch 0", &["0 is not in 1.."]),
        (&format!("--size m --config {config}"), &["--size", "--config", "cannot be used with"]),
        ("--config nowhere.toml", &["nowhere.toml"]),
    ] {
        let _ = dipaco(&format!("bench step {words}")).failed(2, says);
    }
    fs::write(run.config(), "[model]\nwidth = 3\n").unwrap();
    let _ = dipaco(&format!("bench step --config {config}")).failed(2, &["model.width"]);
}

/// A measurement of leases of the smallest size.
const LEASE: &str = "bench lease --size s --leases 3 --threads 1";

#[test]
fn the_parts_of_a_lease_are_measured_and_add_up() {
    let report = dipaco(&format!("{LEASE} --set train.state_every=1 --json")).succeeded().json();
    let parameters = 5_310_720;
    assert_eq!((&report["params"], &report["weights_bytes"]), (&parameters.into(), &(4 * parameters).into()));
    let leases = report["leases"].as_array().unwrap();
    assert_eq!(leases.len(), 3);
    for lease in leases {
        let parts = ["wait", "fetch", "load", "steps", "encode", "upload"].map(|part| &lease[part]);
        for key in ["seconds", "user", "system", "minor_faults", "down", "up"] {
            let sum: f64 = parts.iter().map(|part| number(&part[key])).sum();
            assert!((sum - number(&lease["whole"][key])).abs() < 1e-6, "{key}: {lease}");
        }
        // The weights come, and the outer gradient and two moments go.
        let (down, up) = (number(&lease["whole"]["down"]), number(&lease["whole"]["up"]));
        let weights = f64::from(4 * parameters);
        assert!(down > weights && up > 3.0 * weights, "{lease}");
        assert!(number(&lease["upload"]["up"]) == up && number(&lease["fetch"]["down"]) == down, "{lease}");
        assert!(number(&lease["peak_bytes"]) > weights, "{lease}");
    }

    let by_coordinator: f64 = leases.iter().map(|lease| number(&lease["coordinator"]["user"])).sum();
    assert!(by_coordinator > 0.0, "the coordinator takes the outer steps: {report}");

    // A worker keeps its memory: 21 MB of weights are 5,185 pages, and the first lease touches many times as many.
    let faults = |lease: usize| {
        let parts = ["load", "steps"].map(|part| number(&leases[lease][part]["minor_faults"]));
        parts.iter().sum::<f64>()
    };
    assert!(faults(2) * 10.0 < faults(0), "{report}");

    let folder = tempfile::tempdir().unwrap();
    let mut lease = command(LEASE.split_whitespace());
    lease.env("TMPDIR", folder.path());
    let text = output(lease).succeeded();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the coordinator's store is left");
    for says in [
        "inner steps",
        "page faults",
        "first leases",
        "coordinator",
        "medians of 2 leases",
        "a round of 1 path takes",
        "copies of the weights",
    ] {
        let _ = text.clone().says(says);
    }
}

#[test]
fn a_lease_that_can_not_be_measured_is_a_usage_error() {
    for (words, says) in [
        ("--leases 1", &["--leases", "2..=1000"][..]),
        ("--size m", &["--size", "s, l, 135m"]),
        ("--set train.nothing=1", &["train.nothing"]),
    ] {
        let _ = dipaco(&format!("bench lease {words}")).failed(2, says);
    }
}

#[test]
fn a_dry_run_plans_a_training_before_any_text_is_prepared() {
    let run = Run::new();
    let plan = run.dipaco("train --dry-run --json").succeeded().json();
    assert!(!run.directory().exists(), "nothing is written");
    assert_eq!((&plan["paths"], &plan["vocab_size"]), (&4.into(), &384.into()));
    assert!(plan["vocab_size_from"].as_str().unwrap().starts_with("prepare.vocab_size"), "{plan}");
    assert_eq!(plan["parameters"]["path"], PARAMETERS);
    assert_eq!(plan["parameters"]["all_modules"], 2 * PARAMETERS);
    let levels = plan["levels"].as_array().unwrap();
    let shared: Vec<_> = levels.iter().map(|level| (&level["modules"], &level["paths_per_module"])).collect();
    assert_eq!(shared, [(&2.into(), &2.into()), (&2.into(), &2.into())]);
    assert_eq!(levels[0]["holds"], "embedding, blocks 0");
    // Two workers for four paths: 5 steps of 4 x 64 tokens of each, three times.
    assert_eq!((&plan["tokens"]["round"], &plan["tokens"]["all"]), (&5120.into(), &15360.into()));
    // For each path, gradients behind a header of 24 bytes, and two moments with each lease.
    assert_eq!(plan["wire"]["from_worker"], 2 * (24 + 12 * PARAMETERS));
    assert_eq!(plan["kept_states"], 8 * PARAMETERS);
    assert_eq!(plan["memory"]["step"]["weights"], 4 * PARAMETERS);
    assert!(plan["memory"]["worker"].as_u64().unwrap() > 16 * PARAMETERS, "{plan}");
    let seconds = 3.0 * 5120.0 / 2.0 / number(&plan["speed"]["tokens_per_second"]);
    assert!((number(&plan["seconds"]) / seconds - 1.0).abs() < 1e-9, "{plan}");

    let many = run.dipaco("train --dry-run --json --workers 64").succeeded().json();
    assert_eq!(
        (&many["workers"], &many["paths_per_worker"]),
        (&4.into(), &1.into()),
        "no worker without a path"
    );

    let text = run.dipaco("train --dry-run --workers 1").succeeded();
    for says in [
        "run e2e: 4 paths through 4 modules",
        "paths through each",
        "on the wire",
        "in all",
        "one worker needs",
    ] {
        let _ = text.clone().says(says);
    }
}

#[test]
fn a_dry_run_changes_nothing_and_uses_an_existing_tokenizer() {
    let run = routed().copy();
    let before = snapshot(&run.directory());
    let plan = run.dipaco("train --dry-run --json --set train.rounds=7").succeeded().json();
    assert!(plan["vocab_size_from"].as_str().unwrap().ends_with("tokenizer.json"), "{plan}");
    assert_eq!(plan["tokens"]["all"], 7 * 5120);
    assert_eq!(snapshot(&run.directory()), before);
    let _ = run
        .dipaco("train --dry-run --set model.vocab_size=300 --set prepare.vocab_size=300")
        .failed(2, &["model.vocab_size", "384"]);
}

#[test]
fn a_path_that_does_not_fit_is_reported_with_remedies() {
    let run = Run::new();
    // A million sequences at once need terabytes.
    let plan = run.dipaco("train --dry-run --set train.batch=1048576").succeeded();
    for says in ["this does not fit", "try: train.micro_batch=", "train.activation_checkpointing=true"] {
        let _ = plan.clone().says(says);
    }
    let _ =
        run.dipaco("train --dry-run --set train.micro_batch=3").failed(2, &["train.micro_batch", "divides"]);
    let _ = run.dipaco("train --dry-run --set train.ronds=3").failed(2, &["train.rounds"]);
    let _ = run.dipaco("train --dry-run --resume").failed(2, &["--dry-run", "--resume"]);
}
