//! Training of the tokenizer that all pieces share.

use super::*;

fn trained(config: &PrepareConfig, input: &Path, out: &Path) -> Result<TokenizerReport, ShardsError> {
    work(config, &[input.to_owned()], PrepareWork::Tokenizer, out).map(|report| report.tokenizer)
}

#[test]
fn no_tokenizer_is_trained_without_text() {
    let folder = tempfile::tempdir().unwrap();
    let input = corpus(folder.path());
    let out = folder.path().join("out");
    let wrong = PrepareConfig { text_field: "content".to_owned(), ..config() };
    for kind in [PrepareWork::Tokenizer, PrepareWork::All] {
        let error = work(&wrong, std::slice::from_ref(&input), kind, &out).unwrap_err().to_string();
        assert!(error.contains("600 × no text field, first at") && error.contains("jsonl:1"), "{error}");
        assert!(names_in(&out.join("pieces")).is_empty());
    }
    let one = folder.path().join("one.txt");
    std::fs::write(&one, "one document").unwrap();
    let all = PrepareConfig { validation_fraction: 1.0 - 1e-9, ..config() };
    let error = trained(&all, &one, &out).unwrap_err();
    assert!(matches!(error, ShardsError::EmptyTrain { documents: 1, .. }), "{error}");
    assert!(names_in(&out.join("pieces")).is_empty());
}

#[test]
fn a_tokenizer_belongs_to_the_field_of_its_text() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("fields.jsonl");
    let line = |at: u32| {
        let (text, content) =
            (format!("the number {at} and the word"), format!("quite different, {at} times"));
        format!("{}\n", serde_json::json!({ "text": text, "content": content }))
    };
    std::fs::write(&input, (0..50).map(line).collect::<String>()).unwrap();
    let other = PrepareConfig { text_field: "content".to_owned(), ..config() };
    let (out, fresh) = (folder.path().join("out"), folder.path().join("fresh"));
    let of_text = trained(&config(), &input, &out).unwrap();
    let of_content = trained(&other, &input, &out).unwrap();
    assert_ne!(of_content.hash, of_text.hash);
    assert_eq!(of_content.hash, trained(&other, &input, &fresh).unwrap().hash);
}

#[test]
fn a_sample_that_draws_nothing_takes_the_first_documents() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("large.jsonl");
    let line = |at: u32| {
        let text = format!("the number {at} and the word é ").repeat(200);
        format!("{}\n", serde_json::json!({ "text": text }))
    };
    std::fs::write(&input, (0..20).map(line).collect::<String>()).unwrap();
    let outcomes = [1, 4].map(|threads| {
        let out = folder.path().join(format!("out{threads}"));
        // The draw takes about one document of a hundred thousand.
        let small = PrepareConfig { tokenizer_sample_bytes: 1, threads, ..config() };
        let report = trained(&small, &input, &out).unwrap();
        (report.hash, report.vocab_size, report.trained_on_bytes)
    });
    assert_eq!(outcomes[0], outcomes[1]);
    let (_, vocab_size, trained_on_bytes) = outcomes[0];
    // 257 tokens are the bytes and the end of a text. One document is enough for this sample.
    assert!(vocab_size > 257 && (1..10_000).contains(&trained_on_bytes), "{vocab_size} {trained_on_bytes}");
}
