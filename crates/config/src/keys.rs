//! What every key means: the one place that the configuration reference, `dipaco config keys` and the comments of a
//! saved configuration come from.

mod evaluation;
mod model;
mod optimizer;
mod outer;
mod prepare;
mod routing;
mod run;
mod seed_model;
mod serve;
mod sync;
mod topology;
mod train;
mod transformer_router;

/// What a key means. Its default comes from the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyDoc {
    /// The whole name, with `[]` for the elements of a list.
    pub key: &'static str,
    /// The unit or the kind of value.
    pub unit: &'static str,
    /// The meaning and the consequence of a bad value, in whole sentences.
    pub text: &'static str,
    /// Whether another value gives another result. Others only change where and how fast the run goes, and may differ
    /// when a run is resumed.
    pub affects_result: bool,
}

const fn key(key: &'static str, unit: &'static str, text: &'static str) -> KeyDoc {
    KeyDoc { key, unit, text, affects_result: true }
}

const fn free(key: &'static str, unit: &'static str, text: &'static str) -> KeyDoc {
    KeyDoc { key, unit, text, affects_result: false }
}

/// Every section with what it is for, in the order in which they are written.
pub const SECTIONS: &[(&str, &str)] = &[
    ("run", "The run itself."),
    ("model", "The transformer of one path. Llama-shaped: RMSNorm, rotary positions, SwiGLU, no biases."),
    ("topology", "How the transformer is cut into modules and how paths share them."),
    (
        "topology.levels[]",
        "The levels, first to last. Every block, the embedding and the head belong to exactly one level.",
    ),
    ("prepare", "How text becomes a tokenizer and token files."),
    ("seed_model", "Pretraining of the dense path that every path starts from."),
    ("seed_model.adamw", "The optimizer of the seed."),
    ("seed_model.schedule", "The learning rate of the seed: a linear warm-up, then a cosine."),
    ("routing", "Which document goes to which path."),
    (
        "routing.classifier",
        "How a discriminative router is fitted: a linear classifier of the seed's features that predicts which path scores \
         a document best.",
    ),
    (
        "routing.phases[]",
        "Phases: after some rounds the paths as they are then decide anew which document goes to which path, and training \
         goes on with other shards. Without any, documents stay where the first router puts them.",
    ),
    (
        "transformer_router",
        "The router that decides during a text: the seed, fine-tuned to predict which path goes on best.",
    ),
    ("transformer_router.adamw", "The optimizer of that router."),
    ("transformer_router.schedule", "The learning rate of that router."),
    ("train", "Training of the paths: rounds of inner steps."),
    ("train.adamw", "The inner optimizer of every path."),
    ("train.schedule", "The learning rate over all inner steps of the run: a linear warm-up, then a cosine."),
    (
        "sync",
        "When paths synchronise their modules, and who waits for whom. The defaults are those of DiLoCo and DiPaCo: whole \
         modules, all paths through a module wait for each other.",
    ),
    ("outer", "How the outer gradients of the paths through a module become the module's step."),
    ("outer.nesterov", "The outer optimizer: SGD with Nesterov momentum."),
    ("evaluation", "Perplexity on validation text."),
    ("serve", "The HTTP server."),
];

/// Every key of the configuration, in the order in which they are written.
pub fn keys() -> impl Iterator<Item = &'static KeyDoc> {
    [
        run::KEYS,
        model::KEYS,
        topology::KEYS,
        prepare::KEYS,
        seed_model::KEYS,
        routing::KEYS,
        transformer_router::KEYS,
        train::KEYS,
        sync::KEYS,
        outer::KEYS,
        evaluation::KEYS,
        serve::KEYS,
    ]
    .into_iter()
    .flatten()
}

/// The documentation of a key; indices such as `[0]` may stand for `[]`.
#[must_use]
pub fn key_doc(key: &str) -> Option<&'static KeyDoc> {
    let pattern = crate::layer::KeyPath::parse(&key.replace("[]", "[0]"))?.pattern();
    keys().find(|doc| doc.key == pattern)
}
