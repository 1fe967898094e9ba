//! A run with the seed of another run.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

mod support;

use support::{FIXTURES, dipaco, succeeds};

#[test]
fn a_seed_of_another_run_is_there_already_whatever_the_text_and_a_restart_replaces_it() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (theirs, own, config) = (place("theirs"), place("own"), format!("{FIXTURES}/tiny.toml"));
    let seed_of = |run: &str| -> serde_json::Value {
        let status = succeeds(&["status", "--run", run, "--json"]);
        serde_json::from_str::<serde_json::Value>(&status).unwrap()["seed"]["weights"]["hash"].clone()
    };
    let tokenizer = format!("prepare.tokenizer={theirs}/data/tokenizer.json");
    for (run, text, more) in
        [(&theirs, "corpus", "seed_model.steps=4"), (&own, "corpus/pages.txt.gz", tokenizer.as_str())]
    {
        let text = format!("{FIXTURES}/{text}");
        let steps = "seed_model.steps=4";
        succeeds(&["prepare", "--config", &config, "--run", run, "--set", steps, "--set", more, &text]);
    }
    succeeds(&["seed", "--run", &theirs]);
    succeeds(&["seed", "--run", &own, "--from", &theirs]);
    let out = succeeds(&["seed", "--run", &own]);
    assert!(out.starts_with("the seed was there already: 4 steps"), "{out}");
    assert_eq!(seed_of(&own), seed_of(&theirs));

    // Its tokenizer is in use. Settings that are refused therefore are not saved, so the step can still be repeated.
    let saved = || std::fs::read_to_string(format!("{own}/config.toml")).unwrap();
    let (before, text) = (saved(), format!("{FIXTURES}/corpus/pages.txt.gz"));
    let others = ["prepare", "--config", &config, "--run", &own, "--set", "prepare.vocab_size=300", &text];
    let (code, out, err) = dipaco(&others);
    assert!(code == 1 && err.contains("the model of this run was trained with"), "{out}{err}");
    assert_eq!(saved(), before);
    let again: serde_json::Value =
        serde_json::from_str(&succeeds(&["prepare", "--run", &own, "--json", &text])).unwrap();
    assert_eq!(again["skipped"], true, "{again}");

    let out = succeeds(&["seed", "--run", &own, "--restart"]);
    assert!(out.starts_with("the seed is done: 4 steps"), "{out}");
    assert_ne!(seed_of(&own), seed_of(&theirs));
}
