//! Texts that a chat template made.

use serde_json::{Value, json};

use super::*;

/// A tokenizer with the special tokens of a chat. With `rstrip` they take the spaces behind them.
fn chat_tokenizer(rstrip: bool) -> Tokenizer {
    let plain = tokenizer();
    let mut file: Value = serde_json::from_slice(plain.to_json()).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    for (id, content) in (plain.vocab_size()..).zip(["<|im_start|>", "<|im_end|>"]) {
        added.push(json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": rstrip, "normalized": false,
            "special": true,
        }));
    }
    Tokenizer::from_bytes(file.to_string().as_bytes(), None, "chat.json").unwrap()
}

fn check_the_ids_are_those_of_one_call(encoder: &TemplateEncoder, text: &str) {
    let one_call = encoder.inner.encode_fast(text, false).unwrap();
    assert!(pieces::pieces(text, &encoder.added).count() > 1);
    assert_eq!(encoder.encode(text).unwrap(), one_call.get_ids());
}

#[test]
fn a_long_chat_takes_little_memory() {
    let encoder = chat_tokenizer(false).template_encoder();
    let text = format!("<|im_start|>user\n{TEXT}<|im_end|>\n").repeat(2_000_000 / TEXT.len());
    let mut ids = Vec::new();
    let memory = allocation_counter::measure(|| ids = encoder.encode(&text).unwrap());
    assert!(memory.bytes_max < 64 << 20, "{} bytes of memory", memory.bytes_max);
    assert!(ids.len() > 100_000);
}

#[test]
fn special_tokens_beside_and_across_the_ends_of_pieces_stay_tokens() {
    const PIECE: usize = 64 << 10;
    let encoder = chat_tokenizer(false).template_encoder();
    let special = ["<|im_start|>", "<|im_end|>"].map(|name| encoder.inner.token_to_id(name).unwrap());
    // The first token begins so many bytes before the largest end of the first piece.
    for before in 0..=13 {
        let words = "dog ".repeat(PIECE / 4);
        let text = words[..PIECE - before].to_owned() + "<|im_start|>user the fox";
        check_the_ids_are_those_of_one_call(&encoder, &text);
        // Numbers and line breaks are no words that a piece may end before.
        let numbers = "12\n34".repeat(PIECE / 5 + 1);
        let text = numbers[..PIECE - before].to_owned() + "<|im_start|><|im_end|>12";
        let mut ids = encoder.encode(&text).unwrap();
        ids.retain(|id| special.contains(id));
        assert_eq!(ids, special, "{before} bytes before");
    }
    check_the_ids_are_those_of_one_call(&encoder, &"<|im_start|>".repeat(3 * PIECE / 12));
    check_the_ids_are_those_of_one_call(&encoder, &"<|im_start|>dog\n<|im_end|>".repeat(3 * PIECE / 26));
}

#[test]
fn tokens_take_the_spaces_behind_them_at_the_ends_of_pieces_too() {
    let encoder = chat_tokenizer(true).template_encoder();
    for before in 0..16 {
        let text = "x".repeat(before) + &"<|im_start|> fox the dog".repeat(3000);
        check_the_ids_are_those_of_one_call(&encoder, &text);
    }
}

#[test]
fn special_tokens_have_a_text_of_their_own() {
    let tokenizer = chat_tokenizer(false);
    let ids = tokenizer.template_encoder().encode("<|im_end|>dog<|endoftext|>").unwrap();
    let texts: Vec<Option<String>> = ids.iter().map(|&id| tokenizer.special_text(id)).collect();
    assert_eq!(texts.first().unwrap().as_deref(), Some("<|im_end|>"));
    assert_eq!(texts.last().unwrap().as_deref(), Some(END_OF_TEXT));
    assert!(texts[1..texts.len() - 1].iter().all(Option::is_none));
    assert_eq!(tokenizer.special_text(tokenizer.vocab_size()), None);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "dog");
}
