mod damaged;
mod template;

use super::*;
use proptest::prelude::*;

const TEXT: &str = "The quick brown fox jumps over the lazy dog; the dogs don't mind.\n\tfn main() { println!(\"{}\", 1 + 2); }\n";

fn tokenizer() -> Tokenizer {
    let mut trainer = TokenizerTrainer::new(400).unwrap();
    for _ in 0..20 {
        trainer.push_document(TEXT).unwrap();
    }
    trainer.train().unwrap()
}

#[test]
fn training_merges_words_and_does_not_depend_on_the_order() {
    let tokenizer = tokenizer();
    assert!(tokenizer.vocab_size() <= 400);
    assert_eq!(tokenizer.end_of_text(), 0);
    assert_eq!(tokenizer.encode(" the dog").unwrap().len(), 2);

    let train = |documents: &[&str]| {
        let mut trainer = TokenizerTrainer::new(300).unwrap();
        documents.iter().for_each(|text| trainer.push_document(text).unwrap());
        trainer.train().unwrap()
    };
    let one = train(&["a b ab ab ab ba ba", TEXT, "xyz xyz zyx zyx"]);
    let other = train(&["xyz xyz zyx zyx", "a b ab ab ab ba ba", TEXT]);
    assert_eq!(one.hash(), other.hash());
}

#[test]
fn a_vocabulary_too_small_is_refused() {
    let error = TokenizerTrainer::new(100).err().unwrap();
    assert!(error.to_string().contains("prepare.vocab_size"), "{error}");
}

#[test]
fn special_tokens_in_text_stay_text() {
    let tokenizer = tokenizer();
    let text = "before <|endoftext|><|endoftext|> after";
    let ids = tokenizer.encode(text).unwrap();
    assert!(!ids.contains(&tokenizer.end_of_text()));
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
}

#[test]
fn special_tokens_in_the_text_of_a_template_are_tokens() {
    let tokenizer = tokenizer();
    let ids = tokenizer.template_encoder().encode("the dog<|endoftext|>the dog").unwrap();
    let plain = tokenizer.encode("the dog").unwrap();
    assert_eq!(ids, [plain.as_slice(), &[tokenizer.end_of_text()], plain.as_slice()].concat());
    assert!(
        !tokenizer.encode("<|endoftext|>").unwrap().contains(&tokenizer.end_of_text()),
        "prompts stay text"
    );
}

#[test]
fn the_end_of_text_token_has_no_text() {
    let tokenizer = tokenizer();
    let mut ids = tokenizer.encode("the dog").unwrap();
    ids.push(tokenizer.end_of_text());
    assert_eq!(tokenizer.decode(&ids).unwrap(), "the dog");
}

#[test]
fn a_token_that_the_file_writes_before_texts_is_named_and_left_out() {
    assert_eq!(tokenizer().first_token(), None);
    let mut json: serde_json::Value = serde_json::from_slice(tokenizer().to_json()).unwrap();
    let special = |name: &str| serde_json::json!({"SpecialToken": {"id": name, "type_id": 0}});
    let text = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
    for (single, first) in
        [([special(END_OF_TEXT), text.clone()], Some(END_OF_TEXT)), ([text, special(END_OF_TEXT)], None)]
    {
        json["post_processor"] = serde_json::json!({
            "type": "TemplateProcessing", "single": single, "pair": single,
            "special_tokens": {END_OF_TEXT: {"id": END_OF_TEXT, "ids": [0], "tokens": [END_OF_TEXT]}},
        });
        let found = Tokenizer::from_bytes(json.to_string().as_bytes(), None, "t.json").unwrap();
        assert_eq!(found.first_token().as_deref(), first);
        assert!(!found.encode("a").unwrap().contains(&found.end_of_text()));
    }
}

#[test]
fn a_file_round_trips_with_the_same_hash() {
    let tokenizer = tokenizer();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, tokenizer.to_json()).unwrap();
    let read = Tokenizer::from_file(&path, None).unwrap();
    assert_eq!(read.hash(), tokenizer.hash());
    assert_eq!(read.encode(TEXT).unwrap(), tokenizer.encode(TEXT).unwrap());
}

#[test]
fn files_that_are_no_usable_tokenizer_are_refused_by_name() {
    let garbage = Tokenizer::from_bytes(b"{\"model\":", None, "x/tokenizer.json").unwrap_err();
    assert!(garbage.to_string().contains("x/tokenizer.json"), "{garbage}");

    let text = String::from_utf8(tokenizer().to_json().to_vec()).unwrap();
    let renamed = text.replace("<|endoftext|>", "<|other|>");
    let missing = Tokenizer::from_bytes(renamed.as_bytes(), None, "t.json").unwrap_err();
    assert!(missing.to_string().contains("prepare.end_of_text"), "{missing}");
    assert_eq!(
        Tokenizer::from_bytes(renamed.as_bytes(), Some("<|other|>"), "t.json").unwrap().end_of_text(),
        0
    );
}

#[test]
fn pieces_of_a_long_text_give_the_ids_of_the_whole() {
    let tokenizer = tokenizer();
    let text = TEXT.repeat(2000);
    let whole = tokenizer.inner.encode_fast(text.as_str(), false).unwrap();
    assert!(pieces::pieces(&text, &AddedTexts::default()).count() > 1);
    assert_eq!(tokenizer.encode(&text).unwrap(), whole.get_ids());
}

#[test]
fn a_word_of_a_megabyte_is_encoded_losslessly() {
    let tokenizer = tokenizer();
    let word = "abcdefghé".repeat(100_000);
    assert_eq!(tokenizer.decode(&tokenizer.encode(&word).unwrap()).unwrap(), word);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_survives(text in "\\PC{0,40}|[ \t\r\n\u{0}-\u{1f}a-z'<|>\u{300}\u{1F600}\u{FFFD}]{0,60}") {
        let tokenizer = shared();
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap()).unwrap(), text);
    }

    #[test]
    fn text_that_arrives_in_tokens_is_the_text(ids in prop::collection::vec(0u32..420, 0..40)) {
        let tokenizer = shared();
        let mut decoder = tokenizer.incremental_decoder();
        let mut text: String = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
        text += &decoder.flush().unwrap();
        prop_assert_eq!(text, tokenizer.decode(&ids).unwrap());
    }

    #[test]
    fn characters_are_never_cut(text in "[a-zé\u{1F600}中\n ]{0,30}") {
        let tokenizer = shared();
        let mut decoder = tokenizer.incremental_decoder();
        let mut out = String::new();
        for id in tokenizer.encode(&text).unwrap() {
            out += &decoder.push(id).unwrap();
            prop_assert!(text.starts_with(&out));
        }
        prop_assert_eq!(decoder.flush().unwrap(), "");
        prop_assert_eq!(out, text);
    }
}

#[test]
fn a_word_level_tokenizer_streams_its_text_too() {
    // A tokenizer that is not byte-level: Llama 2's shape, with byte fallback and spaces as U+2581.
    let json = r#"{"version":"1.0","added_tokens":[{"id":1,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
        "normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"},
        "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]},
        "model":{"type":"BPE","unk_token":"<unk>","byte_fallback":true,"vocab":{"<unk>":0,"</s>":1,"<0xC3>":2,"<0xA9>":3,"a":4,"▁":5,"▁a":6,"s":7,"/":8,"<":9,">":10},"merges":["▁ a"]}}"#;
    let tokenizer = Tokenizer::from_bytes(json.as_bytes(), None, "fallback.json").unwrap();
    assert_eq!(tokenizer.end_of_text(), 1);
    let ids = tokenizer.encode("a aé</s>a").unwrap();
    assert_eq!(ids, [4, 6, 2, 3, 9, 8, 7, 10, 4]);
    let mut decoder = tokenizer.incremental_decoder();
    let pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
    assert_eq!(pieces, ["a", " a", "", "é", "<", "/", "s", ">", "a"]);
    assert_eq!(decoder.push(2).unwrap(), "");
    assert_eq!(decoder.flush().unwrap(), "\u{FFFD}");
}

/// A tokenizer of Llama 2's shape: a text begins without the space of its first token, and bytes stand for characters
/// without a token.
fn sentence_pieces() -> Tokenizer {
    let json = r#"{"version":"1.0","added_tokens":[{"id":1,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
        "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
        "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
        "model":{"type":"BPE","unk_token":"<unk>","byte_fallback":true,"vocab":{"<unk>":0,"</s>":1,"<0xC3>":2,"<0xA9>":3,"a":4,"▁":5,"▁a":6,"s":7},"merges":["▁ a"]}}"#;
    Tokenizer::from_bytes(json.as_bytes(), None, "pieces.json").unwrap()
}

#[test]
fn a_token_keeps_its_space_that_only_a_text_begins_without() {
    let tokenizer = sentence_pieces();
    let ids = tokenizer.encode("a aé").unwrap();
    assert_eq!(ids, [6, 6, 2, 3]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "a aé");
    let bytes = |id| tokenizer.token_bytes(id).unwrap();
    assert_eq!((bytes(6), bytes(5), bytes(4)), (b" a".to_vec(), b" ".to_vec(), b"a".to_vec()));
    assert_eq!((bytes(2), bytes(3)), (vec![0xC3], vec![0xA9]));
    assert_eq!((bytes(1), bytes(99)), (Vec::new(), Vec::new()), "special and unknown tokens");
}

proptest! {
    #[test]
    fn a_streamed_text_of_pieces_is_the_decoded_text(
        ids in prop::collection::vec(prop_oneof![Just(vec![2, 3]), (0u32..9).prop_filter("bytes", |id| !matches!(id, 2 | 3)).prop_map(|id| vec![id])], 0..12),
    ) {
        let (tokenizer, ids) = (sentence_pieces(), ids.concat());
        let mut decoder = tokenizer.incremental_decoder();
        let mut text: String = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
        text += &decoder.flush().unwrap();
        prop_assert_eq!(text, tokenizer.decode(&ids).unwrap());
    }
}

/// Compares a decoder that has read all tokens before a cut with one that has read the end of them only.
fn check_the_end_is_enough(tokenizer: &Tokenizer, tokens: &[u32], most: usize) {
    for cut in 0..=tokens.len() {
        let (before, after) = tokens.split_at(cut);
        let context = tokenizer.decoder_context(before);
        let (mut whole, mut end) = (tokenizer.incremental_decoder(), tokenizer.incremental_decoder());
        before.iter().for_each(|&id| drop(whole.push(id).unwrap()));
        context.iter().for_each(|&id| drop(end.push(id).unwrap()));
        for &id in after.iter().take(5) {
            assert_eq!(end.push(id).unwrap(), whole.push(id).unwrap(), "cut at {cut}");
        }
        assert_eq!(end.flush().unwrap(), whole.flush().unwrap(), "cut at {cut}");
        assert!(context.len() <= most, "{} tokens at {cut}", context.len());
    }
}

#[test]
fn the_end_of_a_text_is_enough_to_continue_it() {
    let text = "One. 😀😀😀😀😀 naïve façade 你好吗 ".repeat(3);
    check_the_end_is_enough(shared(), &shared().encode(&text).unwrap(), 11);
    // Words, special tokens, which have no text, and long runs of characters of two tokens.
    let mut pieces = [6, 7, 4, 1, 5].repeat(8);
    pieces.extend([2, 3].repeat(20));
    pieces.extend([1; 12]);
    pieces.extend([2, 3, 6, 1, 1].repeat(6));
    check_the_end_is_enough(&sentence_pieces(), &pieces, 9 + 20);
}

fn shared() -> &'static Tokenizer {
    static SHARED: std::sync::OnceLock<Tokenizer> = std::sync::OnceLock::new();
    SHARED.get_or_init(tokenizer)
}
