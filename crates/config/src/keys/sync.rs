//! What the keys of `sync` mean.

use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "sync.fragments",
        "count",
        "F, parts that each module is cut into. Each is sent every `train.inner_steps` steps, at steps of its own: the \
         same bytes in all, spread over time (Streaming DiLoCo).",
    ),
    key(
        "sync.pattern",
        "name",
        "Which tensors make a fragment: \"strided\" takes every F-th block, \"sequential\" blocks that follow each other; \
         the embedding counts as a block, and so do final norm and head. \"balanced\" makes fragments of equal size of \
         single tensors.",
    ),
    key(
        "sync.overlap_steps",
        "steps",
        "Inner steps that a path trains on after sending a fragment, before it takes over what became of it; at most \
         `train.inner_steps`. Transfers and outer steps have this long before a path waits for them.",
    ),
    key(
        "sync.blend",
        "share",
        "Share of its own weights that a path keeps when it takes over the global ones: 0 takes the global weights, 0.5 \
         the mean of both.",
    ),
    key(
        "sync.quorum",
        "paths",
        "Paths that an outer step waits for; 0 for all through the module, and then paths wait for outer steps too and the \
         result does not depend on time. From 1 on no path waits for another.",
    ),
    key(
        "sync.grace_seconds",
        "seconds",
        "The longest time that an outer step with its quorum waits for further paths.",
    ),
    key(
        "sync.grace_share",
        "share",
        "With an overlap the wait adapts: this share of the time that is left of the overlap's inner steps after quorum \
         and outer step.",
    ),
    key(
        "sync.throttle",
        "share",
        "With a quorum: the time between two outer steps of a fragment, at least, as a share of what the fastest path takes \
         for `train.inner_steps`. Near 1 an outer step has about one contribution of each path, whatever the quorum.",
    ),
    key(
        "sync.dynamic_steps",
        "flag",
        "Whether slower workers take fewer inner steps between two contributions, so that all contribute as often. Needs \
         a quorum, one fragment and no overlap.",
    ),
    key(
        "sync.shard_sampling",
        "flag",
        "Whether the path that is trained next is drawn by how much less of its shard has been trained on than of all \
         shards, instead of taking the one that is furthest behind. Needs a quorum.",
    ),
    key(
        "sync.eager",
        "flag",
        "Eager updates, with an overlap of a whole round: a path that takes over weights that are a round late adds what the \
         outer optimizer makes of its own newer part.",
    ),
    key(
        "sync.drop_rate",
        "share",
        "Share of the outer gradients that are never sent, to try out what a run makes of it; whoever drops one goes on from \
         its own weights. At least 0 and below 1.",
    ),
];
