//! The files of deploy/: they fit the program, the schemas of Kubernetes and the shell.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use dipaco_tests::fixtures::{corpus, root};
use dipaco_tests::process::{binary, clean, dipaco, output};
use dipaco_tests::python::{interpreter, python};
use dipaco_tests::run::{Run, routed};

/// Asserts that a command has each option, by its help.
fn has_options(words: &[&str]) {
    let command: Vec<&str> =
        words.iter().copied().take_while(|word| !word.starts_with('-')).take(2).collect();
    let command =
        if ["route", "token"].contains(&command[0]) { command.join(" ") } else { command[0].to_owned() };
    let help = dipaco(&format!("{command} --help")).succeeded().stdout;
    for word in words.iter().filter(|word| word.starts_with("--")) {
        let option = word.split('=').next().unwrap();
        assert!(
            help.contains(&format!("{option} ")) || help.contains(&format!("{option}\n")),
            "{command} {option}"
        );
    }
}

#[test]
fn manifests_pass_the_newest_schemas_and_name_options_that_exist() {
    let folder = root().join("deploy/kubernetes");
    let folder = folder.to_str().unwrap();
    let Some(found) = python("kubernetes_validate", "kubernetes.py", &[folder]) else { return };
    assert!(found["checked"].as_u64() >= Some(24), "{found}");
    let commands = found["commands"].as_object().unwrap();
    assert_eq!(commands.keys().collect::<Vec<_>>(), ["coordinator", "prepare", "synchronizer", "worker"]);
    for args in commands.values() {
        let words: Vec<&str> = args.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        has_options(&words);
    }
}

#[test]
fn job_scripts_are_shell_and_name_options_that_exist() {
    let mut found = 0;
    for entry in fs::read_dir(root().join("deploy/slurm")).unwrap() {
        let file = entry.unwrap().path();
        let _ =
            output(clean(Command::new("bash"), [std::ffi::OsStr::new("-n"), file.as_os_str()])).succeeded();
        let script = fs::read_to_string(&file).unwrap().replace("\\\n", " ");
        for line in script.lines().filter(|line| !line.starts_with('#')) {
            let Some((_, call)) = line.split_once("dipaco ") else { continue };
            has_options(&call.split_whitespace().collect::<Vec<_>>());
            found += 1;
        }
    }
    assert_eq!(found, 4);
    let printed = dipaco("launch slurm --run runs/none --workers 3 --print").succeeded();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.sh");
    fs::write(&file, &printed.stdout).unwrap();
    let _ = output(clean(Command::new("bash"), [std::ffi::OsStr::new("-n"), file.as_os_str()])).succeeded();
    let _ = printed.says("--array=0-2\n").says("RUN=runs/none\n").says("afterok:$shards");
}

#[test]
fn the_exit_codes_of_the_page_are_those_of_the_help() {
    let page = fs::read_to_string(root().join("docs/deploy.md")).unwrap();
    let table = page.split("## Exit codes").nth(1).unwrap().split("\n## ").next().unwrap();
    let codes = |text: &str, separator: &[char]| {
        text.split(separator).filter_map(|word| word.trim().parse::<u8>().ok()).collect::<BTreeSet<_>>()
    };
    let help = dipaco("--help").succeeded().stdout;
    let help = help.split("Exit codes:").nth(1).unwrap().split("Data goes").next().unwrap();
    assert_eq!(codes(table, &['|']), codes(help, &[' ', '\n']));
}

#[test]
fn the_page_goes_from_empty_machines_to_a_served_model_in_twenty_lines_with_options_that_exist() {
    let page = fs::read_to_string(root().join("docs/deploy.md")).unwrap();
    let section = page.split("## From three empty machines to a served model").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    // As scripts/three-machines.py reads them.
    let lines: Vec<(&str, &str)> = section.lines().filter_map(|line| line.split_once("$ ")).collect();
    let machines: BTreeSet<&str> = lines.iter().map(|(machine, _)| *machine).collect();
    assert_eq!(machines, BTreeSet::from(["front", "lead", "worker"]));
    assert!(lines.len() <= 20, "{} lines", lines.len());
    let mut commands = Vec::new();
    for (_, line) in lines {
        let Some(call) = line.strip_prefix("dipaco ") else { continue };
        let words: Vec<&str> = call.split_whitespace().collect();
        has_options(&words);
        commands.push(words[0]);
    }
    assert_eq!(commands, ["prepare", "seed", "route", "route", "token", "worker", "coordinator", "serve"]);
}

#[test]
fn datatrove_prepares_and_routes_to_the_same_shards() {
    let Some(python) = interpreter("datatrove") else { return };
    let run = Run::new();
    let path = format!("{}:{}", binary().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = clean(Command::new(python), [root().join("deploy/datatrove/corpus.py")]);
    command.arg("--run").arg(run.directory()).args(["--tasks", "2"]).args(corpus());
    command.env("PATH", path).env("DIPACO_CONFIG", run.config()).env("PYTHONDONTWRITEBYTECODE", "1");
    let _ = output(command).succeeded();
    for file in ["routing/train/shards.json", "routing/validation/shards.json"] {
        assert_eq!(fs::read(run.file(file)).unwrap(), fs::read(routed().file(file)).unwrap(), "{file}");
    }
    assert!(run.file("datatrove/assign/completions/00001").exists(), "the parts were tasks of datatrove");
}
