//! Going back with the program: `rollback`, `status` and `token contributions`.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::fs;

mod support;

use support::{FIXTURES, dipaco, succeeds};

#[test]
fn an_operator_goes_back_and_the_run_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run").to_str().unwrap().to_owned();
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus"));
    // The training stops by itself before its second phase, after two of three rounds.
    let short = [
        "--set=seed_model.steps=4",
        "--set=train.rounds=3",
        "--set=train.inner_steps=2",
        "--set=routing.router_share=0.1",
        "--set=routing.phases=[{ round = 2 }]",
    ];
    succeeds(&[&["prepare", "--config", &config, "--run", &run, &text][..], &short].concat());
    let (code, _, err) = dipaco(&["rollback", "--run", &run, "--round", "1"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("the paths of this run have not been trained"), "{err}");
    for step in [&["seed"][..], &["route", "fit"], &["route", "assign"]] {
        succeeds(&[step, &["--run", &run]].concat());
    }
    succeeds(&["train", "--run", &run, "--workers", "1", "--stop-at-phase"]);

    let (code, _, err) = dipaco(&["rollback", "--run", &run, "--round", "7"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("keeps no checkpoint of round 7; it keeps rounds 1, 2"), "{err}");

    let listed = succeeds(&["token", "contributions", "worker", "--run", &run]);
    assert!(
        listed.contains("0–1") && listed.contains("1/0/0") && listed.contains("every kept checkpoint"),
        "{listed}"
    );
    let json = succeeds(&["token", "contributions", "worker", "--run", &run, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["paths"].as_array().unwrap().len(), 4, "{json}");
    assert_eq!(json["kept_rounds"], serde_json::json!([1, 2]));
    assert_eq!(succeeds(&["token", "contributions", "nobody", "--run", &run]), "nobody: no contributions\n");

    let out = succeeds(&["rollback", "--run", &run, "--round", "1"]);
    assert_eq!(out, "went back to 1 complete rounds, from 2; undone checkpoints: 2\n");
    let status = succeeds(&["status", "--run", &run]);
    assert!(status.contains("paths: 1 of 3 rounds\n") && status.contains(&out), "{status}");
    let json: serde_json::Value =
        serde_json::from_str(&succeeds(&["status", "--run", &run, "--json"])).unwrap();
    assert_eq!(json["rollbacks"], serde_json::json!([{ "from": 2, "to": 1, "undone": [2] }]));
    let events = fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    assert!(events.contains("\"event\":\"rolled_back\",\"from\":2,\"to\":1,\"undone\":[2]"), "{events}");

    succeeds(&["train", "--run", &run, "--workers", "1", "--stop-at-phase", "--resume"]);
    let status = succeeds(&["status", "--run", &run]);
    assert!(status.contains("paths: 2 of 3 rounds\n"), "{status}");

    // An event file that can't be written hides no rollback.
    let events = folder.path().join("run/metrics.jsonl");
    fs::remove_file(&events).unwrap();
    fs::create_dir(&events).unwrap();
    let (code, again, err) = dipaco(&["rollback", "--run", &run, "--round", "1"]);
    assert!(code == 0 && again.starts_with("went back to 1 complete rounds"), "{again}{err}");
    assert!(err.contains("the run has gone back") && err.contains("metrics.jsonl"), "{err}");
}
