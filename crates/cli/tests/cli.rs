//! The binary as a user meets it: output, messages and exit codes.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

use dipaco_sync::Numerics;

fn dipaco(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dipaco"));
    command
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("RUST_LOG")
        .env_remove("DIPACO_DEVICE")
        .stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = dipaco(arguments).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn help_is_a_success_and_shows_examples() {
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, 0);
    assert!(out.contains("Examples:") && out.contains("Exit codes:"), "{out}");
    assert_eq!(run(&["config", "show", "--help"]).0, 0);
}

#[test]
fn wrong_usage_exits_with_2() {
    for arguments in [&["--frobnicate"][..], &["trian"], &[], &["config", "show", "--json", "--changed"]] {
        let (code, out, err) = run(arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {err}");
        assert!(!err.is_empty());
    }
}

#[test]
fn too_many_threads_are_refused_before_any_starts() {
    for arguments in [&["worker", "--threads", "99999999"][..], &["bench", "step", "--threads", "1025"]] {
        let (code, out, err) = run(arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {err}");
        assert!(err.contains("threads are too many: give 1 to 1024"), "{arguments:?}: {err}");
    }
}

#[test]
fn wrong_configuration_exits_with_2_and_names_everything() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    std::fs::write(&file, "[train]\nronds = 3\nbatch = \"x\"\n").unwrap();
    let file = file.to_str().unwrap();
    let (code, _, err) = run(&["config", "check", "--config", file]);
    assert_eq!(code, 2);
    assert!(err.contains("run.toml:2: unknown key `train.ronds` (did you mean `train.rounds`?)"), "{err}");
    assert!(
        err.contains("run.toml:3: train.batch: expected a whole number from 0, found the string \"x\""),
        "{err}"
    );

    let (code, _, err) = run(&["config", "check", "--config", "none.toml"]);
    assert_eq!(code, 2);
    assert!(err.contains("error: the configuration file none.toml can't be read\n  because: "), "{err}");
    assert!(err.contains("  try: "), "{err}");
}

#[test]
fn a_log_filter_that_can_not_be_read_exits_with_2() {
    let output = dipaco(&["config", "show"]).env("RUST_LOG", "dipaco=loud").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("RUST_LOG"));
}

#[test]
fn what_is_shown_can_be_used_as_a_file() {
    let (code, shown, _) = run(&["config", "show", "--set", "train.rounds=7"]);
    assert_eq!(code, 0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shown.toml");
    std::fs::write(&file, &shown).unwrap();
    assert_eq!(run(&["config", "show", "--config", file.to_str().unwrap()]), (0, shown, String::new()));
}

#[test]
fn the_environment_goes_before_the_file_and_arguments_before_both() {
    let configs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/quickstart.toml");
    let output = dipaco(&["config", "show", "--changed", "--config", configs, "--set", "train.batch=3"])
        .env("DIPACO__TRAIN__ROUNDS", "4")
        .env("DIPACO__TRAIN__BATCH", "4")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(row("train.rounds ").contains("environment variable DIPACO__TRAIN__ROUNDS"), "{text}");
    assert!(row("train.batch ").ends_with("--set train.batch=3"), "{text}");
    assert!(row("train.inner_steps ").contains("quickstart.toml:"), "{text}");
    assert!(!text.contains("model.blocks"), "the file has the default: {text}");
}

#[test]
fn keys_are_explained() {
    let (code, out, _) = run(&["config", "keys", "train.inner"]);
    assert_eq!(code, 0);
    assert!(
        out.contains("train.inner_steps  30") && out.contains("inner steps of a path per round"),
        "{out}"
    );
    let (code, _, err) = run(&["config", "keys", "nothing"]);
    assert_eq!(code, 2);
    assert!(err.contains("no key begins with `nothing`\n  try: "), "{err}");
}

#[test]
fn check_says_what_the_configuration_amounts_to() {
    let (code, out, _) = run(&["config", "check", "--json"]);
    let summary: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, summary["paths"].as_u64(), summary["modules"].as_u64()), (0, Some(4), Some(4)));
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, out, _) = run(&["completions", shell]);
        assert!(code == 0 && out.contains("doctor"), "{shell}");
    }
    assert_eq!(run(&["completions", "tcl"]).0, 2);
}

#[test]
fn doctor_finds_this_machine_fit_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) =
        run(&["doctor", "--json", "--run", folder.path().join("runs/one").to_str().unwrap()]);
    assert_eq!(code, 0, "{out}{err}");
    let findings: Vec<serde_json::Value> = serde_json::from_str(&out).unwrap();
    let checks = findings.iter().map(|finding| finding["check"].as_str().unwrap());
    // Only a machine with a GPU has this one.
    let mut checks: Vec<&str> = checks.filter(|&check| check != "GPU arithmetic").collect();
    // A machine with several GPUs has a finding for each.
    checks.dedup_by(|a, b| a == b && *a == "GPU");
    assert_eq!(
        checks,
        [
            "cores",
            "memory nodes",
            "processor",
            "kernels",
            "arithmetic",
            "memory",
            "open files",
            "GPU",
            "disk",
            "directory",
            "HDF5",
            "UDP",
            "QUIC"
        ]
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_forced_set_of_kernels_is_named_and_a_wrong_name_is_refused_before_any_work() {
    let with = |value: &str, words: &[&str]| {
        let output = dipaco(words).env("DIPACO_SIMD", value).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("run");
    let doctor = ["doctor", "--run", place.to_str().unwrap()];
    let (code, out, err) = with("portable", &doctor);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("kernels         portable: plain Rust"), "{out}");
    assert!(out.contains("int8 with plain Rust"), "{out}");
    assert!(out.contains("DIPACO_SIMD forces it"), "{out}");
    let fingerprint =
        |out: &str| out.lines().find_map(|line| Some(line.split_once("arithmetic")?.1.trim().to_owned()));
    let portable = fingerprint(&out).unwrap();
    assert!(portable.parse::<Numerics>().is_ok_and(|numerics| numerics != Numerics::Any), "{portable}");
    let (code, out, _) = with("", &doctor);
    assert!(code == 0 && !out.contains("forces it"), "{out}");
    assert_ne!(fingerprint(&out).unwrap(), portable, "other kernels compute other bits");
    let (code, out, _) = with("sse9", &doctor);
    assert!(code == 1 && out.contains("fail  kernels") && out.contains("try: unset DIPACO_SIMD"), "{out}");
    let (code, out, err) = with("sse9", &["config", "show"]);
    assert!(code == 2 && out.is_empty(), "{out}");
    assert!(err.contains("DIPACO_SIMD is \"sse9\"") && err.contains("portable or amx-model"), "{err}");
}

#[test]
fn doctor_leaves_no_folder_of_a_store_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (run_place, kept) = (folder.path().join("run"), folder.path().join("kept"));
    std::fs::create_dir(&kept).unwrap();
    for store in [folder.path().join("new/store"), kept.clone()] {
        let places = ["--run", run_place.to_str().unwrap(), "--store", store.to_str().unwrap()];
        let (_, out, err) = run(&[&["doctor"][..], &places].concat());
        assert!(out.contains("ok    store"), "{out}{err}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [kept]);
}

#[test]
fn doctor_prints_its_findings_before_a_store_answers_and_the_cause_of_a_refusal_once() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("run");
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut doctor = dipaco(&["doctor", "--run", place.to_str().unwrap(), "--store", "s3://bucket/run"])
        .env("AWS_ENDPOINT_URL", format!("http://{}", store.local_addr().unwrap()))
        .envs([("AWS_ALLOW_HTTP", "true"), ("AWS_REGION", "us-east-1"), ("NO_PROXY", "127.0.0.1")])
        .envs([("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "hush-hush")])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(doctor.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("QUIC")));
    // A doctor that ends without a question must not leave the store waiting for one.
    let address = store.local_addr().unwrap();
    let ended = std::thread::spawn(move || {
        let status = doctor.wait().unwrap();
        drop(TcpStream::connect(address));
        status
    });
    let (mut asked, _) = store.accept().unwrap();
    assert!(asked.read(&mut [0; 4096]).unwrap() > 0, "doctor ended without a question to the store");
    asked.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").unwrap();
    let finding = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(ended.join().unwrap().code(), Some(1), "{finding}");
    assert!(finding.contains("fail  store") && finding.contains("refuses the credentials"), "{finding}");
    assert_eq!(finding.matches("Error performing").count(), 1, "{finding}");
}

#[test]
fn doctor_fails_with_a_remedy_when_a_directory_can_not_be_written() {
    let (code, out, err) = run(&["doctor", "--run", "/proc/self/nothing"]);
    assert_eq!(code, 1);
    assert!(out.contains("fail  directory") && out.contains("      try: name another directory"), "{out}");
    assert!(err.contains("of the checks failed"), "{err}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child =
        dipaco(&["config", "show"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A path that trains in a moment.
const TINY: &str = "[model]\nhidden_size = 16\nheads = 2\nhead_dim = 8\nffn_size = 24\ncontext = 64\n\
    [train]\nbatch = 2\nsequence_tokens = 64\n[seed_model]\nsequence_tokens = 64\n";

/// Measures a step on a device.
fn step_on(device: &str) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.toml");
    std::fs::write(&file, TINY).unwrap();
    run(&["bench", "step", "--config", file.to_str().unwrap(), "--steps", "1", "--device", device, "--json"])
}

#[test]
fn many_workers_are_measured_over_real_connections() {
    let words = ["bench", "workers", "--workers", "6", "--seconds", "2", "--training", "0.2", "--json"];
    let (code, out, err) = run(&words);
    assert_eq!(code, 0, "{err}");
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&found["lost"], &found["workers"]), (&0.into(), &6.into()), "{out}");
    // Each trains from 0.1 to 0.3 seconds, so even the slowest one is back before the end.
    assert!(found["completed"].as_u64().unwrap() >= 6, "{out}");
    assert!(
        found["lease_ms"]["p50"].as_f64().unwrap() > 0.0 && found["memory"][0][1].as_u64() > Some(0),
        "{out}"
    );
}

#[test]
fn a_gpu_that_is_not_there_is_refused_and_auto_trains_on_the_cpu() {
    let (code, out, err) = step_on("cpu");
    assert!(code == 0 && out.contains("\"device\": \"CPU\""), "{out}{err}");
    let (code, out, err) = step_on("cuda");
    if code == 0 {
        assert!(cfg!(feature = "cuda") && out.contains("compute capability"), "{out}{err}");
        return;
    }
    let auto = step_on("auto");
    if !cfg!(feature = "cuda") {
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("build it with --features cuda, or give --device cpu"), "{err}");
        let (code, _, err) = run(&["train", "--device", "cuda"]);
        assert!(code == 2 && err.contains("--features cuda"), "{err}");
    } else if err.contains("libcuda was not found") || err.contains("there is no GPU number 0") {
        assert_eq!(code, 1, "{err}");
        assert!(auto.2.contains("computing on the CPU: "), "{}", auto.2);
    } else {
        assert!(auto.0 == 1 && auto.2 == err, "a GPU that can't be used is not hidden: {}{err}", auto.2);
        return;
    }
    assert!(auto.0 == 0 && auto.1.contains("\"device\": \"CPU\""), "{}{}", auto.1, auto.2);
}

#[test]
fn doctor_says_whether_there_is_a_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let (_, out, _) = run(&["doctor", "--run", folder.path().to_str().unwrap()]);
    assert!(out.contains("GPU"), "{out}");
    assert_eq!(out.contains("built without --features cuda"), !cfg!(feature = "cuda"), "{out}");
}

#[test]
fn a_plan_names_the_epochs_of_a_shard_and_refuses_what_the_law_does_not_know() {
    let words = ["plan", "--config", "../../configs/paper/8x8.toml", "--corpus-tokens", "156000000000"];
    let (code, out, err) = run(&words);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("its path reads it at most 14.1 times") && out.contains("loss 3.012 to 3.072"),
        "{out}"
    );
    assert!(out.contains("on the wire per round at most: "), "{out}");
    let (code, out, _) = run(&["plan", "--config", "../../configs/paper/16x16.toml"]);
    assert!(code == 0 && out.contains("no values of the law: the law holds for 1 to 8 replicas"), "{out}");
    assert!(!out.contains("acts with the outer rate"), "{out}");
    let (code, out, _) = run(&["plan", "--config", "../../configs/tiny.toml", "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    assert!(plan["plan"]["levels"][0]["prediction"].is_null(), "{plan}");
    assert!(plan["plan"]["levels"][0]["default_outer_rate"]["rate"].is_f64(), "{plan}");
    assert!(plan["plan"]["levels"][0]["literature_outer_rate"].is_null(), "{plan}");
    assert!(plan["plan"]["levels"][0]["refused"].as_str().unwrap().contains("35M to 2.4B"), "{plan}");
    let priced = ["plan", "--speed", "1000", "--price", "3.6", "--json"];
    let (code, out, err) = run(&priced);
    let plan: serde_json::Value = serde_json::from_str(&out).unwrap();
    let hours = plan["plan"]["time"]["worker_hours"].as_f64().unwrap();
    assert!(code == 0 && hours > 0.0, "{err}");
    assert!((plan["cost"].as_f64().unwrap() - 3.6 * hours).abs() < 1e-9, "{plan}");
    assert_eq!(run(&["plan", "--price", "1"]).0, 2);
    assert_eq!(run(&["plan", "--down", "5"]).0, 2);
    assert_eq!(run(&["plan", "--speed", "0"]).0, 2);
    assert_eq!(run(&["plan", "--measured-run", "dense"]).0, 2);
}

#[test]
fn a_plan_predicts_from_measured_runs() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("run.toml");
    std::fs::write(&config, "[run]\nname = \"planned\"\n[train]\nrounds = 40\n").unwrap();
    let config = config.to_str().unwrap();
    let (_, out, _) = run(&["plan", "--config", config, "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&out).unwrap();
    let parameters = plan["sizes"]["parameters"]["path"].as_u64().unwrap();
    let tokens = plan["plan"]["training"]["path_tokens"].as_u64().unwrap();
    let cell = |paths: u64, tokens: u64| {
        let loss = 9.0 * (paths as f64).powf(-0.04) * (tokens as f64).powf(-0.05);
        serde_json::json!({
            "run": "grid", "seed": 1, "key": format!("{paths}-{tokens}"),
            "facts": {
                "paths": paths, "modules": 1, "path_parameters": parameters, "all_parameters": 1, "steps": tokens,
                "step_tokens": 1, "seconds": 1.0,
            },
            "measurements": [{ "perplexity": loss.exp(), "tokens_counted": 5, "documents": 1 }],
        })
    };
    let cells = [
        cell(1, tokens / 4),
        cell(16, tokens / 4),
        cell(1, tokens * 4),
        cell(16, tokens * 2),
        cell(2, tokens),
    ];
    let results = folder.path().join("grid.json");
    let whole = serde_json::json!({
        "name": "grid", "title": "", "baseline": "grid", "program": "", "command": "", "missing": [], "cells": cells,
    });
    std::fs::write(&results, whole.to_string()).unwrap();
    let measured = ["--measured", results.to_str().unwrap()];
    let (code, out, err) = run(&[&["plan", "--config", config][..], &measured].concat());
    assert_eq!(code, 0, "{err}");
    let loss = 9.0 * 4f64.powf(-0.04) * (tokens as f64).powf(-0.05);
    assert!(out.contains("5 measured runs of 5 sizes: as paths to the -0.040"), "{out}");
    assert!(out.contains(&format!("this run: loss {loss:.3} (")), "{loss} {out}");
    // Three times the tokens. One path was measured with more, but no four paths or more.
    std::fs::write(config, "[run]\nname = \"planned\"\n[train]\nrounds = 120\n").unwrap();
    let (code, out, _) = run(&[&["plan", "--config", config][..], &measured].concat());
    assert_eq!(code, 0);
    let nearest =
        format!("The nearest have 2 paths of {parameters} parameters with {tokens} training tokens each");
    assert!(out.contains("no prediction for this run") && out.contains(&nearest), "{out}");
    let (code, _, err) = run(&["plan", "--config", config, "--measured", config]);
    assert_eq!(code, 1);
    assert!(err.contains("no results of `dipaco experiment`"), "{err}");
}
