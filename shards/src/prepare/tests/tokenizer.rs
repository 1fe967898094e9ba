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
        let into = PrepareFolder { keep, ..PrepareFolder::new(&out) };
        work_into(config, &[input.to_owned()], kind, into)
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

    // A model that is of no use any more: nobody asks about the text of its tokenizer.
    let asked = std::cell::Cell::new(0);
    let may_replace = || asked.replace(asked.get() + 1) == 0;
    let replacing = |keep: Option<&str>, input: &Path| {
        let into = PrepareFolder { keep, may_replace: Some(&may_replace), ..PrepareFolder::new(&out) };
        work_into(&config(), &[input.to_owned()], PrepareWork::All, into)
    };
    // The refused call has trained its tokenizer.
    let replaced = replacing(Some("lost"), &first).unwrap().tokenizer;
    assert_eq!((replaced.hash, replaced.trained_before, asked.get()), (hash.clone(), true, 1));
    assert!(replacing(Some(&hash), &first).unwrap().skipped);
    assert_eq!(asked.get(), 1);
    let error = replacing(Some("lost"), &other).unwrap_err();
    assert!(matches!(error, ShardsError::TokenizerInUse { .. }) && asked.get() == 2, "{error}");
}

#[test]
fn the_end_of_text_token_of_a_trained_model_stays() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = [corpus(folder.path())];
    let first = folder.path().join("first");
    let vocab_size = run(&config(), &inputs, &first).unwrap().tokenizer.vocab_size;
    // The same tokenizer with a second token that can end a text.
    let bytes = std::fs::read(first.join(TOKENIZER)).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    let mut second = added[0].clone();
    second["id"] = vocab_size.into();
    second["content"] = "<|fin|>".into();
    added.push(second);
    let tokenizer = folder.path().join("tokenizer.json");
    std::fs::write(&tokenizer, json.to_string()).unwrap();
    let given = PrepareConfig { tokenizer: Some(tokenizer), ..config() };
    let out = folder.path().join("out");
    let hash = run(&given, &inputs, &out).unwrap().tokenizer.hash;
    let end = TokenSet::open(out.join(TRAIN)).unwrap().end_of_text();
    let before = outputs(&out);

    let named = |end: &str| PrepareConfig { end_of_text: Some(end.to_owned()), ..given.clone() };
    let keeping = |config: &PrepareConfig, kind: PrepareWork| {
        let into =
            PrepareFolder { keep: Some(&hash), keep_end_of_text: Some(end), ..PrepareFolder::new(&out) };
        work_into(config, &inputs, kind, into)
    };
    for kind in [PrepareWork::All, PrepareWork::Tokenizer, PrepareWork::Part(WorkPart::WHOLE)] {
        let error = keeping(&named("<|fin|>"), kind).unwrap_err();
        assert!(matches!(error, ShardsError::EndOfTextInUse { .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains("is <|fin|>"), "{message}");
        assert!(message.contains("'prepare.end_of_text=\"<|endoftext|>\"'"), "{message}");
        assert!(outputs(&out) == before);
    }
    // The remedy, and a folder without a trained model.
    let remedied = keeping(&named(END_OF_TEXT), PrepareWork::All).unwrap();
    assert_eq!(remedied.tokenizer.end_of_text.as_deref(), Some(END_OF_TEXT));
    run(&named("<|fin|>"), &inputs, &out).unwrap();

    // The text is not of the tokenizer with its usual token.
    let text = TokenSet::open(out.join(TRAIN)).unwrap();
    let usual = Tokenizer::from_file(&out.join(TOKENIZER), None).unwrap();
    let error = text.check_tokenizer(&usual).unwrap_err();
    assert!(matches!(error, ShardsError::TokenizerMismatch { .. }), "{error}");
    assert!(error.to_string().contains(&format!("(end-of-text token {end})")), "{error}");
    text.check_tokenizer(&prepared_tokenizer(&out).unwrap()).unwrap();
}

#[test]
fn the_end_of_text_token_of_a_preparation_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let input = corpus(folder.path());
    let first = folder.path().join("first");
    run(&config(), std::slice::from_ref(&input), &first).unwrap();
    assert_eq!(prepared_tokenizer(&first).unwrap().end_of_text_text(), END_OF_TEXT);

    // The same tokenizer with another token, which no list of usual names has.
    let given = folder.path().join("tokenizer.json");
    let json = std::fs::read_to_string(first.join(TOKENIZER)).unwrap();
    std::fs::write(&given, json.replace(END_OF_TEXT, "<|fin|>")).unwrap();
    let end_of_text = Some("<|fin|>".to_owned());
    let given = PrepareConfig { tokenizer: Some(given), end_of_text, ..config() };
    let out = folder.path().join("out");
    let inputs = [input];
    run(&given, &inputs, &out).unwrap();
    let again = prepared_tokenizer(&out).unwrap();
    assert_eq!(again.end_of_text_text(), "<|fin|>");
    let file = TokenSet::open(out.join(TRAIN)).unwrap();
    assert_eq!(file.document(0).to_vec().last(), Some(&again.end_of_text()));

    // A repeated preparation that was stopped has removed its lists and its manifest, and no tokenizer.
    let (cancel, into) = (AtomicBool::new(false), PrepareFolder::new(&out));
    let other = PrepareConfig { validation_fraction: 0.3, ..given };
    let progress = CancelAt::new(&cancel, "tokenize", i64::MAX);
    let stopped = prepare(&other, &inputs, &[], PrepareWork::All, into, &progress, &cancel);
    assert!(matches!(stopped, Err(ShardsError::Cancelled)), "{stopped:?}");
    assert!(!out.join(MANIFEST).exists() && !out.join(TRAIN).exists());
    assert_eq!(prepared_tokenizer(&out).unwrap().end_of_text_text(), "<|fin|>");
}

#[test]
fn the_parts_of_a_finished_text_get_its_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = files(folder.path());
    let out = folder.path().join("out");
    let first = run(&config(), &inputs, &out).unwrap().tokenizer;
    assert!(!out.join("pieces").join(TOKENIZER).exists());
    let report = work(&config(), &inputs, PrepareWork::Tokenizer, &out).unwrap();
    assert!(report.skipped);
    let of = |tokenizer: &TokenizerReport| (tokenizer.hash.clone(), tokenizer.trained_on_bytes);
    assert_eq!(of(&report.tokenizer), of(&first));
    // A machine with a copy of the folder of the pieces only.
    let copy = folder.path().join("copy");
    std::fs::create_dir_all(copy.join("pieces")).unwrap();
    for name in names_in(&out.join("pieces")).iter().filter(|name| name.starts_with("tokenizer")) {
        std::fs::copy(out.join("pieces").join(name), copy.join("pieces").join(name)).unwrap();
    }
    let part = PrepareWork::Part(WorkPart::new(1, 3).unwrap());
    let done = work(&config(), &inputs, part, &copy).unwrap();
    // Its training is no part of the time of this machine.
    assert!(done.to_string().contains("s; tokenizer trained before, in "), "{done}");
    assert!(!first.trained_before);
    assert_eq!((done.tokenizer.hash, done.files.len()), (first.hash, 2));
}

#[test]
fn the_parts_of_a_finished_text_get_no_tokenizer_of_another_text() {
    let folder = tempfile::tempdir().unwrap();
    let input = corpus(folder.path());
    let other = folder.path().join("other.jsonl");
    let line = |at: u32| format!("{{\"text\": \"quite different, {at} times\"}}\n");
    std::fs::write(&other, (0..200).map(line).collect::<String>()).unwrap();
    let out = folder.path().join("out");
    let hash = run(&config(), std::slice::from_ref(&input), &out).unwrap().tokenizer.hash;
    assert_ne!(trained(&config(), &other, &out).unwrap().hash, hash);
    assert_eq!(trained(&config(), &input, &out).unwrap().hash, hash);
    let for_parts = out.join("pieces").join(TOKENIZER);
    assert_eq!(Tokenizer::from_file(&for_parts, None).unwrap().hash(), hash);
}

#[test]
fn the_parts_of_a_changed_text_get_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = files(folder.path());
    let out = folder.path().join("out");
    run(&config(), &inputs, &out).unwrap();
    // Names and lengths stay the same.
    let text = std::fs::read_to_string(&inputs[0]).unwrap();
    std::fs::write(&inputs[0], text.replace("word", "ward")).unwrap();
    let part = || work(&config(), &inputs, PrepareWork::Part(WorkPart::new(1, 3).unwrap()), &out);
    let error = part().unwrap_err();
    assert!(matches!(error, ShardsError::NoSharedTokenizer { .. }), "{error}");
    // The remedy of that error.
    assert!(!work(&config(), &inputs, PrepareWork::Tokenizer, &out).unwrap().skipped);
    assert_eq!(part().unwrap().files.len(), 2);
}

#[test]
fn a_sample_without_a_limit_is_the_whole_text() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("all.jsonl");
    let line = |at: u32| {
        let text = format!("the number {at} and the word é ").repeat(30);
        format!("{}\n", serde_json::json!({ "text": text }))
    };
    std::fs::write(&input, (0..200).map(line).collect::<String>()).unwrap();
    // A TOML file has no larger number.
    let most = i64::MAX as u64;
    let all = PrepareConfig { tokenizer_sample_bytes: most, validation_fraction: 0.0, ..config() };
    let report = trained(&all, &input, &folder.path().join("out")).unwrap();
    assert!(report.trained_on_bytes > 150_000, "{}", report.trained_on_bytes);
}

#[test]
fn a_text_that_the_tokenizer_cannot_encode_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let given = folder.path().join("words.json");
    // The end of text is encoded too, as a text: three words.
    let vocabulary = serde_json::json!({END_OF_TEXT: 0, "known": 1, "<|": 2, "endoftext": 3, "|>": 4});
    // The token for unknown words is none of the vocabulary.
    write_words(&given, &vocabulary);
    let input = folder.path().join("text.jsonl");
    std::fs::write(&input, "{\"text\":\"known\"}\n\n{\"text\":\"other\"}\n").unwrap();
    let config = PrepareConfig { tokenizer: Some(given), ..config() };
    let error = run(&config, std::slice::from_ref(&input), &folder.path().join("out")).unwrap_err();
    let message = error.to_string();
    assert!(message.contains(&format!("{}:3", input.display())), "{message}");
    assert!(message.contains("byte fallback"), "{message}");
    assert!(std::error::Error::source(&error).is_some());
}
