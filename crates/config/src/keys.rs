//! Documentation of every key: the only source of the configuration reference, of `dipaco config keys` and of the comments
//! in a saved configuration.

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

/// Documentation of a key. The default is that of the section's struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyDoc {
    /// Full name, with `[]` for the elements of a list.
    pub key: &'static str,
    /// Unit, or kind of value.
    pub unit: &'static str,
    /// Meaning, and consequence of a bad value, in whole sentences.
    pub text: &'static str,
    /// True if the value influences the result of a run. The other keys only change where and how fast the run goes, and
    /// may change when the run is resumed.
    pub affects_result: bool,
}

/// A key that influences the result.
const fn key(key: &'static str, unit: &'static str, text: &'static str) -> KeyDoc {
    KeyDoc { key, unit, text, affects_result: true }
}

/// A key that does not influence the result.
const fn free(key: &'static str, unit: &'static str, text: &'static str) -> KeyDoc {
    KeyDoc { key, unit, text, affects_result: false }
}

/// Every section and its purpose, in the order of the written configuration.
pub const SECTIONS: &[(&str, &str)] = &[
    ("run", "The run itself."),
    (
        "model",
        "The transformer of a path, in the shape of Llama: RMSNorm, rotary positions, SwiGLU, no biases.",
    ),
    ("topology", "The division of the transformer into modules, and how paths share them."),
    (
        "topology.levels[]",
        "The levels, first to last. Every block, the embedding and the head belong to exactly one level.",
    ),
    ("prepare", "Preparation of text: tokenizer and token files."),
    ("seed_model", "Pretraining of the seed, the dense path that every path starts from."),
    ("seed_model.adamw", "The optimizer of the seed."),
    ("seed_model.schedule", "The learning rate of the seed: a linear warm-up, then a cosine."),
    ("routing", "Routing of documents to paths."),
    (
        "routing.classifier",
        "Fitting of a discriminative router: a linear classifier of a document's features that predicts the best path of a \
         document.",
    ),
    (
        "routing.phases[]",
        "Phases of routing. At the beginning of a phase the trained paths score reserved documents, a new router is fitted to \
         the scores, and training goes on with new shards. Without phases the first router's shards are used to the end.",
    ),
    (
        "transformer_router",
        "The transformer router, which chooses paths within a text: the seed, fine-tuned to predict the path that continues \
         the text best.",
    ),
    ("transformer_router.adamw", "The optimizer of the transformer router."),
    ("transformer_router.schedule", "The learning rate of the transformer router."),
    ("train", "Training of the paths, in rounds of inner steps."),
    ("train.adamw", "The inner optimizer of every path."),
    ("train.schedule", "The learning rate over all inner steps of the run: a linear warm-up, then a cosine."),
    (
        "sync",
        "Synchronisation of the modules between paths: its schedule, and which paths wait for each other. The defaults are \
         those of DiLoCo and DiPaCo: whole modules, and all paths through a module wait for each other.",
    ),
    ("outer", "The outer step of a module, computed from the outer gradients of the paths through it."),
    ("outer.nesterov", "The outer optimizer: SGD with Nesterov momentum."),
    ("evaluation", "Perplexity on validation text."),
    ("serve", "The HTTP server."),
];

/// Every key of the configuration, in the order of the written configuration.
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

/// The documentation of a key, whose name has `[]` or an index such as `[0]` for the elements of lists.
#[must_use]
pub fn key_doc(key: &str) -> Option<&'static KeyDoc> {
    let pattern = crate::layer::KeyPath::parse(&key.replace("[]", "[0]"))?.pattern();
    keys().find(|doc| doc.key == pattern)
}
