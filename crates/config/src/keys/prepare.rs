//! What the keys of `prepare` mean.

use super::{KeyDoc, free, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "prepare.vocab_size",
        "tokens",
        "Vocabulary of the tokenizer to train, the 256 bytes and the end-of-text token among them. A larger one gives \
         fewer tokens per byte and a larger embedding. Without effect when `prepare.tokenizer` is given.",
    ),
    key("prepare.tokenizer", "path", "A `tokenizer.json` to use instead of training one."),
    key(
        "prepare.end_of_text",
        "token",
        "Name of the given tokenizer's end-of-text token. When it is not given: the first of `<|endoftext|>`, `</s>`, \
         `<|end_of_text|>` and `<eos>` that the tokenizer has.",
    ),
    key(
        "prepare.tokenizer_sample_bytes",
        "bytes",
        "Text on which the tokenizer is trained, taken from all over the input. More takes longer and hardly changes \
         the vocabulary.",
    ),
    key(
        "prepare.validation_fraction",
        "share",
        "Share of the documents that becomes the validation set when none is given, by a hash of their text; 0 writes \
         none.",
    ),
    key(
        "prepare.text_document_bytes",
        "bytes",
        "Plain text files are cut at line ends into documents of at most this. Small values cut context, large ones \
         leave few documents to route.",
    ),
    key(
        "prepare.max_line_bytes",
        "bytes",
        "The longest line, and with it the longest JSON document. Longer ones are refused and counted; memory grows \
         with it.",
    ),
    key(
        "prepare.min_document_tokens",
        "tokens",
        "Documents with fewer tokens, end-of-text not counted, are refused and counted.",
    ),
    free("prepare.threads", "threads", "Threads that tokenise; 0 takes one for each core."),
];
