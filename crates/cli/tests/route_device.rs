//! `--device` of the steps of routing, and the record of the device.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

mod support;

use support::{FIXTURES, dipaco};

/// Runs the words on a run that has tokens and a seed; returns exit code, standard output and standard error.
fn on(run: &str, words: &[&str]) -> (i32, String, String) {
    dipaco(&[words, &["--run", run]].concat())
}

/// A run with tokens and an untrained seed.
fn seeded(run: &str, settings: &[&str]) {
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus"));
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let short = ["prepare", "--config", &config, &text, "--set", "seed_model.steps=0"];
    for words in [&[&short[..], &settings].concat()[..], &["seed"]] {
        let (code, out, err) = on(run, words);
        assert_eq!(code, 0, "{words:?}: {out}{err}");
    }
}

#[test]
fn a_gpu_that_is_not_there_is_refused_where_the_seed_gives_the_features() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run").to_str().unwrap().to_owned();
    seeded(&run, &["routing.features=seed", "routing.feature_blocks=1"]);
    for words in [&["route", "features"][..], &["route", "fit"]] {
        let (code, out, err) = on(&run, &[words, &["--device", "cuda:7"]].concat());
        if cfg!(feature = "cuda") {
            assert_eq!(code, 1, "{words:?}: {out}{err}");
            assert!(
                err.contains("libcuda was not found") || err.contains("there is no GPU number 7"),
                "{err}"
            );
        } else {
            assert_eq!(code, 2, "{words:?}: {out}{err}");
            assert!(err.contains("build it with --features cuda, or give --device cpu"), "{err}");
        }
    }
    assert!(!folder.path().join("run/routing/router.bin").exists());
    let (code, _, err) = on(&run, &["route", "fit", "--device", "gpu"]);
    assert!(code == 2 && err.contains("cuda:N for the GPU with number N"), "{err}");

    let (code, out, err) = on(&run, &["route", "fit", "--device", "cpu", "--json"]);
    assert_eq!(code, 0, "{out}{err}");
    let fitted: serde_json::Value = serde_json::from_str(&out).unwrap();
    let device = fitted["fitted_on"]["devices"][0].as_str().unwrap();
    assert!(device.starts_with("cpu-"), "{out}");
    let (code, out, err) = on(&run, &["route", "assign", "--json"]);
    assert_eq!(code, 0, "{out}{err}");
    let divided: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(divided["train"]["devices"], serde_json::json!([device]), "{out}");
}

#[test]
fn features_that_no_model_computes_need_no_gpu_and_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run").to_str().unwrap().to_owned();
    seeded(&run, &[]);
    for words in [&["route", "features"][..], &["route", "fit"], &["route", "assign"]] {
        let (code, out, err) = on(&run, &[words, &["--device", "cuda"]].concat());
        assert_eq!(code, 0, "{words:?}: {out}{err}");
        assert!(
            err.contains("routing.features is \"lsa\"") && err.contains("--device cuda is not used"),
            "{err}"
        );
    }
    let shards = std::fs::read_to_string(folder.path().join("run/routing/train/shards.json")).unwrap();
    assert!(!shards.contains("devices"), "{shards}");
    // Without a wish for a GPU there is nothing to say.
    let (code, out, err) = on(&run, &["route", "features"]);
    assert!(code == 0 && !err.contains("is not used"), "{out}{err}");
}
