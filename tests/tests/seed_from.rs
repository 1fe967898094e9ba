//! A run that begins with the seed of another run.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use dipaco_tests::fixtures::{corpus, fixture, pages, root};
use dipaco_tests::process::{Output, output};
use dipaco_tests::run::{Run, snapshot};

/// Takes over the seed of `theirs`.
fn adopt(own: &Run, theirs: &Run) -> Output {
    own.dipaco(&format!("seed --from {}", theirs.directory().display()))
}

/// Prepares the pages with a given tokenizer.
fn prepare_with(run: &Run, tokenizer: &Path) -> Output {
    let mut command = run.command(&format!("prepare --set prepare.tokenizer={}", tokenizer.display()));
    command.arg(pages());
    output(command)
}

#[test]
fn a_seed_of_another_tokenizer_is_refused() {
    // Both vocabularies have as many tokens, so that only the tokens differ.
    let (own, theirs) = (Run::new(), Run::new());
    let _ = theirs.prepare(corpus()).succeeded();
    let _ = theirs.dipaco("seed --set seed_model.steps=2").succeeded();
    let _ = own.prepare([pages()]).succeeded();
    let (file, expected) = (own.file("data/tokenizer.json"), theirs.file("data/tokenizer.json"));
    let remedy = format!("prepare.tokenizer={}", expected.display());
    let _ = adopt(&own, &theirs).failed(1, &[file.to_str().unwrap(), &remedy]);
    assert!(!own.file("store").exists(), "a refused seed leaves no store behind");

    let first = own.folder().join("tokenizer.json");
    fs::copy(&file, &first).unwrap();
    let _ = prepare_with(&own, &expected).succeeded();
    let _ = adopt(&own, &theirs).succeeded();
    assert_eq!(own.weights(), theirs.weights());
    // Its paths have the seed's shape. Other settings of the pretraining change nothing.
    let settings = fs::read(own.config()).unwrap();
    let _ =
        own.dipaco("seed --set model.ffn_size=96").failed(1, &["seed/2/weights-", "gate_proj", "[96, 32]"]);
    let again = format!("seed --from {} --set model.ffn_size=96", theirs.directory().display());
    let _ = own.dipaco(&again).failed(1, &["the other run's seed", "gate_proj", "[96, 32]"]);
    assert_eq!(fs::read(own.config()).unwrap(), settings);
    let _ = adopt(&own, &theirs).succeeded();
    let _ = own.dipaco("seed --set seed_model.steps=3").succeeded();
    // From now on the run's text keeps the tokenizer of the seed.
    let _ = prepare_with(&own, &first).failed(1, &["tokenizer.json", "another run directory"]);
    assert_eq!(fs::read(&file).unwrap(), fs::read(&expected).unwrap());
}

/// The folder of a pretrained model.
fn pretrained() -> PathBuf {
    root().join("crates/model/tests/fixtures/pretrained")
}

/// A run without text that began with the pretrained model, and a new one of the same shape.
fn imported() -> (Run, Run) {
    let (own, theirs) = (Run::new(), Run::new());
    fs::copy(fixture("imported.toml"), theirs.config()).unwrap();
    let import = format!("seed --import {} --set seed_model.steps=0", pretrained().display());
    let _ = theirs.dipaco(&import).succeeded();
    // The shape of the model is in the saved configuration.
    fs::copy(theirs.file("config.toml"), own.config()).unwrap();
    (own, theirs)
}

#[test]
fn a_seed_of_another_end_of_text_token_is_refused() {
    let (own, theirs) = imported();
    // The tokenizer of the model has both.
    let tokenizer = theirs.file("imported/tokenizer.json");
    let prepare = |end: &str| {
        let end = format!(r#"--set prepare.end_of_text="{end}""#);
        let mut command =
            own.command(&format!("prepare --set prepare.tokenizer={} {end}", tokenizer.display()));
        command.arg(pages());
        let _ = output(command).succeeded();
    };
    prepare("<|im_end|>");
    let remedy = "'prepare.end_of_text=\"<|endoftext|>\"'";
    let _ = adopt(&own, &theirs).failed(1, &["is <|im_end|>", remedy]);
    assert!(!own.file("store").exists(), "a refused seed leaves no store behind");
    prepare("<|endoftext|>");
    let _ = adopt(&own, &theirs).succeeded();
}

#[test]
fn a_seed_without_all_files_of_its_model_is_not_used() {
    let (own, theirs) = imported();
    let _ = prepare_with(&own, &theirs.file("imported/tokenizer.json")).succeeded();
    // A seed of another shape is refused, and the run is as before.
    let folder = theirs.directory().display().to_string();
    let _ = own.dipaco(&format!("seed --from {folder} --set model.ffn_size=96")).failed(1, &["gate_proj"]);
    assert!(!own.file("imported").exists());
    // A folder in the place of a file breaks the copy off when the seed is there already.
    let template = theirs.file("imported/chat_template.jinja");
    fs::remove_file(&template).unwrap();
    fs::create_dir(&template).unwrap();
    let _ = adopt(&own, &theirs).failed(1, &["chat_template.jinja"]);
    let _ = own.dipaco("seed").failed(1, &["was broken off", "seed --from"]);
    fs::remove_dir(&template).unwrap();
    let _ = adopt(&own, &theirs).succeeded();
    let _ = own.dipaco("seed").succeeded();
}

#[test]
fn the_files_of_an_imported_model_come_with_its_seed() {
    let (own, theirs) = imported();
    let _ = prepare_with(&own, &theirs.file("imported/tokenizer.json")).succeeded();
    let _ = adopt(&own, &theirs).succeeded();
    assert_eq!(own.weights(), theirs.weights());
    let files = |run: &Run| {
        let root = run.file("imported");
        let files = snapshot(&root).into_iter();
        files.map(|(file, hash)| (file.strip_prefix(&root).unwrap().to_owned(), hash)).collect::<Vec<_>>()
    };
    assert_eq!(files(&own), files(&theirs));
    let template = |folder: &Path| fs::read(folder.join("chat_template.jinja")).unwrap();
    assert_eq!(template(&own.file("imported")), template(&pretrained()));
}
