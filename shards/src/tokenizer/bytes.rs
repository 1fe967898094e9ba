//! The bytes of each token of a byte-level tokenizer.

use tokenizers::DecoderWrapper;

/// Bytes of each token. Only for byte-level tokenizers: they write tokens in GPT-2's alphabet of 256 printable characters,
/// one for each byte.
pub(super) struct TokenBytes {
    bytes: Vec<Box<[u8]>>,
}

impl TokenBytes {
    /// The table of a tokenizer, or `None` if its decoder is not byte-level.
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer, vocab_size: u32) -> Option<Self> {
        let Some(DecoderWrapper::ByteLevel(_)) = tokenizer.get_decoder() else { return None };
        let added = tokenizer.get_added_tokens_decoder();
        let bytes = (0..vocab_size)
            .map(|id| match (added.get(&id), tokenizer.id_to_token(id)) {
                (Some(token), _) if token.special => Box::default(),
                (Some(token), _) => token.content.as_bytes().into(),
                (None, Some(token)) => token_bytes(&token),
                (None, None) => Box::default(),
            })
            .collect();
        Some(Self { bytes })
    }

    /// Bytes of a token, empty for special tokens and ids outside the vocabulary.
    pub(super) fn of(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], |bytes| bytes)
    }
}

fn token_bytes(token: &str) -> Box<[u8]> {
    match token.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
        Some(bytes) => bytes.into(),
        // The library's decoder too takes a token outside the alphabet literally.
        None => token.as_bytes().into(),
    }
}

/// The byte of a character of GPT-2's alphabet: printable Latin-1 stands for itself, and U+0100 and up stand for the 68
/// other bytes in their order.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x143 => {
            let rank = code - 0x100;
            // 0..=0x20 (33 values), 0x7F..=0xA0 (34 values), 0xAD.
            u8::try_from(match rank {
                0..=32 => rank,
                33..=66 => 0x7F + rank - 33,
                _ => 0xAD,
            })
            .ok()
        }
        _ => None,
    }
}
