//! The tokenizer of a run as the inference engine uses it.

use dipaco_infer::{BoxError, TextCodec, TextStream, TokenizerInfo};
use dipaco_shards::{IncrementalDecoder, Tokenizer};

/// Turns text into tokens and tokens into text, with the tokenizer of a run.
#[derive(Clone)]
pub struct RunTextCodec {
    tokenizer: Tokenizer,
    end_tokens: Vec<u32>,
}

impl RunTextCodec {
    /// A codec on a run's tokenizer. A generated text ends at the end-of-text token, and at each of `end_tokens`.
    pub fn new(tokenizer: Tokenizer, mut end_tokens: Vec<u32>) -> Self {
        if !end_tokens.contains(&tokenizer.end_of_text()) {
            end_tokens.push(tokenizer.end_of_text());
        }
        Self { tokenizer, end_tokens }
    }
}

impl TextCodec for RunTextCodec {
    fn encode(&self, text: &str) -> Result<Vec<u32>, BoxError> {
        Ok(self.tokenizer.encode(text)?)
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, BoxError> {
        Ok(self.tokenizer.decode(tokens)?)
    }

    fn token_text(&self, token: u32) -> String {
        String::from_utf8_lossy(&self.token_bytes(token)).into_owned()
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        match self.tokenizer.special_text(token) {
            Some(text) => text.into_bytes(),
            None => self.tokenizer.token_bytes(token).unwrap_or_default(),
        }
    }

    fn stream(&self, after: &[u32]) -> Box<dyn TextStream> {
        let before = self.tokenizer.decoder_context(after).to_vec();
        Box::new(TokenStream { before, decoder: self.tokenizer.incremental_decoder() })
    }

    fn end_of_text(&self) -> u32 {
        self.tokenizer.end_of_text()
    }

    fn end_tokens(&self) -> Vec<u32> {
        self.end_tokens.clone()
    }

    fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size() as usize
    }

    fn info(&self) -> TokenizerInfo {
        TokenizerInfo {
            class: "PreTrainedTokenizerFast".to_owned(),
            end_of_text: self.tokenizer.end_of_text_text(),
        }
    }
}

/// Decodes the tokens of one generated text.
struct TokenStream {
    /// The last tokens before, until the first token comes. Their text is not returned.
    before: Vec<u32>,
    decoder: IncrementalDecoder,
}

impl TokenStream {
    fn read_before(&mut self) -> Result<(), BoxError> {
        for token in self.before.drain(..) {
            self.decoder.push(token)?;
        }
        Ok(())
    }
}

impl TextStream for TokenStream {
    fn push(&mut self, token: u32) -> Result<String, BoxError> {
        self.read_before()?;
        Ok(self.decoder.push(token)?)
    }

    fn finish(&mut self) -> String {
        self.read_before().and_then(|()| Ok(self.decoder.flush()?)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer of Llama 2's shape: a text begins without the space of its first token.
    const PIECES: &str = r#"{"version":"1.0","added_tokens":[{"id":1,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
        "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
        "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
        "model":{"type":"BPE","unk_token":"<unk>","byte_fallback":true,"vocab":{"<unk>":0,"</s>":1,"<0xC3>":2,"<0xA9>":3,"a":4,"▁":5,"▁a":6,"s":7},"merges":["▁ a"]}}"#;

    fn continuation(codec: &RunTextCodec, before: &[u32], after: &[u32]) -> String {
        let mut stream = codec.stream(before);
        let text: String = after.iter().map(|&token| stream.push(token).unwrap()).collect();
        text + &stream.finish()
    }

    #[test]
    fn prompt_and_continuation_are_the_text_of_all_tokens() {
        let codec = RunTextCodec::new(Tokenizer::from_bytes(PIECES.as_bytes(), None, "t").unwrap(), vec![]);
        let tokens = [6, 6, 4, 1, 6, 2, 3, 5, 7, 6, 6];
        let whole = codec.decode(&tokens).unwrap();
        assert_eq!(whole, "a aa aé s a a");
        for cut in 0..=tokens.len() {
            let (before, after) = tokens.split_at(cut);
            // A character that begins in the prompt belongs to the continuation.
            let before_text = codec.decode(before).unwrap();
            let expected =
                before_text.trim_end_matches('\u{FFFD}').to_owned() + &continuation(&codec, before, after);
            assert_eq!(expected, whole, "cut at {cut}");
        }
        assert_eq!(continuation(&codec, &[6, 1], &[6]), " a", "a special token is no beginning");
        assert_eq!(continuation(&codec, &[[6].as_slice(), &[1; 20]].concat(), &[6]), " a");
        assert_eq!(codec.token_text(6), " a");
        assert_eq!((codec.token_text(2), codec.token_bytes(2)), ("\u{FFFD}".to_owned(), vec![0xC3]));
    }

    #[test]
    fn every_special_token_has_a_text_alone_and_none_in_a_text() {
        let mut file: serde_json::Value = serde_json::from_str(PIECES).unwrap();
        let mut end = file["added_tokens"][0].clone();
        end["id"] = serde_json::json!(8);
        end["content"] = serde_json::json!("<|im_end|>");
        file["added_tokens"].as_array_mut().unwrap().push(end);
        let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes(), None, "t").unwrap();
        let codec = RunTextCodec::new(tokenizer, vec![]);
        assert_eq!([1, 8].map(|token| codec.token_text(token)), ["</s>", "<|im_end|>"]);
        assert_eq!(codec.token_bytes(8), b"<|im_end|>");
        assert_eq!(codec.decode(&[6, 8]).unwrap(), "a");
        assert_eq!((codec.decode(&[8]).unwrap(), codec.token_text(9)), (String::new(), String::new()));
        assert_eq!(continuation(&codec, &[6], &[8, 6]), " a");
    }
}
