//! Keys of `sync`.

use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "sync.fragments",
        "count",
        "F, fragments of each module. Each fragment is sent every `train.inner_steps` steps, at its own steps. The bytes of \
         weights and outer gradients stay the same and are spread over time (Streaming DiLoCo). A path has F leases in a round: \
         raise `train.state_every`, which counts leases, F-fold to keep the bytes of states.",
    ),
    key(
        "sync.pattern",
        "name",
        "Division of a module into fragments. \"strided\" puts every F-th block into a fragment, \"sequential\" \
         consecutive blocks; both count the embedding as a block, and final norm and head as a block. \"balanced\" makes \
         fragments of equal size from single tensors.",
    ),
    key(
        "sync.overlap_steps",
        "steps",
        "τ, inner steps between sending a fragment and receiving its new global weights, at most `train.inner_steps`. The \
         path trains on meanwhile, so transfers and outer steps delay it only when they take longer.",
    ),
    key(
        "sync.blend",
        "share",
        "Share of its own weights that a path keeps when it receives global weights. 0 takes the global weights, 0.5 the \
         mean of both.",
    ),
    key(
        "sync.quorum",
        "paths",
        "Paths that an outer step waits for. 0 waits for all paths through the module; paths then wait for outer steps \
         too, and the result does not depend on timing. From 1 on no path waits for another path.",
    ),
    key(
        "sync.grace_seconds",
        "seconds",
        "Longest time that an outer step waits for further paths after its quorum is complete.",
    ),
    key(
        "sync.grace_share",
        "share",
        "With an overlap, the grace period is this share of the time that remains of the overlap's inner steps after \
         quorum and outer step.",
    ),
    key(
        "sync.throttle",
        "share",
        "With a quorum, shortest time between two outer steps of a fragment, as a share of the time that the fastest path \
         takes for `train.inner_steps`. Near 1 an outer step has about one contribution of each path, for every quorum.",
    ),
    key(
        "sync.dynamic_steps",
        "true or false",
        "Gives slower workers fewer inner steps between two contributions, so that all paths contribute equally often. \
         Needs a quorum, one fragment and no overlap.",
    ),
    key(
        "sync.shard_sampling",
        "true or false",
        "Draws the next path to train at random, and prefers paths that have trained on a smaller part of their shard than \
         the average. Otherwise the path that is furthest behind is next. Needs a quorum.",
    ),
    key(
        "sync.eager",
        "true or false",
        "Eager updates, with an overlap of a whole round. A path that receives weights that are one round late adds the \
         outer optimizer's step for the difference between its newest outer gradient and the one in these weights.",
    ),
    key(
        "sync.drop_rate",
        "share",
        "Share of the outer gradients that are never sent, to test a run's tolerance of losses. A path that drops one goes \
         on from its own weights, and its next outer gradient is measured from the global weights of that time. At least 0 and below 1. Not with an overlap of a whole round.",
    ),
];
