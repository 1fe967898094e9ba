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
        if token == self.tokenizer.end_of_text() {
            return self.tokenizer.end_of_text_text();
        }
        self.tokenizer
            .token_bytes(token)
            .map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn stream(&self, _after: &[u32]) -> Box<dyn TextStream> {
        // Byte-level tokens decode the same at every position, so the tokens before do not matter.
        Box::new(TokenStream { decoder: self.tokenizer.incremental_decoder() })
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
    decoder: IncrementalDecoder,
}

impl TextStream for TokenStream {
    fn push(&mut self, token: u32) -> Result<String, BoxError> {
        Ok(self.decoder.push(token)?)
    }

    fn finish(&mut self) -> String {
        self.decoder.flush().unwrap_or_default()
    }
}
