//! The configuration as text: TOML with its documentation, the reference in Markdown, and its hash.

use std::fmt::Write as _;

use serde_json::Value;

use crate::keys::{KeyDoc, SECTIONS, keys};
use crate::{Problem, RunConfig};

/// Largest width of a line of comment, in bytes.
const WIDTH: usize = 100;

impl RunConfig {
    /// The whole configuration in TOML, each key with its documentation. [`RunConfig::from_toml`] reads it back.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let tree = tree(self);
        let default = tree_of_default();
        let mut out = String::new();
        for &(section, text) in SECTIONS {
            let keys: Vec<&KeyDoc> = keys().filter(|doc| section_of(doc.key) == section).collect();
            if !out.is_empty() {
                out.push('\n');
            }
            comment(&mut out, text);
            match section.strip_suffix("[]") {
                Some(list) => {
                    let elements =
                        lookup(&tree, list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                    for (index, element) in elements.iter().enumerate() {
                        let gap = if index > 0 { "\n" } else { "" };
                        let _ = writeln!(out, "{gap}[[{list}]]");
                        for doc in &keys {
                            if index == 0 {
                                describe(&mut out, doc, None);
                            }
                            entry(&mut out, doc, element.get(last(doc.key)));
                        }
                    }
                }
                None => {
                    let _ = writeln!(out, "[{section}]");
                    for doc in keys {
                        describe(&mut out, doc, lookup(&default, doc.key));
                        entry(&mut out, doc, lookup(&tree, doc.key));
                    }
                }
            }
        }
        out
    }

    /// The hash of all values that influence the result. Two runs with the same hash, text and program give the same
    /// weights. Names, folders and numbers of threads do not count.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut text = String::new();
        for (key, value) in self.influences() {
            let _ = writeln!(text, "{key} = {value}");
        }
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }

    /// The keys that influence the result and differ, each with its value here and in `other`.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        let (ours, theirs) = (self.influences(), other.influences());
        let value = |list: &[(String, String)], key: &str| {
            list.iter()
                .find(|(known, _)| known == key)
                .map_or_else(|| "not set".to_owned(), |(_, value)| value.clone())
        };
        let mut keys: Vec<&String> = ours.iter().chain(&theirs).map(|(key, _)| key).collect();
        keys.sort();
        keys.dedup();
        keys.into_iter()
            .map(|key| (key.clone(), value(&ours, key), value(&theirs, key)))
            .filter(|(_, here, there)| here != there)
            .collect()
    }

    /// The keys that influence the result, with their values as JSON, in the order of [`keys`].
    fn influences(&self) -> Vec<(String, String)> {
        let tree = tree(self);
        let mut out = Vec::new();
        for doc in keys().filter(|doc| doc.affects_result) {
            match doc.key.split_once("[].") {
                None => {
                    out.extend(lookup(&tree, doc.key).map(|value| (doc.key.to_owned(), value.to_string())));
                }
                Some((list, key)) => {
                    let elements =
                        lookup(&tree, list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                    for (index, element) in elements.iter().enumerate() {
                        out.extend(
                            element
                                .get(key)
                                .map(|value| (format!("{list}[{index}].{key}"), value.to_string())),
                        );
                    }
                }
            }
        }
        out
    }

    /// The value of a key as TOML; `not set` for an optional key without value, `None` for an unknown key and for one with `[]` in
    /// it.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<String> {
        let tree = tree(self);
        let path = key.replace('[', ".").replace(']', "");
        let value = path.split('.').try_fold(&tree, |value, step| match value {
            Value::Array(array) => step.parse::<usize>().ok().and_then(|index| array.get(index)),
            other => other.get(step),
        });
        // A key without value may be left out of the tree.
        let known = value.is_some() || (!key.contains("[]") && keys().any(|doc| doc.key == key));
        known.then(|| value.and_then(toml_value).unwrap_or_else(|| "not set".into()))
    }
}

/// The reference of all keys, in Markdown.
#[must_use]
pub fn reference() -> String {
    let default = tree_of_default();
    let mut out = String::from(
        "# Configuration\n\n\
         <!-- Generated from crates/config/src/keys/: DIPACO_WRITE_DOCS=1 cargo test -p dipaco-config -->\n\n\
         One TOML file configures a run. Every key has a default, so the file only needs the keys that differ.\n\
         Later sources win: defaults, the file of `--config`, environment variables such as\n\
         `DIPACO__TRAIN__ROUNDS=3`, then `--set train.rounds=3`.\n\
         Unknown keys are refused. `dipaco config show` prints the resulting configuration, and `dipaco config check`\n\
         reports its errors. Every run keeps its configuration in `config.toml` of its directory. Without `--config` a command\n\
         takes that file; with it, that file is not read.\n\n\
         A key marked * influences the result, and `train` refuses another value of it when a run is resumed.\n\
         Three sections may change for what is still to come: `evaluation`, `transformer_router`, and `routing` before a\n\
         phase of routing.\n",
    );
    for &(section, text) in SECTIONS {
        let title =
            section.strip_suffix("[]").map_or_else(|| format!("[{section}]"), |list| format!("[[{list}]]"));
        let _ = write!(
            out,
            "\n## `{title}`\n\n{text}\n\n| key | default | unit | meaning |\n|---|---|---|---|\n"
        );
        for doc in keys().filter(|doc| section_of(doc.key) == section) {
            let value = match doc.key.contains("[]") {
                true => String::new(),
                false => default_text(lookup(&default, doc.key)),
            };
            let star = if doc.affects_result { " *" } else { "" };
            let (unit, text) = (doc.unit.replace('|', "\\|"), doc.text.replace('|', "\\|"));
            let _ = writeln!(out, "| `{}`{star} | {value} | {unit} | {text} |", last(doc.key));
        }
    }
    out
}

fn default_text(value: Option<&Value>) -> String {
    value.and_then(toml_value).map_or_else(|| "not set".into(), |value| format!("`{value}`"))
}

/// Writes the documentation of a key, and its default if there is one.
fn describe(out: &mut String, doc: &KeyDoc, default: Option<&Value>) {
    let default = default.map(|value| toml_value(value).unwrap_or_else(|| "not set".into()));
    let default = default.map_or_else(String::new, |default| format!(" Default: {default}."));
    comment(out, &format!("{} Unit: {}.{default}", doc.text, doc.unit));
}

/// Writes a key and its value. A key without value is a comment.
fn entry(out: &mut String, doc: &KeyDoc, value: Option<&Value>) {
    let name = last(doc.key);
    let _ = match value.and_then(toml_value) {
        Some(value) => writeln!(out, "{name} = {value}"),
        None => writeln!(out, "# {name} ="),
    };
}

fn comment(out: &mut String, text: &str) {
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            out.extend([&line, "\n"]);
            line = String::from("#");
        }
        line.extend([" ", word]);
    }
    out.extend([&line, "\n"]);
}

/// A value in TOML; `None` for null, which TOML does not have.
fn toml_value(value: &Value) -> Option<String> {
    toml::Value::try_from(value).ok().map(|value| value.to_string())
}

fn section_of(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(section, _)| section)
}

fn last(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

fn lookup<'a>(tree: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(tree, |value, step| value.get(step))
}

fn tree(config: &RunConfig) -> Value {
    // Serialising structs of numbers, texts and lists can't fail.
    serde_json::to_value(config).unwrap_or_default()
}

fn tree_of_default() -> Value {
    tree(&RunConfig::default())
}

impl Problem {
    /// A problem without a place.
    pub(crate) fn of(message: impl Into<String>) -> Self {
        Self { message: message.into(), origin: None, remedy: None }
    }
}
