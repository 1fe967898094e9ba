//! What commands propose when there is nothing to show yet, or when the folder of a run is a file.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::fs;
use std::net::TcpListener;

mod support;

use support::{FIXTURES, dipaco};

#[test]
fn a_command_that_has_nothing_to_show_names_the_step_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (run, results, pictures) = (place("run"), place("results.json"), place("pictures"));
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus"));
    let (code, out, err) = dipaco(&["prepare", "--config", &config, "--run", &run, &text]);
    assert_eq!(code, 0, "{out}{err}");
    let empty = serde_json::json!({
        "name": "e", "title": "t", "baseline": "dense", "program": "dipaco", "command": "c", "missing": ["a"], "cells": []
    });
    fs::write(&results, empty.to_string()).unwrap();
    let steps: [(&[&str], &[&str]); 6] = [
        (&["tensorboard", "--run", &run], &["has no events yet", "run `dipaco seed` first"]),
        (&["route", "inspect", "--run", &run, "--phase", "3"], &["no phase 3", "this run has phases 0 to 0"]),
        (&["route", "assign", "--run", &run, "--phase", "1"], &["no phase 1", "this run has phases 0 to 0"]),
        (
            &["route", "assign", "--run", &run, "--phase", "1", "--part", "1/2"],
            &["no phase 1", "name one of them with --phase"],
        ),
        (
            &["plot", "--results", &results, "--out", &pictures],
            &["no finished cells", "`dipaco experiment run`"],
        ),
        (&["plot", "--run", &run], &["nothing was routed or trained", "`dipaco route fit`"]),
    ];
    for (words, texts) in steps {
        let (code, out, err) = dipaco(words);
        assert_eq!((code, out.as_str()), (2, ""), "{words:?}: {err}");
        for text in texts {
            assert!(err.contains(text), "{words:?}: {err}");
        }
    }
}

#[test]
fn the_help_says_what_options_do() {
    // The help wraps its lines by the width of the terminal.
    let help = |words: &[&str]| {
        let (code, out, err) = dipaco(words);
        assert_eq!(code, 0, "{err}");
        out.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(help(&["fetch-c4", "--help"]).contains("that a failed download of a file is tried again"));
    assert!(help(&["plot", "--help"]).contains("Each has an SVG file beside it"));
    for command in ["train", "coordinator"] {
        let help = help(&[command, "--help"]);
        assert!(help.contains("A phase whose router `dipaco route refit` has fitted begins"), "{help}");
        assert!(help.contains("Address by which workers on other machines reach this one"), "{help}");
    }
}

#[test]
fn an_address_in_use_is_to_be_changed_where_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run").to_str().unwrap().to_owned();
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus"));
    let prepare = ["prepare", "--config", &config, "--run", &run, &text];
    let (code, out, err) = dipaco(&prepare);
    assert_eq!(code, 0, "{out}{err}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let metrics = format!("serve.metrics_address={address}");
    for (words, remedy) in [
        (&["--address", &address][..], "give --address another port"),
        (&["--address", "127.0.0.1:0", "--set", &metrics], "give serve.metrics_address another port"),
    ] {
        let (code, out, err) = dipaco(&[&["serve", "--run", &run][..], words].concat());
        assert!(code == 1 && err.contains(remedy), "{words:?}: {out}{err}");
    }
}

#[test]
fn an_export_into_a_file_or_over_a_folder_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (run, file) = (place("run"), place("file"));
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus"));
    let (code, out, err) = dipaco(&["prepare", "--config", &config, "--run", &run, &text]);
    assert_eq!(code, 0, "{out}{err}");
    fs::write(&file, "mine").unwrap();
    // Nothing of the run is trained, so a place that is looked at after the weights is not looked at.
    for (option, place, remedy) in [
        ("--out", &file, "is a file\n  try: give a folder"),
        ("--gguf", &run, "is a folder\n  try: give the name"),
    ] {
        for force in [&[][..], &["--force"]] {
            let words = ["export", "--run", &run, "--path", "0", option, place];
            let (code, out, err) = dipaco(&[&words[..], force].concat());
            let said = format!("{option} {place} {remedy}");
            assert!(code == 2 && err.contains(&said) && !err.contains("--force"), "{out}{err}");
        }
    }
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_folder_that_is_a_file_is_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run");
    fs::write(&file, "x").unwrap();
    let run = file.to_str().unwrap();
    let (code, _, err) = dipaco(&["status", "--run", run]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("run/store` can't be used: check the directory and its permissions"), "{err}");
    assert!(err.contains("because: Not a directory"), "{err}");

    let below = file.join("below");
    for place in [run, below.to_str().unwrap()] {
        let (code, out, err) = dipaco(&["doctor", "--run", place]);
        assert_eq!(code, 1, "{out}{err}");
        assert!(out.contains("fail  directory") && out.contains(&format!("{run} is a file")), "{out}");
    }
}
