//! Keys of `topology`.

use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "topology.replicas",
        "paths",
        "Paths through each combination of modules. With more than 1, each combination is a DiLoCo group.",
    ),
    key(
        "topology.paths",
        "lists of modules",
        "The paths, each as the index of its module in every level, as in [[0, 0], [1, 2]]. Empty for all combinations of \
         modules. `dipaco extend` writes it. A listed topology has no replicas and no path-specific level.",
    ),
    key(
        "topology.kept_paths",
        "paths",
        "The first so many paths are kept: nobody trains them, and no module of theirs changes. `dipaco extend` keeps the \
         paths of the finished run. With kept paths a run has one phase of routing.",
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
         level must train. The seed itself trains all of its parameters.",
    ),
];
