//! Keys of `routing`.

use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "routing.kind",
        "name",
        "First router of the run. \"kmeans\" chooses the nearest of as many centroids as there are paths. \
         \"product-kmeans\" cuts the feature into one part per level; the nearest centroids of all parts together give \
         the path. \"random\" takes a hash of the document's first tokens: the control that shows the gain of every other rule. \
         \"labels\" takes the document's label from the file `routing.labels`: the control with the true kinds of text, \
         which can't route prompts.",
    ),
    key(
        "routing.prefix_tokens",
        "tokens",
        "Tokens at the start of a document that the router reads, at most `model.context`. Few tokens tell little about \
         the document: shards by the first 4 tokens were worse than by the first 32 (docs/results/short-runs.md). A server needs all \
         of them before it can generate the first token.",
    ),
    key(
        "routing.labels",
        "file",
        "Label file for the kind \"labels\": a JSON object with `url` and `domain` on each line, as for `evaluate --labels`. It \
         must label every document of the run. A relative path is saved as an absolute one.",
    ),
    key(
        "routing.features",
        "name",
        "Source of a document's features, except for the kinds \"random\" and \"labels\". \"lsa\": sums of token vectors, by \
         latent semantic analysis of up to 20,000 documents of `routing.sample_documents`. They cost no pass of a model. \"seed\": the \
         mean output of blocks of the seed, as in the paper. Paths learn more from shards of \"lsa\" (docs/results/short-runs.md).",
    ),
    key(
        "routing.lsa_components",
        "components",
        "Components of a feature \"lsa\", at most the number of tokens of the vocabulary. More tell more topics apart and add noise.",
    ),
    key(
        "routing.feature_blocks",
        "blocks",
        "Blocks of the seed that a feature \"seed\" comes from: the mean of their output over the prefix. 0: the mean of the token \
         embeddings. Not set: all blocks, as in the paper, or 0 for a seed of fewer than 300 steps, whose blocks separate \
         documents worse than its token embeddings. Fewer blocks are cheaper.",
    ),
    key(
        "routing.standardise",
        "true or false",
        "Divides each component of a feature by its standard deviation over the sampled documents, for \"kmeans\" and \
         \"product-kmeans\". Otherwise the components with the largest variance decide. A discriminative router always \
         standardises.",
    ),
    key(
        "routing.whiten",
        "true or false",
        "Turns features into components of equal variance that are not correlated over the sampled documents, for \"kmeans\" and \
         \"product-kmeans\". Each part of product k-means then reads what the parts before it do not tell.",
    ),
    key(
        "routing.sample_documents",
        "documents",
        "Documents that the router is fitted on. Fitting takes up to three times this number times `model.hidden_size` times \
         4 bytes of memory.",
    ),
    key(
        "routing.restarts",
        "starts",
        "Independent starts of k-means. Of the starts with an inertia at most 5 % above the lowest, the one with the most even \
         clusters is kept.",
    ),
    key(
        "routing.iterations",
        "iterations",
        "Most iterations of a start. Too few iterations end before the clusters have settled.",
    ),
    key(
        "routing.tolerance",
        "share",
        "A start ends when an iteration lowers its inertia by less than this share. 0 runs until no document changes its \
         cluster.",
    ),
    key(
        "routing.seed",
        "number",
        "Seed of the sample and of k-means. Another seed gives other shards that are equally valid.",
    ),
    key(
        "routing.batch_documents",
        "documents",
        "Documents whose features are computed at once. A larger batch takes more memory.",
    ),
    key(
        "routing.overlap",
        "shards",
        "Shards that receive each training document: those of its best paths. At most the number of paths. More shards \
         per document make shards larger, which keeps many small paths from overfitting, and make paths more alike.",
    ),
    key(
        "routing.router_share",
        "share",
        "Share of the training documents reserved for fitting a discriminative router, at least 0 and below 1. Neither the \
         seed nor a path is trained on them. The paper reserves 0.005 of 365 million documents; a small corpus needs a \
         larger share.",
    ),
    key(
        "routing.least_share",
        "share",
        "Smallest share of the documents that calibration gives to a path, as a part of an equal share, 0 to 1. The other \
         paths divide the rest by their sizes, and with 1 all paths get equally much. At 0 a path can end without text to train on: a combination of centroids that no document has, or a path that is hardly ever the best.",
    ),
    key(
        "routing.arrange",
        "true or false",
        "true gives k-means clusters near each other to paths that share a module. Otherwise the numbers of the clusters, which \
         mean nothing, decide which paths share modules, which is worse for grids from 4 × 4 on (docs/results/routers.md). Only \
         for \"kmeans\".",
    ),
    key(
        "routing.classifier.penalties",
        "numbers",
        "Candidate strengths of the penalty on squared weights. The strength that best predicts a fifth of the documents \
         is kept. A weak penalty memorises a small sample, a strong penalty learns only the frequencies of the paths.",
    ),
    key(
        "routing.classifier.iterations",
        "iterations",
        "Most iterations of a fit. Too few iterations end before the classifier has settled.",
    ),
    key(
        "routing.classifier.tolerance",
        "share",
        "A fit ends when two iterations in a row lower the loss by less than this share.",
    ),
    key(
        "routing.phases[].round",
        "rounds",
        "Rounds before the phase begins, counted from the start of training. At least 1, below `train.rounds`, and above \
         the value of the phase before. In early rounds the paths are too alike to tell documents apart.",
    ),
    key(
        "routing.phases[].kind",
        "name",
        "Router of the phase. \"discriminative\" is a linear classifier of a document's features. It is fitted to predict the \
         path with the highest likelihood of each reserved document (`routing.router_share`).",
    ),
];
