//! What the keys of `evaluation` mean.

use super::{KeyDoc, free, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "evaluation.prefix_tokens",
        "tokens",
        "Tokens at the start of a document that are read and not counted, for every model, so that all are compared \
         on the same tokens. At least `routing.prefix_tokens`, which the router has seen.",
    ),
    key(
        "evaluation.sequence_tokens",
        "tokens",
        "Tokens of a sequence; longer documents are cut into several. 0 takes the model's context.",
    ),
    free("evaluation.batch_sequences", "sequences", "Sequences that are scored at once; costs memory."),
    key(
        "evaluation.reroute_tokens",
        "tokens",
        "Tokens between two choices of a path during a sequence, by the transformer router; 0 keeps the path that the \
         document was routed to. The first path scores the first so many tokens.",
    ),
    free(
        "evaluation.parallel_paths",
        "paths",
        "Paths that are evaluated at the same time, which bounds the memory for weights; 0 takes as many as there are \
         threads.",
    ),
    key(
        "evaluation.max_documents",
        "documents",
        "Documents of each file that are scored, its first ones; 0 scores all. For quick looks, not for tables.",
    ),
];
