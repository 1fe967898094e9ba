mod inputs;
mod memory;
mod outputs;
mod tokenizer;
mod unreadable;

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::*;
use crate::{END_OF_TEXT, NoProgress, Refusal, Tokenizer};

fn config() -> PrepareConfig {
    PrepareConfig { vocab_size: 300, validation_fraction: 0.2, threads: 1, ..Default::default() }
}

/// JSON lines: 600 documents, every tenth of them blank.
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
    work(config, inputs, PrepareWork::All, out)
}

fn work(
    config: &PrepareConfig,
    inputs: &[PathBuf],
    work: PrepareWork,
    out: &Path,
) -> Result<PrepareReport, ShardsError> {
    work_into(config, inputs, work, PrepareFolder::new(out))
}

fn work_into(
    config: &PrepareConfig,
    inputs: &[PathBuf],
    work: PrepareWork,
    into: PrepareFolder<'_>,
) -> Result<PrepareReport, ShardsError> {
    prepare(config, inputs, &[], work, into, &NoProgress, &AtomicBool::new(false))
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Writes a tokenizer of whole words, with this vocabulary and the token `<unk>` for all others.
fn write_words(file: &Path, vocabulary: &serde_json::Value) {
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 0, "content": END_OF_TEXT, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    });
    std::fs::write(file, json.to_string()).unwrap();
}

#[test]
fn documents_are_split_tokenised_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let input = corpus(folder.path());
    let out = folder.path().join("out");
    let report = run(&config(), std::slice::from_ref(&input), &out).unwrap();
    assert_eq!(names_in(&out), [MANIFEST, "pieces", REPORT, TOKENIZER, TRAIN, VALIDATION]);
    assert_eq!(report.train.documents + report.validation.documents, 540);
    assert!((60..160).contains(&report.validation.documents), "{}", report.validation.documents);
    let blank = &report.refused.0[&Refusal::EmptyText];
    assert_eq!((blank.count, blank.first.as_str()), (60, format!("{}:10", input.display()).as_str()));

    let tokenizer = Tokenizer::from_file(&out.join(TOKENIZER), None).unwrap();
    let mut texts = Vec::new();
    for (name, split) in [(TRAIN, &report.train), (VALIDATION, &report.validation)] {
        let file = TokenSet::open(out.join(name)).unwrap();
        file.check_tokenizer(&tokenizer).unwrap();
        file.verify().unwrap();
        assert_eq!((file.documents(), file.tokens()), (split.documents, split.tokens));
        for document in 0..file.documents() {
            let ids = file.document(document).to_vec();
            assert_eq!(ids.last(), Some(&tokenizer.end_of_text()));
            texts.push(tokenizer.decode(&ids).unwrap());
        }
    }
    assert_eq!(
        report.train.text_bytes + report.validation.text_bytes,
        texts.iter().map(|text| text.len() as u64).sum::<u64>()
    );
    assert_eq!(texts.iter().filter(|text| text.starts_with("the number 7 ")).count(), 1);
    let shown = report.to_string();
    assert!(shown.contains("60 × the text is blank, first at"), "{shown}");
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
    let train = out.join("pieces/00000-train.h5");
    let mut bytes = std::fs::read(&train).unwrap();
    let at = hdf5::File::open(&train).unwrap().dataset("tokens").unwrap().offset().unwrap() as usize;
    bytes[at] ^= 1;
    std::fs::write(&train, bytes).unwrap();
    assert!(!again(&other));

    // An input of the same length with other content.
    let text = std::fs::read_to_string(&input).unwrap();
    std::fs::write(&input, text.replace("word", "ward")).unwrap();
    assert!(!again(&other));

    // Without a validation set the former validation file is gone.
    assert!(!again(&PrepareConfig { validation_fraction: 0.0, ..config() }));
    assert_eq!(names_in(&out), [MANIFEST, "pieces", REPORT, TOKENIZER, TRAIN]);
    assert_eq!(names_in(&out.join("pieces")), ["00000-train.h5"]);
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
    let with = |input, validation| {
        let (cancel, into) = (AtomicBool::new(false), PrepareFolder::new(&out));
        prepare(&given, &[input], &[validation], PrepareWork::All, into, &NoProgress, &cancel)
    };
    let error = with(input, validation).unwrap_err();
    // The only validation document is too short for this configuration.
    assert!(error.to_string().contains("validation.txt:1"), "{error}");
    let validation = folder.path().join("validation.txt");
    std::fs::write(&validation, "one line of validation text\n".repeat(9)).unwrap();
    let input = folder.path().join("corpus.jsonl");
    let report = with(input, validation).unwrap();
    assert_eq!(report.validation.documents, 1);
    assert_eq!(report.tokenizer.trained_on_bytes, 0);
    assert!(report.refused.0[&Refusal::TooShort].count > 0);
    assert_eq!(report.train.documents + report.refused.0[&Refusal::TooShort].count, 540);
    assert_eq!(std::fs::read(out.join(TOKENIZER)).unwrap(), std::fs::read(first.join(TOKENIZER)).unwrap());
}

#[test]
fn input_without_documents_is_an_error_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.jsonl");
    std::fs::write(&bad, "prose\n{}\n").unwrap();
    let out = folder.path().join("out");
    let error = run(&config(), std::slice::from_ref(&bad), &out).unwrap_err().to_string();
    assert!(error.contains("bad.jsonl:1") && error.contains("bad.jsonl:2"), "{error}");
    assert_eq!(names_in(&out), ["pieces"]);

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

/// Cancels after a number of documents, or when a step begins.
struct CancelAt<'a> {
    cancel: &'a AtomicBool,
    step: &'a str,
    documents: Mutex<i64>,
    steps: Mutex<Vec<String>>,
}

impl<'a> CancelAt<'a> {
    fn new(cancel: &'a AtomicBool, step: &'a str, documents: i64) -> Self {
        Self { cancel, step, documents: Mutex::new(documents), steps: Mutex::default() }
    }
}

impl PrepareProgress for CancelAt<'_> {
    fn begin(&self, step: &str, _: u64) {
        self.steps.lock().unwrap().push(step.to_owned());
        if step == self.step {
            self.cancel.store(true, Ordering::Relaxed);
        }
    }

    fn advance(&self, _: u64, documents: u64) {
        let mut left = self.documents.lock().unwrap();
        *left -= documents as i64;
        if *left < 0 {
            self.cancel.store(true, Ordering::Relaxed);
        }
    }

    fn end(&self) {}
}

fn cancelled(inputs: &[PathBuf], out: &Path, step: &str, documents: i64) -> Vec<String> {
    let cancel = AtomicBool::new(false);
    let progress = CancelAt::new(&cancel, step, documents);
    let into = PrepareFolder::new(out);
    let outcome = prepare(&config(), inputs, &[], PrepareWork::All, into, &progress, &cancel);
    assert!(matches!(outcome, Err(ShardsError::Cancelled)), "{outcome:?}");
    progress.steps.into_inner().unwrap()
}

#[test]
fn cancelling_keeps_former_outputs_and_finished_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let input = corpus(folder.path());
    let out = folder.path().join("out");
    let steps = cancelled(&[input], &out, "tokenize", i64::MAX);
    assert_eq!(steps.last().unwrap(), "tokenize");
    assert_eq!(names_in(&out), ["pieces"]);
    assert_eq!(names_in(&out.join("pieces")), ["tokenizer-record.json", TOKENIZER]);
}

/// Three files that are large enough for their own piece, and two small files that share a piece.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for (name, documents) in [("a", 5), ("b", 5), ("c", 1), ("d", 1), ("e", 5)] {
        let mut text = String::new();
        for at in 0..documents {
            let words = format!("the {name} number {at} and the word é ").repeat(20);
            // White space is stored and read, and cheap to tokenise.
            let padding = " ".repeat(500_000);
            writeln!(text, "{{\"text\": {padding}{}}}", serde_json::json!(words)).unwrap();
        }
        paths.push(folder.join(format!("{name}.jsonl")));
        std::fs::write(paths.last().unwrap(), text).unwrap();
    }
    paths
}

fn outputs(out: &Path) -> Vec<Vec<u8>> {
    [TOKENIZER, TRAIN, VALIDATION, MANIFEST].map(|name| std::fs::read(out.join(name)).unwrap()).to_vec()
}

#[test]
fn parts_on_several_machines_give_the_same_bytes_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = files(folder.path());
    let whole = folder.path().join("whole");
    run(&config(), &inputs, &whole).unwrap();

    let out = folder.path().join("out");
    let part = |index, count| {
        work(&config(), &inputs, PrepareWork::Part(WorkPart::new(index, count).unwrap()), &out)
    };
    let message = part(2, 3).unwrap_err().to_string();
    assert!(message.contains("part 2/3") && message.contains("--tokenizer-only"), "{message}");
    let tokenizer = work(&config(), &inputs, PrepareWork::Tokenizer, &out).unwrap().tokenizer;
    assert!(tokenizer.trained_on_bytes > 0);
    // The pieces are a, b, c and d, e.
    assert_eq!(part(1, 3).unwrap().files.len(), 2);
    let message = run(&config(), &inputs, &out).unwrap_err().to_string();
    assert!(
        message.contains("2 of 4 pieces")
            && message.contains("b.jsonl")
            && message.contains("belong to part 2/3, part 3/3")
            && message.contains("--part 2/3"),
        "{message}"
    );
    // A repeated call changes nothing.
    let record = std::fs::read(out.join("pieces/00001.json")).err();
    assert!(record.is_some());
    part(2, 3).unwrap();
    let record = std::fs::read(out.join("pieces/00001.json")).unwrap();
    part(2, 3).unwrap();
    assert_eq!(std::fs::read(out.join("pieces/00001.json")).unwrap(), record);
    let message = run(&config(), &inputs, &out).unwrap_err().to_string();
    assert!(message.contains("belong to part 3/3"), "{message}");
    // The last part is made on another machine, whose folder has another name, and copied.
    let other = folder.path().join("other");
    std::fs::create_dir_all(other.join("pieces")).unwrap();
    for name in [TOKENIZER, "tokenizer-record.json"] {
        std::fs::copy(out.join("pieces").join(name), other.join("pieces").join(name)).unwrap();
    }
    let mounted = folder.path().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    let copies: Vec<PathBuf> = inputs.iter().map(|path| mounted.join(path.file_name().unwrap())).collect();
    inputs.iter().zip(&copies).for_each(|(from, to)| assert!(std::fs::copy(from, to).unwrap() > 0));
    work(&config(), &copies, PrepareWork::Part(WorkPart::new(3, 3).unwrap()), &other).unwrap();
    for name in names_in(&other.join("pieces")).iter().filter(|name| name.starts_with("00002")) {
        std::fs::copy(other.join("pieces").join(name), out.join("pieces").join(name)).unwrap();
    }
    let report = run(&config(), &inputs, &out).unwrap();
    assert_eq!(report.files.len(), 5);
    assert_eq!(report.train.documents + report.validation.documents, 17);
    // Only the names of the folder tell the results apart.
    let same = |name: &str| {
        let read = |out: &Path| TokenSet::open(out.join(name)).unwrap().content_hash().to_owned();
        assert_eq!(read(&out), read(&whole), "{name}");
    };
    same(TRAIN);
    same(VALIDATION);
    for name in names_in(&whole.join("pieces")) {
        let read =
            |out: &Path| TokenSet::open(out.join("pieces").join(&name)).unwrap().content_hash().to_owned();
        assert_eq!(read(&out), read(&whole), "{name}");
    }
    assert_eq!(names_in(&out), [MANIFEST, "pieces", REPORT, TOKENIZER, TRAIN, VALIDATION]);
    assert_eq!(names_in(&out.join("pieces")), names_in(&whole.join("pieces")));
    assert!(part(2, 3).unwrap().skipped && run(&config(), &copies, &out).unwrap().skipped);
}

#[test]
fn a_stopped_run_continues_with_its_finished_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = files(folder.path());
    let whole = folder.path().join("whole");
    run(&config(), &inputs, &whole).unwrap();
    let out = folder.path().join("out");
    // The documents of a are the first five; the sample for the tokenizer does not count them.
    cancelled(&inputs, &out, "", 5);
    let stamp =
        |name: &str| std::fs::metadata(out.join("pieces").join(name)).and_then(|file| file.modified());
    let (tokenizer, first) = (stamp(TOKENIZER).unwrap(), stamp("00000.json").unwrap());
    assert!(stamp("00002.json").is_err());
    // It stops again in the last piece, after the seven documents of b, c and d.
    cancelled(&inputs, &out, "", 7);
    assert_eq!((stamp(TOKENIZER).unwrap(), stamp("00000.json").unwrap()), (tokenizer, first));
    assert!(stamp("00002.json").is_ok() && stamp("00003.json").is_err());
    // A damaged piece is made again, and so is a piece with a changed input.
    std::fs::write(out.join("pieces/00001-train.h5"), "damaged").unwrap();
    let text = std::fs::read_to_string(&inputs[0]).unwrap();
    std::fs::write(&inputs[0], text.replace("word", "ward")).unwrap();
    cancelled(&inputs, &out, "", 10);
    assert_ne!(stamp("00000.json").unwrap(), first);
    std::fs::write(&inputs[0], text).unwrap();
    run(&config(), &inputs, &out).unwrap();
    assert!(outputs(&out) == outputs(&whole));
}
