//! Commands on a run that is complete, and on a run that does not exist.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::fs;

mod support;

use dipaco_net::JoinToken;
use dipaco_store::{ManifestSchema, RunManifest};
use support::{FIXTURES, dipaco};

#[test]
fn training_a_complete_run_again_says_so_and_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run").to_str().unwrap().to_owned();
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus"));
    let short = ["--set", "seed_model.steps=4", "--set", "train.rounds=2", "--set", "train.inner_steps=2"];
    let prepare = [&["prepare", "--config", &config, "--run", &run, &text][..], &short].concat();
    let steps: [&[&str]; 4] = [
        &prepare,
        &["seed", "--run", &run],
        &["route", "fit", "--run", &run],
        &["route", "assign", "--run", &run],
    ];
    for words in steps {
        let (code, out, err) = dipaco(words);
        assert_eq!(code, 0, "{words:?}: {out}{err}");
    }
    // Its worker can't join by the address that the coordinator listens on.
    let train = ["train", "--run", &run, "--workers", "1", "--stop-at-phase", "--listen", "0.0.0.0:0"];
    let (code, out, err) = dipaco(&train);
    assert_eq!(code, 0, "{out}{err}");
    assert!(err.contains("only workers on this machine can join"), "{err}");
    let token = JoinToken::read_from(&folder.path().join("run/secrets/join.token")).unwrap();
    assert!(matches!(&token.addresses[..], [one] if one.starts_with("127.0.0.1:")), "{:?}", token.addresses);
    assert!(out.ends_with("found no boundary to stop at: routing.phases has no phase\n"), "{out}");
    for more in [&[][..], &["--resume"]] {
        let (code, out, err) = dipaco(&[&["train", "--run", &run, "--workers", "1"], more].concat());
        assert_eq!(code, 0, "{out}{err}");
        assert_eq!(out, "the run is complete: all 2 rounds of 2 inner steps have been trained\n", "{err}");
        // A complete run needs none of its objects, so `--resume` reads none.
        assert!(!err.contains("verify"), "{err}");
    }

    // Another configuration is another training, complete or not. A refused command leaves the saved configuration.
    let saved = || fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    let before = saved();
    other_settings_are_named(&run, &text);
    assert_eq!(saved(), before);
    an_edited_configuration_is_refused(&run);
    the_settings_of_finished_steps_stay(&run);
    // Nor are settings saved that a step refuses by itself.
    let labels = ["--set", "routing.kind=labels", "--set", "routing.labels=no-such-file.jsonl"];
    let steps = ["--set", "transformer_router.steps=7"];
    for (step, settings) in [("fit", &labels[..]), ("features", &labels), ("fit-transformer", &steps)] {
        let (code, out, err) = dipaco(&[&["route", step, "--run", &run][..], settings].concat());
        assert_ne!(code, 0, "{step}: {out}{err}");
        assert_eq!(saved(), before, "{step}");
    }
    let other_seed = ["seed", "--run", &run, "--set", "seed_model.steps=5"];
    let (code, out, err) = dipaco(&other_seed);
    assert!(code == 1 && err.contains("seed model was trained with another configuration"), "{out}{err}");
    assert!(err.contains("paths of this run descend from it") && !err.contains("--restart"), "{err}");
    let (code, out, err) = dipaco(&[&other_seed[..], &["--restart"]].concat());
    assert!(code == 1 && err.contains("descend from its seed"), "{out}{err}");
    assert_eq!(saved(), before);
    the_shards_of_trained_paths_stay(&run, &text);
    assert_eq!(saved(), before);
    // Settings that no weight depends on may change.
    let free = ["--set", "serve.slots=3", "--set", "evaluation.max_documents=7"];
    let (code, out, err) = dipaco(&[&["train", "--run", &run][..], &free].concat());
    assert_eq!(code, 0, "{out}{err}");
    assert!(saved().contains("slots = 3") && saved().contains("max_documents = 7"));
    let (code, out, err) = dipaco(&["prepare", "--run", &run, "--set", "serve.slots=4", &text]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(saved().contains("slots = 4"));
}

/// Asserts that commands refuse other settings than those of the training, name them, and save none.
fn other_settings_are_named(run: &str, text: &str) {
    let saved = || fs::read_to_string(format!("{run}/config.toml")).unwrap();
    let before = saved();
    let others: [&[&str]; 5] = [
        &["train"],
        &["coordinator"],
        &["route", "assign"],
        &["prepare", text],
        &["quickstart", "--data", text],
    ];
    for step in others {
        for (other, named) in [
            ("train.rounds=3", "(train.rounds: 2 → 3)"),
            ("model.hidden_size=64", "(model.hidden_size: 32 → 64)"),
            ("run.seed=9", "(run.seed: 1 → 9)"),
            ("outer.nesterov.momentum=0.25", "(outer.nesterov.momentum: 0.5 → 0.25)"),
        ] {
            // A setting that may change is none of the reasons.
            let set = ["--run", run, "--set", other, "--set", "serve.slots=9"];
            let (code, out, err) = dipaco(&[step, &set].concat());
            assert_eq!(code, 2, "{step:?}: {out}{err}");
            assert!(err.contains("another configuration") && err.contains(named), "{step:?}: {err}");
            assert_eq!(saved(), before, "{step:?}");
        }
    }
}

/// Asserts that a training tells of an edited configuration what it can know.
fn an_edited_configuration_is_refused(run: &str) {
    let file = format!("{run}/config.toml");
    let before = fs::read_to_string(&file).unwrap();
    for (own, edited, says) in [
        ("\nrounds = 2\n", "\nrounds = 5\n", "(train.rounds: 2 → 5)"),
        ("\nmomentum = 0.5\n", "\nmomentum = 0.25\n", "undo an edit of its config.toml"),
    ] {
        assert!(before.contains(own), "{before}");
        fs::write(&file, before.replace(own, edited)).unwrap();
        let (code, out, err) = dipaco(&["train", "--run", run, "--resume"]);
        assert!(code == 2 && err.contains(says), "{own}: {out}{err}");
    }
    fs::write(&file, before).unwrap();
}

/// Asserts that a training saves no settings of other steps that these would refuse.
fn the_settings_of_finished_steps_stay(run: &str) {
    let saved = || fs::read_to_string(format!("{run}/config.toml")).unwrap();
    let before = saved();
    for step in [&["train"][..], &["train", "--resume"], &["coordinator", "--resume"]] {
        for (key, value) in [("routing.seed", 9), ("seed_model.batch", 3), ("prepare.min_document_tokens", 5)]
        {
            let other = format!("{key}={value}");
            let (code, out, err) = dipaco(&[step, &["--run", run, "--set", &other]].concat());
            assert_eq!(code, 2, "{step:?} {other}: {out}{err}");
            assert!(
                err.contains(&format!("{key}: ")) && err.contains(&format!(" → {value}")),
                "{step:?}: {err}"
            );
            assert_eq!(saved(), before, "{step:?} {other}");
        }
    }
    for step in [&["route", "fit"][..], &["seed"]] {
        let (code, out, err) = dipaco(&[step, &["--run", run]].concat());
        assert_eq!(code, 0, "{step:?}: {out}{err}");
    }
}

/// Asserts that steps refuse to replace the shards of a trained run, and that lost ones can be made again.
fn the_shards_of_trained_paths_stay(run: &str, text: &str) {
    let (list, config) = (format!("{run}/routing/train/shards.json"), format!("{run}/config.toml"));
    let files = || [&list, &config].map(|file| fs::read_to_string(file).unwrap());
    let before = files();
    let others: [&[&str]; 3] =
        [&["route", "assign"], &["route", "assign", "--part", "1/2"], &["quickstart", "--data", text]];
    for step in others {
        let (code, out, err) = dipaco(&[step, &["--run", run, "--set", "routing.overlap=2"]].concat());
        assert_eq!(code, 1, "{step:?}: {out}{err}");
        assert!(err.contains("holds the shards of the trained paths"), "{step:?}: {err}");
        assert_eq!(files(), before, "{step:?}");
    }
    // Shards that came into the place of lost ones are not those of the paths, so these can come back.
    for overlaps in [&["1"][..], &["2", "1"]] {
        fs::remove_file(&list).unwrap();
        for overlap in overlaps {
            let overlap = format!("routing.overlap={overlap}");
            let (code, out, err) = dipaco(&["route", "assign", "--run", run, "--set", &overlap]);
            assert_eq!(code, 0, "{overlap}: {out}{err}");
        }
        assert_eq!(files(), before, "{overlaps:?}");
    }
}

#[test]
fn an_import_of_the_same_model_with_other_settings_leaves_a_trained_run_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run").to_str().unwrap().to_owned();
    let (config, text) = (format!("{FIXTURES}/imported.toml"), format!("{FIXTURES}/corpus"));
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/fixtures/pretrained");
    let import = ["seed", "--run", &run, "--import", model];
    let short = ["--config", &config, "--set", "seed_model.steps=0", "--set", "train.inner_steps=1"];
    let begin = [&import[..], &short].concat();
    let steps: [&[&str]; 5] = [
        &begin,
        &["prepare", "--run", &run, &text],
        &["route", "fit", "--run", &run],
        &["route", "assign", "--run", &run],
        &["train", "--run", &run, "--workers", "1"],
    ];
    for words in steps {
        let (code, out, err) = dipaco(words);
        assert_eq!(code, 0, "{words:?}: {out}{err}");
    }
    let saved = || fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    let before = saved();
    // A step after the import may refuse settings, too.
    let quickstart = ["quickstart", "--run", &run, "--from", model, "--data", &text];
    let refused: [(&[&str], &str, i32, &str); 4] = [
        (&import, "train.rounds=9", 2, "another configuration"),
        (&import, "seed_model.steps=3", 1, "descend from its seed"),
        (&quickstart, "seed_model.steps=3", 1, "descend from its seed"),
        (&quickstart, "routing.seed=9", 1, "the trained paths"),
    ];
    for (command, setting, exit, refusal) in refused {
        let (code, out, err) = dipaco(&[command, &["--set", setting]].concat());
        assert!(code == exit && err.contains(refusal), "{command:?} {setting}: {out}{err}");
        assert_eq!(saved(), before, "{command:?} {setting}");
    }
    let repeated: [&[&str]; 2] = [&import, &begin];
    for again in repeated {
        let (code, out, err) = dipaco(again);
        assert!(code == 0 && out.starts_with("the seed was there already"), "{again:?}: {out}{err}");
        assert_eq!(saved(), before, "{again:?}");
    }
}

#[test]
fn a_run_that_does_not_exist_is_not_begun_by_a_later_step() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("typo");
    let run = run.to_str().unwrap();
    let steps: &[&[&str]] = &[
        &["seed"],
        &["route", "fit"],
        &["route", "assign"],
        &["route", "inspect"],
        &["train"],
        &["train", "--dry-run"],
        &["evaluate"],
        &["export", "--seed", "--out", "out"],
        &["serve"],
        &["status"],
        &["status", "--json"],
        &["status", "--complete"],
        &["status", "--watch"],
        &["tensorboard"],
        &["token", "revoke", "gpu-3"],
    ];
    for step in steps {
        let (code, out, err) = dipaco(&[*step, &["--run", run]].concat());
        assert_eq!(code, 2, "{step:?}: {out}{err}");
        assert!(err.contains("there is no run in") && err.contains("dipaco prepare"), "{err}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{step:?} creates nothing");
    }
}

#[test]
fn a_run_without_a_name_has_that_of_its_directory_and_a_mistyped_file_begins_none() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("my run");
    let run = run.to_str().unwrap();
    let (code, _, err) = dipaco(&["prepare", "--run", run, "no-such-file.jsonl"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("no-such-file.jsonl"), "{err}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // Nor does text with the store of a run in it.
    let (name, manifests) = ("00000000000000000001.json", folder.path().join("text/store/manifest"));
    fs::create_dir_all(&manifests).unwrap();
    let schema = format!(r#"{{"schema":"{}"}}"#, RunManifest::SCHEMA);
    fs::write(manifests.join(name), schema).unwrap();
    let around = folder.path().join("text");
    let (code, _, err) = dipaco(&["prepare", "--run", run, around.to_str().unwrap()]);
    assert!(code == 2 && err.contains("is the store of a run"), "{err}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let text = format!("{FIXTURES}/corpus");
    let small = ["--set", "prepare.vocab_size=300", "--tokenizer-only"];
    let name = |run: &str| {
        let config: toml::Table = fs::read_to_string(format!("{run}/config.toml")).unwrap().parse().unwrap();
        config["run"]["name"].as_str().unwrap().to_owned()
    };
    let (code, out, err) = dipaco(&[&["prepare", "--run", run, &text], &small[..]].concat());
    assert_eq!((code, name(run)), (0, "my-run".to_owned()), "{out}{err}");

    // A name that somebody gave stays, also when the directory is renamed.
    let named = folder.path().join("b");
    let named = named.to_str().unwrap();
    let given = ["prepare", "--run", named, &text, "--set", "run.name=a"];
    let (code, out, err) = dipaco(&[&given, &small[..]].concat());
    assert_eq!((code, name(named)), (0, "a".to_owned()), "{out}{err}");
    let moved = folder.path().join("c");
    let moved = moved.to_str().unwrap();
    fs::rename(run, moved).unwrap();
    let (code, out, err) = dipaco(&[&["prepare", "--run", moved, &text], &small[..]].concat());
    assert_eq!((code, name(moved)), (0, "my-run".to_owned()), "{out}{err}");
}

#[test]
fn the_status_of_a_run_without_a_training_is_json_if_json_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    fs::create_dir(&run).unwrap();
    let run = run.to_str().unwrap();
    let (code, out, err) = dipaco(&["status", "--run", run, "--json"]);
    assert_eq!((code, out.trim()), (0, "{}"), "{err}");
    let (code, out, err) = dipaco(&["status", "--run", run, "--data", "--json"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    let (code, out, _) = dipaco(&["status", "--run", run]);
    assert!(code == 0 && out.contains("nothing has been trained yet"), "{out}");
    let (code, _, err) = dipaco(&["token", "revoke", "GPU-3", "--run", run]);
    assert!(code == 1 && err.contains("lower-case"), "{err}");
}
