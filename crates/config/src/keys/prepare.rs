//! Keys of `prepare`.

use super::{KeyDoc, free, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "prepare.vocab_size",
        "tokens",
        "Vocabulary of the tokenizer to train, including the 256 bytes and the end-of-text token. A larger vocabulary \
         gives fewer tokens per byte and a larger embedding. Has no effect when `prepare.tokenizer` is set.",
    ),
    key(
        "prepare.tokenizer",
        "path",
        "A `tokenizer.json` to use instead of training a tokenizer. The one of an imported model or an extended run has a name \
         relative to the run's folder. Every other relative path is saved as an absolute one.",
    ),
    key(
        "prepare.end_of_text",
        "token",
        "End-of-text token of the given tokenizer, by name. When it is not set, the first token of `<|endoftext|>`, \
         `</s>`, `<|end_of_text|>` and `<eos>` that the tokenizer has.",
    ),
    key(
        "prepare.tokenizer_sample_bytes",
        "bytes",
        "Bytes of text for training the tokenizer, sampled from the whole input. A larger sample takes longer and hardly \
         changes the vocabulary.",
    ),
    key(
        "prepare.validation_fraction",
        "share",
        "Share of the documents that form the validation set when no validation text is given. A hash of the text selects \
         them. 0 writes no validation set.",
    ),
    key(
        "prepare.text_field",
        "text",
        "Field of JSON lines, or column of Parquet files, with the text of a document; dots lead into structures of Parquet.",
    ),
    key(
        "prepare.text_document_bytes",
        "bytes",
        "Largest document cut from a plain text file; cuts are at line ends. Small values cut context, large values leave \
         few documents to route.",
    ),
    key(
        "prepare.max_line_bytes",
        "bytes",
        "Longest line, and so the longest JSON document. Longer lines are refused and counted. Memory grows with this \
         value.",
    ),
    key(
        "prepare.min_document_tokens",
        "tokens",
        "Documents with fewer tokens, not counting end-of-text, are refused and counted.",
    ),
    free("prepare.threads", "threads", "Threads that tokenise; 0 takes one thread per core."),
];
