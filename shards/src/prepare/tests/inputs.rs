//! Which files of the inputs are read, and when they count as unchanged.

use super::*;
use crate::Skipped;

/// A configuration with the sections that a run saves.
const SAVED: &str = "[run]\n[model]\n[topology]\n[prepare]\n[seed_model]\n[routing]\n[train]\n[sync]\n[outer]\n\
                     [evaluation]\n[serve]\n";

/// Writes a file and the folders on the way to it.
fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

fn file_name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Names of the files that were read, without their folders, each with true if it was validation text.
fn read_names(report: &PrepareReport) -> Vec<(&str, bool)> {
    report.files.iter().map(|file| (file_name(&file.path), file.validation)).collect()
}

#[test]
fn the_files_of_a_run_are_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    std::fs::create_dir(&input).unwrap();
    let text = corpus(&input);
    // A person's own configuration beside the text.
    write(&input, "config.toml", "[run]\nname = \"own\"\n[prepare]\n[train]\n[serve]\n");
    write(&input, "runs/tiny/config.toml", SAVED);
    let secret = write(&input, "runs/tiny/secrets/join.token", "secret");
    let inputs = std::slice::from_ref(&input);
    let names = [("config.toml", false), ("corpus.jsonl", false)];
    // The outputs lie in the run's folder, and in two others, of which the second finds the outputs in the first.
    for (data, left_out) in [("runs/tiny/data", 1), ("tokens", 1), ("more/tokens", 2)] {
        let out = input.join(data);
        let report = run(&config(), inputs, &out).unwrap();
        assert_eq!(read_names(&report), names, "{data}");
        assert_eq!(report.skipped_files[&Skipped::RunFiles], left_out, "{data}");
        assert!(run(&config(), inputs, &out).unwrap().skipped, "{data}");
    }
    // A stopped preparation has some of the outputs.
    let out = input.join("stopped");
    cancelled(inputs, &out, "tokenize", i64::MAX);
    assert_eq!(read_names(&run(&config(), inputs, &out).unwrap()), names);

    let out = folder.path().join("out");
    let error = run(&config(), &[input.join("runs/tiny")], &out).unwrap_err();
    assert!(matches!(error, ShardsError::OnlyRunFiles { .. }), "{error}");
    // A file that is an input itself is read.
    let report = run(&config(), &[text, secret], &out).unwrap();
    assert_eq!(read_names(&report), [("corpus.jsonl", false), ("join.token", false)]);
}

#[test]
fn damaged_files_are_reported_and_the_rest_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    std::fs::create_dir(&input).unwrap();
    corpus(&input);
    std::fs::write(input.join("empty.json.gz"), "").unwrap();
    std::fs::write(input.join("photo.jpg"), b"\xFF\xD8\0\0").unwrap();
    let report = run(&config(), &[input], &folder.path().join("out")).unwrap();
    let damaged: Vec<_> =
        report.damaged().map(|(file, damage)| (file.path.ends_with("empty.json.gz"), damage)).collect();
    assert_eq!(damaged, [(true, "it is empty")]);
    assert_eq!(report.skipped_files.values().sum::<u64>(), 1);
    assert!(report.to_string().contains("empty.json.gz: it is empty"));
}

#[test]
fn files_without_content_count_as_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    std::fs::create_dir(&input).unwrap();
    corpus(&input);
    write(&input, "empty.txt", "");
    write(&input, "plain.json.gz", "no gzip\n");
    let out = folder.path().join("out");
    let again = || run(&config(), std::slice::from_ref(&input), &out).unwrap();
    assert_eq!(again().damaged().count(), 2);
    assert!(again().skipped);
    // Other bytes of the same length.
    write(&input, "plain.json.gz", "no gzap\n");
    assert!(!again().skipped);
}

#[test]
fn validation_files_are_no_training_text() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    write(&input, "a.txt", &"a line of text to train on\n".repeat(50));
    let held_out = write(&input, "b.txt", &"another line\n".repeat(50));
    let out = folder.path().join("out");
    let with = |inputs: &Path, validation: PathBuf| {
        let (cancel, into) = (AtomicBool::new(false), PrepareFolder::new(&out));
        let inputs = [inputs.to_owned()];
        prepare(&config(), &inputs, &[validation], PrepareWork::All, into, &NoProgress, &cancel)
    };
    let report = with(&input, input.join("../in/b.txt")).unwrap();
    assert_eq!(read_names(&report), [("a.txt", false), ("b.txt", true)]);
    assert_eq!((report.train.documents, report.validation.documents), (1, 1));

    let message = with(&held_out, input.clone()).unwrap_err().to_string();
    assert!(message.contains("b.txt: all files are validation inputs too"), "{message}");
    let error = check_inputs(&[held_out], &[input], &[]).unwrap_err();
    assert!(matches!(error, ShardsError::NoTrainInput { .. }), "{error}");
}

#[test]
fn the_text_may_not_lie_in_the_folder_that_becomes_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let (text, around) = (folder.path().join("in"), folder.path().to_owned());
    write(&text, "a.txt", &"a line of text to train on\n".repeat(50));
    for (inputs, outputs) in [(&text, &text), (&around, &text), (&around, &around)] {
        let outputs = [folder.path().join("none"), outputs.join(".")];
        let error = check_inputs(std::slice::from_ref(inputs), &[], &outputs).unwrap_err();
        assert!(matches!(error, ShardsError::OnlyRunFiles { .. }), "{error}");
    }
    // Text that a run's folder holds is read where the text is named itself.
    check_inputs(std::slice::from_ref(&text), &[], &[around]).unwrap();
    check_inputs(&[text.join("a.txt")], &[], &[text]).unwrap();
}

#[test]
fn an_empty_split_names_the_text_that_was_refused() {
    let folder = tempfile::tempdir().unwrap();
    let lines = |fields: [&str; 3]| {
        let line = |field: &str| format!("{}\n", serde_json::json!({ field: "one document of this text" }));
        write(folder.path(), "some.jsonl", &fields.map(line).concat())
    };
    let refused = |fraction: f64, fields| {
        let config = PrepareConfig { validation_fraction: fraction, ..config() };
        run(&config, &[lines(fields)], &folder.path().join("out")).unwrap_err()
    };
    let error = refused(1e-9, ["text", "body", "body"]);
    assert!(matches!(error, ShardsError::EmptyValidation { documents: 1, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("is empty; 2 × no text field, first at "), "{text}");
    assert!(text.contains("some.jsonl:2: raise prepare.validation_fraction"), "{text}");
    let error = refused(1.0 - 1e-9, ["body", "text", "text"]);
    assert!(matches!(error, ShardsError::EmptyTrain { documents: 2, .. }), "{error}");
    assert!(error.to_string().contains("all of the 2 documents; 1 × no text field, first at "), "{error}");
    // Without refused text there is nothing more to say.
    let error = refused(1e-9, ["text"; 3]);
    assert!(error.to_string().contains("of 3 documents is empty: raise"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_source_names_every_file() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use crate::{FileEnd, InputFile};

    let file = InputFile::new(OsStr::from_bytes(b"caf\xE9.txt").into(), 0);
    let end = FileEnd { bytes: 0, hash: None, lines: 0, damage: None, skipped: None };
    let mut report = PrepareReport::default();
    report.add_file(&file, end, false, 0, 0);
    assert!(report.source().contains("caf\u{FFFD}.txt"));
}
