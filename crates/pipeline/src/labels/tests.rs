use dipaco_config::RunConfig;

use super::*;
use crate::prepare::prepare;

/// A Parquet file that `shards/tests/parquet/write.py` wrote.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shards/tests/parquet").join(name)
}

/// A prepared run whose text is in the field `content`: the validation text is Parquet, and the training text JSON lines.
struct Prepared {
    folder: tempfile::TempDir,
    run: RunDirectory,
    config: RunConfig,
}

impl Prepared {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path().join("run"));
        let mut config = RunConfig::default();
        config.prepare.vocab_size = 280;
        config.prepare.text_field = "content".to_owned();
        config.prepare.max_line_bytes = 400;
        let prepared = Self { folder, run, config };
        // The last line is too long for the run.
        let line = |i: usize| {
            let text =
                format!("Document {i} speaks of {}. ", i * 31 % 17).repeat(if i == 60 { 20 } else { 1 });
            serde_json::json!({"url": format!("http://train/{i}"), "content": text, "number": i})
        };
        let train = prepared.lines("train.jsonl", (0..61).map(line));
        let validation = [golden("addresses.parquet")];
        let stop = AtomicBool::new(false);
        prepare(&prepared.run, &prepared.config, &[train], &validation, &Progress::hidden(), &stop).unwrap();
        prepared
    }

    /// A file with these values, one on each line.
    fn lines(&self, name: &str, values: impl Iterator<Item = serde_json::Value>) -> PathBuf {
        let file = self.folder.path().join(name);
        std::fs::write(&file, values.map(|value| format!("{value}\n")).collect::<String>()).unwrap();
        file
    }

    /// A label file with these addresses and domains.
    fn label_file(&self, labels: impl Iterator<Item = (String, &'static str)>) -> PathBuf {
        let label = |(url, domain): (String, &str)| serde_json::json!({"url": url, "domain": domain});
        self.lines("labels.jsonl", labels.map(label))
    }

    fn domains(&self, labels: &Path, text: &[PathBuf]) -> Result<Domains, PipelineError> {
        let stop = AtomicBool::new(false);
        domains(&self.run, &self.config.prepare, labels, text, &Progress::hidden(), &stop)
    }

    fn refused(&self, labels: &Path, text: PathBuf) -> String {
        let error = self.domains(labels, &[text]).unwrap_err();
        assert!(matches!(error, PipelineError::Labels(LabelError::NoAddress { files: 1, .. })), "{error}");
        error.to_string()
    }
}

/// The address of a row of `addresses.parquet`, and a domain.
fn row(row: u32) -> (String, &'static str) {
    (format!("https://example.com/{row}"), if row.is_multiple_of(2) { "even" } else { "odd" })
}

#[test]
fn rows_of_parquet_are_labelled_by_their_address() {
    let prepared = Prepared::new();
    let domains = prepared.domains(&prepared.label_file((0..12).map(row)), &[]).unwrap();
    // Row 3 has no address, and row 7 no text.
    assert_eq!((domains.documents(), domains.unlabelled()), (11, 1));
    let validation = token_file(&prepared.run, &prepared.run.validation_tokens()).unwrap();
    for (document, number) in (0..).zip((0..12).filter(|&number| number != 7)) {
        let expected = Some(row(number).1).filter(|_| number != 3);
        assert_eq!(domains.of(validation.document(document)), expected, "row {number}");
    }
}

#[test]
fn all_text_is_read_again_as_it_was_prepared() {
    let prepared = Prepared::new();
    let train = (0..61).map(|i| (format!("http://train/{i}"), if i == 60 { "too long" } else { "train" }));
    let labels = prepared.label_file(train.chain((0..12).map(row)));
    let (prepare, stop) = (&prepared.config.prepare, AtomicBool::new(false));
    let found = prefix_labels(&prepared.run, prepare, &labels, 16, &Progress::hidden(), &stop).unwrap();
    assert_eq!(found.names(), 3, "no document is too long");
    let of = |tokens: PathBuf| {
        let tokens = token_file(&prepared.run, &tokens).unwrap();
        let number = |document| found.number(&tokens.document(document).to_vec());
        (0..tokens.documents()).map(number).collect::<Vec<_>>()
    };
    assert_eq!(of(prepared.run.train_tokens()), vec![Some(2); 60]);
    let validation = of(prepared.run.validation_tokens());
    assert_eq!(validation[..5], [Some(0), Some(1), Some(0), None, Some(0)]);
}

#[test]
fn text_that_is_gone_is_named_with_the_remedy_of_the_command() {
    let prepared = Prepared::new();
    let labels = prepared.label_file((0..12).map(row));
    std::fs::remove_file(prepared.folder.path().join("train.jsonl")).unwrap();
    let (hidden, stop) = (Progress::hidden(), AtomicBool::new(false));
    let found = prefix_labels(&prepared.run, &prepared.config.prepare, &labels, 16, &hidden, &stop);
    let message = found.err().unwrap().to_string();
    assert!(message.contains("train.jsonl") && message.contains("another routing.kind"), "{message}");
    // The validation text is there.
    prepared.domains(&labels, &[]).unwrap();
}

#[test]
fn text_that_was_given_by_a_relative_name_is_found_from_any_folder() {
    let prepared = Prepared::new();
    let run = RunDirectory::new(prepared.folder.path().join("relative"));
    let train = prepared.folder.path().join("train.jsonl");
    // Tests run in the folder of their package.
    let validation = PathBuf::from("../../shards/tests/parquet/addresses.parquet");
    let (hidden, stop) = (Progress::hidden(), AtomicBool::new(false));
    prepare(&run, &prepared.config, &[train], &[validation], &hidden, &stop).unwrap();
    let files = prepared_from(&run, super::Prepared::All).unwrap();
    assert_eq!(files.len(), 2);
    assert!(files.iter().all(|file| file.is_absolute()), "{files:?}");
}

#[test]
fn text_without_addresses_is_refused() {
    let prepared = Prepared::new();
    let labels = prepared.label_file((0..12).map(row));
    let plain = prepared.folder.path().join("plain.txt");
    std::fs::write(&plain, "Row 0 of a table.\n").unwrap();
    let lines = prepared.lines("text.jsonl", std::iter::once(serde_json::json!({"content": "a"})));
    for text in [plain, golden("plain.parquet"), lines] {
        let name = text.display().to_string();
        let message = prepared.refused(&labels, text);
        for words in ["labels.jsonl", "no document of the text has one", &name, "column `url`"] {
            assert!(message.contains(words), "{words}: {message}");
        }
    }
}
