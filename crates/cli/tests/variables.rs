//! Environment variables in the place of options.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::process::{Command, Stdio};

/// Runs `dipaco` in an empty folder, with `words` and a variable. Returns its exit code and its standard error.
fn with(variable: (&str, &str), words: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_dipaco"))
        .args(words)
        .current_dir(folder.path())
        .env_remove("RUST_LOG")
        .envs([variable])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_empty_variable_counts_as_not_set_and_a_flag_takes_words() {
    let serve = ["serve"];
    let commands: [(&str, &str, &[&str]); 9] = [
        ("DIPACO_ADDRESS", "", &serve),
        ("DIPACO_CONFIG", "", &serve),
        ("DIPACO_EARLY_STOPPING", "", &serve),
        ("DIPACO_LOG_FORMAT", "", &serve),
        ("DIPACO_RUN", "", &serve),
        ("DIPACO_RUN", "", &["route", "fit"]),
        ("DIPACO_ADDRESS", "8000", &serve),
        ("DIPACO_EARLY_STOPPING", "1", &serve),
        ("DIPACO_EARLY_STOPPING", "no", &serve),
    ];
    for (name, value, words) in commands {
        let (code, err) = with((name, value), words);
        // What is read next is the run.
        assert!(code == Some(2) && err.contains("error: there is no run in"), "{name}={value}: {err}");
    }
}

#[test]
fn a_refused_value_names_its_variable_if_it_comes_from_one() {
    let commands: [(&str, &str, &[&str]); 4] = [
        ("DIPACO_ADDRESS", "localhost:1", &["serve"]),
        ("DIPACO_EARLY_STOPPING", "maybe", &["serve", "--run", "one"]),
        ("DIPACO_LOG_FORMAT", "xml", &["config", "show"]),
        ("DIPACO_WORKERS", "two", &["experiment", "run", "one.toml"]),
    ];
    for (name, value, words) in commands {
        let (code, err) = with((name, value), words);
        let said = format!("tip: the value is that of the environment variable {name}\n");
        assert!(code == Some(2) && err.contains(value) && err.contains(&said), "{name}={value}: {err}");
    }
    for given in [&["--address", "localhost:1"][..], &["--address=localhost:1"]] {
        let (code, err) = with(("DIPACO_ADDRESS", "127.0.0.1:1"), &[&["serve"][..], given].concat());
        let help = r#""localhost:1" is neither a port nor an address such as 127.0.0.1:9440"#;
        assert!(code == Some(2) && err.contains(help) && !err.contains("DIPACO_ADDRESS"), "{given:?}: {err}");
    }
}

#[test]
fn wrong_usage_is_json_where_the_variable_asks_for_json() {
    let (code, err) = with(("DIPACO_LOG_FORMAT", "json"), &["serve", "--adress", "8000"]);
    let error: serde_json::Value = serde_json::from_str(&err).unwrap();
    assert_eq!((code, &error["level"], &error["exit_code"]), (Some(2), &"ERROR".into(), &2.into()), "{err}");
    assert!(error["message"].as_str().unwrap().starts_with("unexpected argument '--adress'"), "{err}");
    // An option counts before the variable.
    let (code, err) = with(("DIPACO_LOG_FORMAT", "json"), &["serve", "--log-format=pretty", "--adress"]);
    assert!(code == Some(2) && err.starts_with("error: unexpected argument"), "{err}");
}
