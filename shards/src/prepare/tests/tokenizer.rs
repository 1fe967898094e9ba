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

#[test]
fn the_tokenizer_of_a_trained_model_stays() {
    let folder = tempfile::tempdir().unwrap();
    let first = corpus(folder.path());
    let other = folder.path().join("other.jsonl");
    let line = |at: u32| format!("{{\"text\": \"quite different, {at} times\"}}\n");
    std::fs::write(&other, (0..200).map(line).collect::<String>()).unwrap();
    let out = folder.path().join("out");
    let hash = run(&config(), std::slice::from_ref(&first), &out).unwrap().tokenizer.hash;
    let before = outputs(&out);

    let with = |config: &PrepareConfig, input: &Path, kind: PrepareWork, keep: Option<&str>| {
        work_into(config, &[input.to_owned()], kind, PrepareFolder { path: &out, keep })
    };
    for kind in [PrepareWork::All, PrepareWork::Tokenizer, PrepareWork::Part(WorkPart::WHOLE)] {
        let error = with(&config(), &other, kind, Some(&hash)).unwrap_err();
        assert!(matches!(error, ShardsError::TokenizerInUse { .. }), "{error}");
        let message = error.to_string();
        let remedy = format!("prepare.tokenizer={}", out.join(TOKENIZER).display());
        assert!(message.contains(&hash) && message.contains(&remedy), "{message}");
        assert!(outputs(&out) == before);
    }
    assert!(with(&config(), &first, PrepareWork::All, Some(&hash)).unwrap().skipped);

    // The remedy, and a folder without a trained model.
    let given = PrepareConfig { tokenizer: Some(out.join(TOKENIZER)), ..config() };
    assert_eq!(with(&given, &other, PrepareWork::All, Some(&hash)).unwrap().tokenizer.hash, hash);
    assert_ne!(with(&config(), &other, PrepareWork::All, None).unwrap().tokenizer.hash, hash);

    // A folder that has lost the tokenizer is no remedy.
    let message = with(&config(), &first, PrepareWork::All, Some("lost")).unwrap_err().to_string();
    assert!(message.contains("prepare.tokenizer=FILE, a copy of that tokenizer"), "{message}");
}

#[test]
fn a_text_that_the_tokenizer_cannot_encode_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let given = folder.path().join("words.json");
    // The end of text is encoded too, as a text: three words.
    let vocabulary = serde_json::json!({END_OF_TEXT: 0, "known": 1, "<|": 2, "endoftext": 3, "|>": 4});
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 0, "content": END_OF_TEXT, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "pre_tokenizer": {"type": "Whitespace"},
        // The token for unknown words is none of the vocabulary.
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    });
    std::fs::write(&given, json.to_string()).unwrap();
    let input = folder.path().join("text.jsonl");
    std::fs::write(&input, "{\"text\":\"known\"}\n\n{\"text\":\"other\"}\n").unwrap();
    let config = PrepareConfig { tokenizer: Some(given), ..config() };
    let error = run(&config, std::slice::from_ref(&input), &folder.path().join("out")).unwrap_err();
    let message = error.to_string();
    assert!(message.contains(&format!("{}:3", input.display())), "{message}");
    assert!(message.contains("byte fallback"), "{message}");
    assert!(std::error::Error::source(&error).is_some());
}
