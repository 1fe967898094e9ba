//! What the keys of `routing` mean.

use super::{KeyDoc, key};

pub(super) const KEYS: &[KeyDoc] = &[
    key(
        "routing.kind",
        "name",
        "The rule that the run starts with. \"kmeans\" takes the nearest of as many centroids as there are paths; \
         \"product-kmeans\" cuts the feature into a part for each level, whose nearest centroids together name the path.",
    ),
    key(
        "routing.prefix_tokens",
        "tokens",
        "Tokens at the start of a document that the router reads; at most `model.context`. Few say little about the \
         document, many must be there before the first token can be generated.",
    ),
    key(
        "routing.sample_documents",
        "documents",
        "Documents that the router is fitted on. Memory while fitting is this times `model.hidden_size` times 4 bytes.",
    ),
    key("routing.restarts", "starts", "Independent starts of k-means, of which the best wins."),
    key(
        "routing.iterations",
        "iterations",
        "The most iterations of one start. Too few leave clusters unsettled.",
    ),
    key(
        "routing.tolerance",
        "share",
        "A start ends when an iteration lowers its inertia by less than this share; 0 runs until nothing changes.",
    ),
    key(
        "routing.seed",
        "number",
        "Seed of the sample and of k-means. Another gives other, equally valid shards.",
    ),
    key(
        "routing.batch_documents",
        "documents",
        "Documents whose features are computed at once; costs memory.",
    ),
    key(
        "routing.overlap",
        "shards",
        "Shards that a training document goes to, those of its best paths; at most as many as there are paths. More makes \
         shards larger, which keeps many small paths from overfitting, and paths less special.",
    ),
    key(
        "routing.router_share",
        "share",
        "Share of the training documents that no path is trained on, kept for fitting a discriminative router; 0 to 0.5. \
         The paper takes 0.005 of 365 million; a small corpus needs more.",
    ),
    key(
        "routing.least_share",
        "share",
        "What a path is calibrated to get of the documents at least, as a part of an equal share; 0 to 1. At 0 a path whose parts \
         of product k-means never come together, or that is hardly ever the best one, gets no text to train on.",
    ),
    key(
        "routing.classifier.penalties",
        "numbers",
        "Strengths of the penalty on squared weights that are tried; the one that predicts a fifth of the documents best \
         wins. Weak ones learn few documents by heart, strong ones learn only which paths are frequent.",
    ),
    key(
        "routing.classifier.iterations",
        "iterations",
        "The most iterations of a fit. Too few leave the classifier unsettled.",
    ),
    key(
        "routing.classifier.tolerance",
        "share",
        "A fit ends when two iterations in a row lower the loss by less than this share.",
    ),
    key(
        "routing.phases[].round",
        "rounds",
        "Rounds before the phase begins, counted from the start of the training: at least 1, below `train.rounds`, and \
         above that of the phase before. Too early and the paths are too alike to say much about a document.",
    ),
    key(
        "routing.phases[].kind",
        "name",
        "The router of the phase: \"discriminative\", a linear classifier of the seed's features, fitted on which path \
         gives each reserved document (`routing.router_share`) the highest likelihood.",
    ),
];
