//! What the keys of `serve` mean.

use super::{KeyDoc, free};

pub(super) const KEYS: &[KeyDoc] = &[
    free(
        "serve.address",
        "address:port",
        "Where to listen. 127.0.0.1 can't be reached from other machines; 0.0.0.0 opens it to all: give \
         `serve.api_keys` then.",
    ),
    free("serve.slots", "sequences", "Sequences that are computed at a time; 0 takes the number of cores."),
    free(
        "serve.queued_requests",
        "sequences",
        "Sequences that may wait; above it requests are answered with 429. A request with k prompts and n choices \
         counts k·n.",
    ),
    free(
        "serve.queued_tokens",
        "tokens",
        "Prompt tokens that may wait, which bounds how long a request can wait.",
    ),
    free("serve.max_choices", "choices", "The most choices of one request: prompts times n."),
    free(
        "serve.body_limit",
        "bytes",
        "The largest body of a request; above it requests are answered with 413.",
    ),
    free("serve.max_connections", "connections", "Connections at a time; more wait in the system's backlog."),
    free(
        "serve.read_timeout",
        "seconds",
        "Time that a client has to send a request's head, and again for its body.",
    ),
    free(
        "serve.request_timeout",
        "seconds",
        "The longest time from a request's admission to its last token.",
    ),
    free(
        "serve.drain_timeout",
        "seconds",
        "Time that running requests get to finish when the server is stopped.",
    ),
    free("serve.keep_alive", "seconds", "Time between comments that keep a silent stream open."),
    free(
        "serve.api_keys",
        "path",
        "A file with API keys, one a line. When it is not given, everyone who reaches the address may ask.",
    ),
];
