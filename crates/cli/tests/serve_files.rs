//! What `serve` says about the small files that it needs.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::fs;

mod support;

use support::{FIXTURES, dipaco};

/// The run has no weights, so a mistake that is found while they are loaded is not found at all.
#[test]
fn a_mistake_in_a_small_file_is_found_before_weights_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let imported = run.join("imported");
    let run = run.to_str().unwrap();
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus"));
    let (code, out, err) = dipaco(&["prepare", "--config", &config, "--run", run, &text]);
    assert_eq!(code, 0, "{out}{err}");
    fs::create_dir(&imported).unwrap();
    fs::write(imported.join("config.json"), "{}").unwrap();
    let serve = |settings: &[&str]| {
        let sets = settings.iter().flat_map(|&setting| ["--set", setting]);
        let words: Vec<&str> =
            ["serve", "--run", run, "--address", "127.0.0.1:0"].into_iter().chain(sets).collect();
        let (code, _, err) = dipaco(&words);
        assert_eq!(code, 1, "{err}");
        err
    };
    let no_weights = "no finished seed model";
    let keys = format!("serve.api_keys=\"{}\"", folder.path().join("keys").display());
    let mistakes: [(&str, &str, &[&str], &str); 4] = [
        ("generation_config.json", r#"{"temperature": 9}"#, &[], "temperature is 9"),
        (
            "generation_config.json",
            r#"{"eos_token_id": "x"}"#,
            &["serve.model_sampling=false"],
            "eos_token_id",
        ),
        ("tokenizer_config.json", r#"{"chat_template": 7}"#, &[], "chat_template must be a text"),
        ("generation_config.json", r#"{"temperature": 1}"#, &[&keys], "can't read the API keys"),
    ];
    for (file, content, settings, named) in mistakes {
        let file = imported.join(file);
        fs::write(&file, content).unwrap();
        let err = serve(settings);
        assert!(err.contains(named) && !err.contains(no_weights), "{content}: {err}");
        fs::remove_file(&file).unwrap();
    }
    for key in ["api_keys", "chat_template"] {
        let setting = format!("serve.{key}=\"{}\"", folder.path().join("none").display());
        let (err, named) = (serve(&[setting.as_str()]), format!("/none (serve.{key})"));
        for said in [named.as_str(), "because: No such file", "try: check the name, or make the file"] {
            assert!(err.contains(said) && !err.contains(no_weights), "{key}: {err}");
        }
    }
    // Settings that nothing reads hold nothing up.
    fs::write(imported.join("generation_config.json"), r#"{"temperature": 9}"#).unwrap();
    let err = serve(&["serve.model_sampling=false"]);
    assert!(err.contains(no_weights), "{err}");
}
