//! The memory of a preparation.

use super::*;

/// A line of JSON with this text, padded with white space to `length` bytes.
fn line(text: &str, length: usize) -> String {
    let json = serde_json::json!({ "text": text }).to_string();
    json.clone() + &" ".repeat(length - 1 - json.len()) + "\n"
}

/// Counts the bytes that were read and not yet written. All documents have lines of the same length.
struct Unwritten {
    line_bytes: i64,
    /// Now, and the most so far.
    bytes: Mutex<(i64, i64)>,
}

impl PrepareProgress for Unwritten {
    fn begin(&self, _: &str, _: u64) {}

    fn advance(&self, bytes: u64, documents: u64) {
        let mut unwritten = self.bytes.lock().unwrap();
        unwritten.0 += bytes as i64 - documents as i64 * self.line_bytes;
        unwritten.1 = unwritten.1.max(unwritten.0);
    }

    fn end(&self) {}
}

#[test]
fn long_documents_behind_a_slow_one_do_not_fill_the_memory() {
    const LONG: usize = 1 << 20;
    const LINE_BYTES: usize = LONG + 100;
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = folder.path().join("words.json");
    write_words(&tokenizer, &serde_json::json!({END_OF_TEXT: 0, "<unk>": 1}));
    // The writer waits for the first document, which has many words. The others are long, have few words, and are soon
    // tokens.
    let mut text = line(&"a ".repeat(LONG / 8), LINE_BYTES);
    text += &line(&"a".repeat(LONG), LINE_BYTES).repeat(7);
    let input = folder.path().join("long.jsonl");
    std::fs::write(&input, text).unwrap();

    let given = PrepareConfig { tokenizer: Some(tokenizer), validation_fraction: 0.0, ..config() };
    let progress = Unwritten { line_bytes: LINE_BYTES as i64, bytes: Mutex::default() };
    let out = folder.path().join("out");
    let (cancel, into) = (AtomicBool::new(false), PrepareFolder::new(&out));
    let report = prepare(&given, &[input], &[], PrepareWork::All, into, &progress, &cancel).unwrap();
    assert_eq!(report.train.documents, 8);
    // With one thread a long document takes all permits. The reader holds the next one and a buffer.
    let most = progress.bytes.into_inner().unwrap().1;
    assert!(most < 5 * LINE_BYTES as i64 / 2, "{most} bytes were read and not yet written");
}

#[test]
fn documents_and_lines_have_a_largest_length() {
    let large = [
        ("prepare.text_document_bytes", PrepareConfig { text_document_bytes: 1 << 40, ..config() }),
        ("prepare.max_line_bytes", PrepareConfig { max_line_bytes: 1 << 40, ..config() }),
    ];
    for (key, config) in large {
        let message = config.check().unwrap_err().to_string();
        assert!(message.contains(key) && message.contains("1 GiB"), "{message}");
    }
}
