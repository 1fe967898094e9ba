//! Keys of `outer`.

use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "outer.optimizer",
        "name",
        "\"nesterov\", the default, applies the merged outer gradients of a round with momentum. \"adamw\" trains \
         synchronously: in each step the paths send their plain gradients, and each module takes the step of `train.adamw` and \
         `train.schedule` with their mean (arXiv:2403.10616 §4.5). It needs `train.inner_steps = 1` and moves all weights in \
         every step, so it is for comparisons.",
    ),
    key(
        "outer.weighting",
        "name",
        "Weights of the paths in the mean of their outer gradients. \"shard-size\" weights a path by the tokens of its \
         shard. \"uniform\" weights all paths alike. \"tokens\" weights by the tokens of the contribution times its \
         tokens per inner step, for paths that contribute unequal amounts.",
    ),
    key(
        "outer.merge",
        "name",
        "Merges the contributions to an outer step. \"mean\" takes their weighted mean, which one liar can move anywhere \
         within `outer.guard`. \"clipped\" and \"trimmed\" withstand a minority of liars among the paths of a module: \
         \"clipped\" shortens contributions that are far from the others, \"trimmed\" leaves out the largest and the \
         smallest values. Both need all contributions of a step at once, in memory or on the synchronizer's disk.",
    ),
    key(
        "outer.clip_radius",
        "times",
        "With `outer.merge` = \"clipped\", the largest distance from the centre at which a contribution counts in full, as \
         a multiple of the median distance. A smaller radius withstands more, a larger one changes honest contributions \
         less.",
    ),
    key(
        "outer.trim_share",
        "share",
        "With `outer.merge` = \"trimmed\", the share of the contributions that is left out at each end, rounded down: 0.25 \
         leaves out one of four at each end, and none of three. At least 0 and below 0.5.",
    ),
    key(
        "outer.rescale",
        "exponent, or name",
        "Scaling of the mean: the number of paths through the module to the power of this exponent, from -1 to 1. \
         \"sqrt-paths\" is 0.5, because the mean of unlike gradients is shorter by about the square root. \"none\" is 0. \
         \"rda\" averages directions and lengths of each tensor separately, so that the length does not depend on the \
         number of paths; embeddings take the plain mean.",
    ),
    key(
        "outer.embedding_mean",
        "name",
        "Denominator of the mean for a row of the token embedding. \"paths\" divides by the weight of all paths through the \
         module, so a row that few paths touch hardly moves. \"touched\" divides by the weight of the paths that moved \
         the row, and the factor of `outer.rescale` counts these paths. It needs `model.embedding_decay = false`.",
    ),
    key(
        "outer.compression",
        "name",
        "Number format of outer gradients on the wire. \"f32\" loses nothing, \"bf16\" takes half of the bytes, \"int8\" a \
         quarter, \"e3m0\" (a sign and a 3-bit exponent) an eighth. \"top-k\" takes a 63rd: it sends the 128 largest of \
         4,096 values; use it with `outer.error_feedback`. The sum is always taken in f32.",
    ),
    key(
        "outer.error_feedback",
        "share",
        "Share of the compression error that a path adds to its next outer gradient, 0 to 1. 0 adds nothing. Use \
         about 0.95 with \"top-k\".",
    ),
    key(
        "outer.guard",
        "times",
        "Refuses an outer gradient whose norm is this many times the median of the last ones that count for its module, in \
         which each path has one voice, so that a broken machine can't spoil a module. Its worker goes on with other paths. \
         The contributions to an outer step are compared with each other too: a larger norm is reduced to this many times \
         their median. 0 accepts every norm. NaN and infinity are always refused.",
    ),
    key(
        "outer.broadcast",
        "name",
        "Number format in which workers receive the change of global weights that they already hold. \"f32\" sends the \
         weights themselves. Any other format of `outer.compression` rounds the change: the global weights are then the \
         sum of the rounded changes, and the rounding error is added to the next change.",
    ),
    key(
        "outer.delay",
        "contributions",
        "N, contributions between two changes of the delayed Nesterov momentum, for `sync.quorum`. Contributions are \
         applied one by one, each divided by N. The number of paths through a module is a good value. 0 merges the \
         contributions of an outer step and changes the momentum with every outer step. Not with `sync.eager` or \
         `train.paths_per_round`.",
    ),
    key(
        "outer.delay_share",
        "share",
        "Share of the momentum that each contribution between two changes of the momentum applies, 0 to \
         1 / `outer.delay`.",
    ),
    key(
        "outer.level_learning_rates",
        "numbers",
        "Outer learning rate of the modules of each level, first level first. An empty list gives every level \
         `outer.nesterov.learning_rate`. With a momentum of 0.9 modules of sixteen paths have less loss with 1.4 than with \
         0.7 after 7 rounds of 20 steps, and more after 28 (docs/results/short-runs.md).",
    ),
    key(
        "outer.nesterov.learning_rate",
        "number",
        "Outer learning rate, before the factor of `outer.rescale`. With 1, momentum 0 and `outer.rescale = \"none\"` the outer \
         step is the mean itself. The default is the papers'. With the default momentum it is the best of four for \
         4 × 4 paths after 8 rounds, and the better of two after 32 (docs/results/training-settings.md).",
    ),
    key(
        "outer.nesterov.momentum",
        "number",
        "Outer momentum, at least 0 and below 1. The papers take 0.9. With the default the perplexity of 4 × 4 paths is lower by \
         more than a tenth after 8 and 32 rounds, each with the best outer rate that was tried (docs/results/training-settings.md). \
         A run that begins with a pretrained model has 0.9, an outer rate of 0.35 and `outer.rescale = \"none\"`, if nothing else is set.",
    ),
];
