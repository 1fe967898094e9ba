//! The shape, the learning rates and the outer step that a pretrained model gives a run.

use std::path::PathBuf;

use dipaco_model::ModelConfig;
use serde_json::Value;

use crate::layer::{KeyPath, Leaf};
use crate::{Origin, Problem};

/// A pretrained model from which a run's seed begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Pretrained {
    /// The folder or file of the model, for messages.
    pub path: PathBuf,
    /// The shape of the model.
    pub model: ModelConfig,
}

/// Keys that a pretrained model decides.
const KEYS: [&str; 11] = [
    "hidden_size",
    "blocks",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn_size",
    "vocab_size",
    "context",
    "rope_theta",
    "rms_norm_eps",
    "tie_embeddings",
];

/// Peak learning rates. The defaults are for random weights. Of 1e-4, 1.5e-4 and 2e-4 the first is the best for a model of 135M
/// parameters (docs/results/pretrained.md, "The learning rate").
const LEARNING_RATE: f64 = 1e-4;
/// The outer learning rate, the same for all modules, and the outer momentum. The defaults were tried with random weights only, and
/// higher rates step too far from a model of 135M parameters (docs/results/pretrained.md, "Outer rates").
const OUTER_LEARNING_RATE: f64 = 0.35;
const OUTER_MOMENTUM: f64 = 0.9;

impl Pretrained {
    /// Puts the model's values before those of the user, and returns a problem for each value of the user that contradicts
    /// the model. The user may take a shorter context, untie tied embeddings, and choose learning rates and outer step.
    pub(crate) fn take_precedence(&self, leaves: &mut Vec<Leaf>) -> Vec<Problem> {
        let ours = serde_json::to_value(&self.model).unwrap_or_default();
        let key_of = |leaf: &Leaf| leaf.path.to_string().strip_prefix("model.").map(str::to_owned);
        // A vocabulary of 0 asks for the tokenizer's, which may have fewer entries than the model has rows.
        let is_size = |leaf: &Leaf| key_of(leaf).as_deref() == Some("vocab_size");
        let asks = leaves.iter().rev().find(|leaf| is_size(leaf)).is_some_and(|leaf| leaf.value == 0);
        leaves.retain(|leaf| !is_size(leaf) || !asks);
        let mut problems = Vec::new();
        for (at, leaf) in leaves.iter().enumerate() {
            let Some(key) = key_of(leaf) else { continue };
            if leaves[at + 1..].iter().any(|later| later.path == leaf.path) {
                // A later value replaces it.
                continue;
            }
            if let Some(has) = self.contradiction(&ours, &key, &leaf.value) {
                problems.push(Problem {
                    message: format!(
                        "model.{key} is {}, but the model in {} has {has}",
                        leaf.value,
                        self.path.display()
                    ),
                    origin: Some(leaf.origin.clone()),
                    remedy: Some("leave the key out, and it comes from the model".to_owned()),
                });
            }
        }
        let origin = Origin::Pretrained(self.path.clone());
        let own = KEYS.iter().filter_map(|key| Some((format!("model.{key}"), ours.get(key)?.clone())));
        // Its tokenizer comes with the model, so none is trained with a vocabulary of its own.
        let entries =
            ours.get("vocab_size").map(|entries| ("prepare.vocab_size".to_owned(), entries.clone()));
        let training = [
            ("seed_model.adamw.learning_rate", LEARNING_RATE.into()),
            ("train.adamw.learning_rate", LEARNING_RATE.into()),
            ("outer.rescale", "none".into()),
            ("outer.nesterov.learning_rate", OUTER_LEARNING_RATE.into()),
            ("outer.nesterov.momentum", OUTER_MOMENTUM.into()),
        ];
        let training = training.map(|(key, value): (&str, Value)| (key.to_owned(), value));
        let given = own.chain(entries).chain(training).filter_map(|(key, value)| {
            Some(Leaf { path: KeyPath::parse(&key)?, value, raw: None, origin: origin.clone() })
        });
        leaves.splice(0..0, given.collect::<Vec<_>>());
        problems
    }

    /// The model's value of a key, if the value `given` contradicts it.
    fn contradiction(&self, ours: &Value, key: &str, given: &Value) -> Option<Value> {
        let has = match key {
            "kv_heads" => Value::from(self.model.key_value_heads()),
            _ if KEYS.contains(&key) => ours.get(key)?.clone(),
            _ => return None,
        };
        let agrees = match key {
            // Values of another type are reported where all types are checked.
            "context" => given.as_u64() <= has.as_u64(),
            "tie_embeddings" => given == &Value::Bool(false) || given == &has,
            _ => given == &has || (given.as_f64().is_some() && given.as_f64() == has.as_f64()),
        };
        (!agrees).then_some(has)
    }
}
