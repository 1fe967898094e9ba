use std::fmt::Write as _;
use std::sync::Mutex;

use super::*;
use crate::{NoProgress, Refusal};

fn config() -> PrepareConfig {
    PrepareConfig { vocab_size: 300, validation_fraction: 0.2, threads: 1, ..Default::default() }
}

/// JSON lines: 600 documents, of which every tenth is blank.
fn corpus(folder: &Path) -> PathBuf {
    let mut text = String::new();
    for at in 0..600 {
        let words = if at % 10 == 9 {
            " ".to_owned()
        } else {
            format!("the number {at} and the word é ").repeat(1 + at % 7)
        };
        writeln!(text, "{}", serde_json::json!({ "text": words })).unwrap();
    }
    let path = folder.join("corpus.jsonl");
    std::fs::write(&path, text).unwrap();
    path
}

fn run(config: &PrepareConfig, inputs: &[PathBuf], out: &Path) -> Result<PrepareReport, ShardsError> {
    prepare(config, inputs, &[], out, &NoProgress, &AtomicBool::new(false))
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn documents_are_split_tokenised_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let input = corpus(folder.path());
    let out = folder.path().join("out");
    let report = run(&config(), std::slice::from_ref(&input), &out).unwrap();
    assert_eq!(names_in(&out), [MANIFEST, REPORT, TOKENIZER, TRAIN, VALIDATION]);
    assert_eq!(report.train.documents + report.validation.documents, 540);
    assert!((60..160).contains(&report.validation.documents), "{}", report.validation.documents);
    let blank = &report.refused.0[&Refusal::EmptyText];
    assert_eq!((blank.count, blank.first.as_str()), (60, format!("{}:10", input.display()).as_str()));

    let tokenizer = Tokenizer::from_file(&out.join(TOKENIZER), None).unwrap();
    let mut texts = Vec::new();
    for (name, split) in [(TRAIN, &report.train), (VALIDATION, &report.validation)] {
        let file = TokenFile::open(out.join(name)).unwrap();
        file.check_tokenizer(&tokenizer).unwrap();
        file.verify().unwrap();
        assert_eq!((file.documents(), file.tokens()), (split.documents, split.tokens));
        for document in 0..file.documents() {
            let ids = file.document(document).to_vec();
            assert_eq!(ids.last(), Some(&tokenizer.end_of_text()));
            texts.push(tokenizer.decode(&ids).unwrap());
        }
        assert!(file.metadata().info.source.contains("corpus.jsonl"));
    }
    assert_eq!(
        report.train.text_bytes + report.validation.text_bytes,
        texts.iter().map(|text| text.len() as u64).sum::<u64>()
    );
    assert_eq!(texts.iter().filter(|text| text.starts_with("the number 7 ")).count(), 1);
    let shown = report.to_string();
    assert!(shown.contains("60 × `text` is blank, first at"), "{shown}");
}

#[test]
fn the_number_of_threads_does_not_change_a_byte() {
    let folder = tempfile::tempdir().unwrap();
    let input = corpus(folder.path());
    let outputs = [1, 4].map(|threads| {
        let out = folder.path().join(format!("out{threads}"));
        run(&PrepareConfig { threads, ..config() }, std::slice::from_ref(&input), &out).unwrap();
        [TOKENIZER, TRAIN, VALIDATION, MANIFEST].map(|name| std::fs::read(out.join(name)).unwrap())
    });
    assert!(outputs[0] == outputs[1]);
}

#[test]
fn a_finished_step_is_skipped_until_something_changes() {
    let folder = tempfile::tempdir().unwrap();
    let input = corpus(folder.path());
    let inputs = [input.clone()];
    let out = folder.path().join("out");
    let again = |config: &PrepareConfig| run(config, &inputs, &out).unwrap().skipped;
    assert!(!again(&config()));
    assert!(again(&config()));
    assert!(run(&config(), &inputs, &out).unwrap().to_string().starts_with("nothing to do"));
    assert!(again(&PrepareConfig { threads: 3, ..config() }));
    let other = PrepareConfig { validation_fraction: 0.3, ..config() };
    assert!(!again(&other));
    assert!(again(&other));

    // A damaged output.
    let train = out.join(TRAIN);
    let mut bytes = std::fs::read(&train).unwrap();
    let at = hdf5::File::open(&train).unwrap().dataset("tokens").unwrap().offset().unwrap() as usize;
    bytes[at] ^= 1;
    std::fs::write(&train, bytes).unwrap();
    assert!(!again(&other));

    // An input of the same length with other content.
    let text = std::fs::read_to_string(&input).unwrap();
    std::fs::write(&input, text.replace("word", "ward")).unwrap();
    assert!(!again(&other));

    // Without a validation set there is no file of the former one.
    assert!(!again(&PrepareConfig { validation_fraction: 0.0, ..config() }));
    assert_eq!(names_in(&out), [MANIFEST, REPORT, TOKENIZER, TRAIN]);
}

#[test]
fn a_given_validation_set_and_tokenizer_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let input = corpus(folder.path());
    let first = folder.path().join("first");
    run(&config(), std::slice::from_ref(&input), &first).unwrap();
    let validation = folder.path().join("validation.txt");
    std::fs::write(&validation, "short\n").unwrap();
    let out = folder.path().join("out");
    let given = PrepareConfig { tokenizer: Some(first.join(TOKENIZER)), min_document_tokens: 20, ..config() };
    let error =
        prepare(&given, &[input], &[validation], &out, &NoProgress, &AtomicBool::new(false)).unwrap_err();
    // The one validation document is too short for this configuration.
    assert!(error.to_string().contains("validation.txt:1"), "{error}");
    let validation = folder.path().join("validation.txt");
    std::fs::write(&validation, "one line of validation text\n".repeat(9)).unwrap();
    let input = folder.path().join("corpus.jsonl");
    let report =
        prepare(&given, &[input], &[validation], &out, &NoProgress, &AtomicBool::new(false)).unwrap();
    assert_eq!(report.validation.documents, 1);
    assert_eq!(report.tokenizer.trained_on_bytes, 0);
    assert!(report.refused.0[&Refusal::TooShort].count > 0);
    assert_eq!(report.train.documents + report.refused.0[&Refusal::TooShort].count, 540);
    assert_eq!(std::fs::read(out.join(TOKENIZER)).unwrap(), std::fs::read(first.join(TOKENIZER)).unwrap());
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
fn input_that_gives_nothing_is_an_error_that_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.jsonl");
    std::fs::write(&bad, "prose\n{}\n").unwrap();
    let out = folder.path().join("out");
    let error = run(&config(), std::slice::from_ref(&bad), &out).unwrap_err().to_string();
    assert!(error.contains("bad.jsonl:1") && error.contains("bad.jsonl:2"), "{error}");
    assert_eq!(names_in(&out), Vec::<String>::new());

    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(matches!(run(&config(), &[empty], &out), Err(ShardsError::NoInput { .. })));
    assert!(matches!(run(&config(), &[folder.path().join("none")], &out), Err(ShardsError::Io { .. })));
    let one = folder.path().join("one.txt");
    std::fs::write(&one, "one document").unwrap();
    let fraction = PrepareConfig { validation_fraction: 0.001, ..config() };
    assert!(matches!(run(&fraction, &[one], &out), Err(ShardsError::EmptyValidation { documents: 1, .. })));
    let wrong = PrepareConfig { validation_fraction: 1.5, ..config() };
    assert!(run(&wrong, &[bad], &out).unwrap_err().to_string().contains("prepare.validation_fraction"));
}

#[test]
fn cancelling_leaves_the_folder_as_it_was() {
    /// Cancels when tokenising begins.
    struct CancelAt<'a>(&'a AtomicBool, Mutex<Vec<String>>);
    impl Progress for CancelAt<'_> {
        fn begin(&self, step: &str, _: u64) {
            self.1.lock().unwrap().push(step.to_owned());
            self.0.store(step == "tokenise", Ordering::Relaxed);
        }
        fn advance(&self, _: u64, _: u64) {}
        fn end(&self) {}
    }
    let folder = tempfile::tempdir().unwrap();
    let input = corpus(folder.path());
    let out = folder.path().join("out");
    let cancel = AtomicBool::new(false);
    let progress = CancelAt(&cancel, Mutex::default());
    let outcome = prepare(&config(), &[input], &[], &out, &progress, &cancel);
    assert!(matches!(outcome, Err(ShardsError::Cancelled)));
    assert_eq!(names_in(&out), Vec::<String>::new());
    assert_eq!(progress.1.into_inner().unwrap().last().unwrap(), "tokenise");
}
