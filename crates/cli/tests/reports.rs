//! Reports, experiments and simulations: what a command refuses, and what it says meanwhile.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::fs;

mod support;

use support::{dipaco, succeeds};

#[test]
fn a_wrong_key_of_an_experiment_is_named_where_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (base, file) = (place("base.toml"), place("rounds.toml"));
    let begin = "name = \"rounds\"\nbase = \"base.toml\"\n[[runs]]\nname = \"short\"\n";
    let listing = ["experiment", "run", &file, "--data", "text", "--dry-run"];
    let refused = |says: &str| {
        let (code, out, err) = dipaco(&listing);
        assert!(code == 2 && err.contains(says), "{out}{err}");
        assert!(!err.contains("rounds.toml:"), "no line of a table that nobody wrote: {err}");
    };
    fs::write(&base, "[train]\n# Nothing\nrouns = 3\n").unwrap();
    fs::write(&file, begin).unwrap();
    refused(&format!("because: {base}:3: unknown key `train.rouns`"));
    fs::write(&base, "[train]\nrounds = 3\n").unwrap();
    fs::write(&file, format!("{begin}configuration.train.rouns = 4\n")).unwrap();
    refused("because: run `short`: unknown key `train.rouns`");
    fs::write(&file, format!("{begin}[configuration.train]\nrouns = 4\n")).unwrap();
    refused("because: [configuration]: unknown key `train.rouns`");
    fs::write(&file, begin).unwrap();
    assert!(succeeds(&listing).contains("short · seed 1"));
}

#[test]
fn files_that_are_not_there_are_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, out, missing) = (place("mine.toml"), place("out"), place("missing.toml"));
    let run = |file: &str| dipaco(&["experiment", "run", file, "--data", "text", "--dry-run"]);
    fs::write(&file, "name = \"mine\"\nbase = \"missing.toml\"\n[[runs]]\nname = \"one\"\n").unwrap();
    for experiment in [&missing, &file] {
        let (code, _, err) = run(experiment);
        assert!(code == 2 && err.contains(&format!("can't read {missing}")), "{err}");
        assert!(err.contains("try: check the name"), "{err}");
    }
    fs::write(&file, "name = \"mine\"\n[[runs]]\nname = \"one\"\n").unwrap();
    let (code, shown, err) = dipaco(&["experiment", "table", &file, "--out", &out]);
    assert_eq!((code, shown.as_str()), (2, ""), "{err}");
    for says in [
        format!("experiment mine has no results in {out} yet"),
        format!("try: run `dipaco experiment run {file}` first"),
    ] {
        assert!(err.contains(&says), "{err}");
    }
    for (words, says) in [
        (&["--files", "0..2000"][..], "--files 0..2000 can't be used\n  try: give a range within 0..1024"),
        (&["--validation", "--files", "0..9"], "try: give a range within 0..8"),
        (&["--files", "3..3"], "write FIRST..END"),
    ] {
        let (code, shown, err) = dipaco(&[&["fetch-c4", "--out", &out][..], words].concat());
        assert_eq!((code, shown.as_str()), (2, ""), "{words:?}: {err}");
        assert!(err.contains(says), "{words:?}: {err}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is created");
}

#[test]
fn an_extension_takes_options_of_new_paths_with_new_paths_only() {
    for options in [&["--train-all"][..], &["--level", "1"], &["--level", "1", "--share"]] {
        let words = ["extend", "--run", "less", "--from", "none", "--remove", "0"];
        let (code, out, err) = dipaco(&[&words[..], options].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{options:?}: {err}");
        assert!(err.contains("cannot be used with") && err.contains("--remove"), "{options:?}: {err}");
    }
}

#[test]
fn a_router_of_chunks_needs_a_length_of_chunks_from_an_option_or_a_setting() {
    let folder = tempfile::tempdir().unwrap();
    let evaluate = ["evaluate", "--run", folder.path().to_str().unwrap(), "--reroute-by", "features"];
    let (code, out, err) = dipaco(&evaluate);
    assert!(code == 2 && err.contains("evaluation.reroute_tokens is 0"), "{out}{err}");
    assert!(err.contains("try: give --reroute W"), "{err}");
    // Nothing is trained, so the next step is refused.
    for length in [["--set", "evaluation.reroute_tokens=16"], ["--reroute", "16"]] {
        let (code, out, err) = dipaco(&[&evaluate[..], &length].concat());
        assert!(code != 0 && !err.contains("--reroute"), "{length:?}: {out}{err}");
    }
}

#[test]
fn a_corpus_of_no_tokens_is_no_plan() {
    let (code, out, err) = dipaco(&["plan", "--corpus-tokens", "0"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("--corpus-tokens"), "{err}");
}

#[test]
fn a_key_without_value_is_listed_as_not_set() {
    for key in ["model.kv_heads", "seed_model.schedule.decay_fraction", "topology.paths"] {
        let out = succeeds(&["config", "keys", key]);
        assert!(out.contains(&format!("{key}  not set  ")), "{out}");
        let keys: serde_json::Value =
            serde_json::from_str(&succeeds(&["config", "keys", key, "--json"])).unwrap();
        assert_eq!(keys[0]["default"], "not set", "{keys}");
    }
}

#[test]
fn a_simulation_of_goodput_shows_its_progress() {
    let (code, out, err) = dipaco(&["simulate", "goodput", "--chips", "1200000", "--learners", "8"]);
    assert!(code == 0 && out.contains("8 learners"), "{out}{err}");
    assert!(err.contains("goodput  1 runs in "), "{err}");
}

#[test]
fn a_list_of_cells_is_refused_for_what_their_run_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml").to_str().unwrap().to_owned();
    let listing = ["experiment", "run", &file, "--data", "text", "--dry-run"];
    for (evaluation, says) in [
        ("model = \"imported\"", "name it with --import"),
        ("configuration.evaluation.reroute_tokens = 16", "set routing.router_share above 0"),
    ] {
        let text = format!(
            "name = \"mine\"\n[[evaluations]]\nname = \"other\"\n{evaluation}\n[[runs]]\nname = \"2x2\"\n"
        );
        fs::write(&file, text).unwrap();
        let (code, out, err) = dipaco(&listing);
        assert_eq!((code, out.as_str()), (2, ""), "{evaluation}: {err}");
        assert!(err.contains(says) && err.contains("the evaluation `other`"), "{evaluation}: {err}");
    }
}
