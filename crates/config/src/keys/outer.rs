//! What the keys of `outer` mean.

use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "outer.weighting",
        "name",
        "\"shard-size\" weights a path by the tokens of its shard, \"uniform\" weights all alike, \"tokens\" by the \
         tokens of the contribution times its tokens per inner step, for paths that contribute unlike amounts.",
    ),
    key(
        "outer.rescale",
        "name",
        "\"sqrt-paths\" multiplies the mean by the root of the number of paths through the module, because the mean \
         of unlike gradients is that much shorter; \"rda\" averages directions and lengths apart, so that the length does \
         not depend on the number of paths; \"none\" takes the mean as it is.",
    ),
    key(
        "outer.compression",
        "name",
        "How outer gradients are written on their way: \"f32\" without loss; \"bf16\" at half the bytes; \"int8\" at a quarter; \
         \"e3m0\" at an eighth, a sign and three bits of exponent; \"top-k\" at a 63rd, only the 128 largest of 4,096 values, to \
         be used with `outer.error_feedback`. They are added up in f32 in any case.",
    ),
    key(
        "outer.error_feedback",
        "share",
        "What writing an outer gradient loses is kept by the path, multiplied by this and added to its next one; 0 adds \
         nothing, \"top-k\" wants about 0.95.",
    ),
    key(
        "outer.guard",
        "times",
        "An outer gradient that is so many times as long as the median of the last 16 of its module is refused, with its \
         worker: a machine that computes garbage can't spoil a module. 0 refuses none. NaN and infinity are always refused.",
    ),
    key(
        "outer.broadcast",
        "name",
        "How workers get the change of the global weights that they hold already: \"f32\" sends the weights themselves. \
         Otherwise the change is rounded as `outer.compression` describes, the global weights are the sum of what was sent, \
         and what rounding leaves is added to the next change.",
    ),
    key(
        "outer.delay",
        "contributions",
        "Delayed Nesterov momentum for `sync.quorum`: contributions are applied one by one, each divided by this number, and \
         the momentum changes after so many; the number of paths through a module is a good value. 0 merges the \
         contributions of an outer step and changes the momentum with each.",
    ),
    key(
        "outer.delay_share",
        "share",
        "Share of the momentum that the contributions in between apply, 0 to 1 / `outer.delay`.",
    ),
    key(
        "outer.nesterov.learning_rate",
        "number",
        "Outer learning rate; 1 with momentum 0 takes the mean itself.",
    ),
    key("outer.nesterov.momentum", "number", "Outer momentum, at least 0 and below 1."),
];
