//! Keys of `evaluation`.

use super::{KeyDoc, free, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "evaluation.prefix_tokens",
        "tokens",
        "Tokens at the start of each sequence that are read but not counted, for every model, so that all models are \
         compared on the same tokens. The paper takes 32. Must be at least `routing.prefix_tokens`, otherwise a routed \
         model is scored on tokens that chose its path.",
    ),
    key(
        "evaluation.sequence_tokens",
        "tokens",
        "Tokens of a sequence; longer documents are cut into several sequences. 0 takes the model's context. At most \
         the context plus 1, because the last token is only predicted. Short sequences raise the perplexity of every \
         model.",
    ),
    free(
        "evaluation.batch_sequences",
        "sequences",
        "Sequences that are scored at once. A larger batch takes more memory and changes results by rounding only.",
    ),
    key(
        "evaluation.route",
        "name",
        "Text for which a routed model chooses its path once. \"document\" routes all sequences of a document by the \
         document's first tokens. \"window\" routes each sequence by its own first tokens, which do not count.",
    ),
    key(
        "evaluation.reroute_tokens",
        "tokens",
        "W, tokens between two choices of a path within a sequence, made by the router of `evaluation.reroute_by`; 0 keeps \
         the path of the document. The document's path scores the first W tokens. A smaller W is slower; with the \
         transformer router it gives a lower perplexity. The paper takes 64.",
    ),
    key(
        "evaluation.reroute_by",
        "name",
        "Router that chooses paths within a sequence, by the tokens before each chunk of W. \"transformer\" reads all of \
         them, and needs `dipaco route fit-transformer`. \"features\" is the router of documents, of any kind but \
         \"labels\": it reads the features of the last `routing.prefix_tokens` of them, and needs no further fit.",
    ),
    free(
        "evaluation.parallel_paths",
        "paths",
        "Paths that are evaluated at the same time; 0 takes the number of threads. Limits memory to the weights of \
         these paths and the modules that they share with paths evaluated later.",
    ),
    key(
        "evaluation.max_documents",
        "documents",
        "Documents of each file that are scored, from its beginning; 0 scores all. A routed model has one file per path, \
         so a limit scores it on other documents than a dense model: use it for quick looks, not for tables.",
    ),
    key(
        "evaluation.rank_candidates",
        "candidates",
        "K, candidates of a zero-shot ranking: the true continuation of a document's first `evaluation.prefix_tokens` \
         tokens, and the continuations of K - 1 other documents, of the same domain where labels are given. 0 ranks \
         nothing. A continuation has 32 tokens. More candidates are harder to tell apart and cost more.",
    ),
];
