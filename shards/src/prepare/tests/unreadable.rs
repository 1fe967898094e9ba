//! Inputs that the operating system cannot read. Linux has a file of this kind for every user: the memory of a process, of
//! which the first page is never there.
#![cfg(target_os = "linux")]

use std::os::unix::fs::symlink;

use super::*;

/// A regular file of no bytes that cannot be read.
const UNREADABLE: &str = "/proc/self/mem";

/// Checks that a preparation ended because of this file.
fn check_names(outcome: Result<PrepareReport, ShardsError>, file: &Path) {
    let error = outcome.unwrap_err();
    let named = error.to_string().contains(&format!("cannot read {}", file.display()));
    assert!(named && std::error::Error::source(&error).is_some(), "{error}");
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_finished_pieces_stay() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = files(folder.path());
    let whole = folder.path().join("whole");
    run(&config(), &inputs, &whole).unwrap();
    let last = inputs.last().unwrap();
    let text = std::fs::read(last).unwrap();
    std::fs::remove_file(last).unwrap();
    symlink(UNREADABLE, last).unwrap();

    let out = folder.path().join("out");
    // The sample for the tokenizer.
    check_names(run(&config(), &inputs, &out), last);
    assert!(names_in(&out.join("pieces")).is_empty());
    // The tokens. The pieces are a, b, and the rest.
    let given = PrepareConfig { tokenizer: Some(whole.join(TOKENIZER)), ..config() };
    check_names(run(&given, &inputs, &out), last);
    let stamp = || std::fs::metadata(out.join("pieces/00001.json")).and_then(|file| file.modified());
    let finished = stamp().unwrap();
    assert!(!out.join("pieces/00002.json").exists() && !out.join(MANIFEST).exists());

    check_names(run(&given, &inputs, &out), last);
    assert_eq!(stamp().unwrap(), finished);

    std::fs::remove_file(last).unwrap();
    std::fs::write(last, text).unwrap();
    run(&given, &inputs, &out).unwrap();
    let train = |out: &Path| std::fs::read(out.join(TRAIN)).unwrap();
    assert!(train(&out) == train(&whole));
}

#[test]
fn a_file_that_can_no_longer_be_read_is_not_changed_text() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    std::fs::create_dir(&input).unwrap();
    corpus(&input);
    let empty = input.join("empty.txt");
    std::fs::write(&empty, "").unwrap();
    let out = folder.path().join("out");
    let again = || run(&config(), std::slice::from_ref(&input), &out);
    again().unwrap();
    let before = outputs(&out);
    std::fs::remove_file(&empty).unwrap();
    symlink(UNREADABLE, &empty).unwrap();
    check_names(again(), &empty);
    assert!(outputs(&out) == before);
}
