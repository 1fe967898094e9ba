//! What the keys of `topology` mean.

use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "topology.replicas",
        "paths",
        "Paths through each combination of modules. More than 1 makes each combination a DiLoCo group.",
    ),
    key(
        "topology.levels[].modules",
        "modules, or \"paths\"",
        "K, the number of alternative copies of the level; \"paths\" gives every path its own copy. The number of \
         paths is the product of all K and of the replicas.",
    ),
    key(
        "topology.levels[].blocks",
        "list of blocks",
        "The transformer blocks of the level: half-open ranges and numbers from 0, as in \"0..6, 8\".",
    ),
    key("topology.levels[].embedding", "true or false", "Whether the level holds the token embedding."),
    key(
        "topology.levels[].head",
        "true or false",
        "Whether the level holds the final norm and output projection.",
    ),
];
