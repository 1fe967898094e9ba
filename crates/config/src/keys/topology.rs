//! Keys of `topology`.

use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "topology.replicas",
        "paths",
        "Paths through each combination of modules. With more than 1, each combination is a DiLoCo group.",
    ),
    key(
        "topology.levels[].modules",
        "modules, or \"paths\"",
        "K, the number of modules of the level; \"paths\" gives every path its own module. The number of paths is the \
         product of all K and of the replicas.",
    ),
    key(
        "topology.levels[].blocks",
        "list of blocks",
        "Transformer blocks of the level: half-open ranges and numbers from 0, as in \"0..6, 8\".",
    ),
    key("topology.levels[].embedding", "true or false", "Puts the token embedding into the level."),
    key(
        "topology.levels[].head",
        "true or false",
        "Puts the final norm and the output projection into the level.",
    ),
    key(
        "topology.levels[].frozen",
        "true or false",
        "Keeps the weights of the level as they are in the seed: no gradients, no moments, no outer step, and nothing of the \
         level travels but its first download. Below the lowest level that trains there is no backward pass. At least one \
         level must train. The seed itself trains all of its parameters. A GPU takes no frozen levels.",
    ),
];
