//! Applying layers of values to the defaults, checked against the list of known keys.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::layer::{KeyPath, Leaf, Step};
use crate::{Origin, Problem};

/// Applies `leaves` to the default of `T`; later leaves win. `keys` are all keys of `T`, with `[]` for the elements of
/// lists.
pub(crate) fn resolve<T>(
    leaves: &[Leaf],
    keys: &[&str],
) -> Result<(T, BTreeMap<String, Origin>), Vec<Problem>>
where
    T: Default + Serialize + DeserializeOwned,
{
    let known = Known::new(keys);
    let default = serde_json::to_value(T::default()).map_err(|error| vec![without_place(&error)])?;
    let mut tree = default.clone();
    let mut origins = BTreeMap::new();
    let (mut problems, mut reported) = (Vec::new(), BTreeSet::new());
    for leaf in leaves {
        match known.problem(leaf) {
            Some((name, problem)) => {
                if reported.insert(name) {
                    problems.push(problem);
                }
            }
            None => match typed::<T>(&default, leaf) {
                Ok(value) => {
                    if put(&mut tree, &leaf.path.0, value) {
                        origins.insert(leaf.path.to_string(), leaf.origin.clone());
                    } else {
                        problems.push(Problem {
                            message: format!("{}: the list has no such element", leaf.path),
                            origin: Some(leaf.origin.clone()),
                            remedy: Some("elements are counted from 0".into()),
                        });
                    }
                }
                Err(problem) => problems.push(problem),
            },
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    match serde_json::from_value(tree.clone()) {
        Ok(config) => Ok((config, origins)),
        Err(error) => Err(incomplete_elements::<T>(&default, &tree, leaves, &error)),
    }
}

fn without_place(error: &serde_json::Error) -> Problem {
    Problem { message: error.to_string(), origin: None, remedy: None }
}

/// The value of a leaf, if `T` accepts it. It is tried alone over the defaults, so that the error is about this key.
fn typed<T: DeserializeOwned>(default: &Value, leaf: &Leaf) -> Result<Value, Problem> {
    let attempt = |value: Value| {
        let mut tree = default.clone();
        put_over_default(&mut tree, &leaf.path.0, value);
        serde_json::from_value::<T>(tree).map(drop)
    };
    let Err(error) = attempt(leaf.value.clone()) else { return Ok(leaf.value.clone()) };
    // `--set run.name=7` must name the run "7", although 7 is a number in TOML.
    if let Some(raw) = &leaf.raw {
        let text = Value::String(raw.clone());
        if attempt(text.clone()).is_ok() {
            return Ok(text);
        }
    }
    let message = format!("{}: {}", leaf.path, in_words(&error.to_string()));
    Err(Problem { message, origin: Some(leaf.origin.clone()), remedy: None })
}

/// serde's message with user-friendly names of types.
fn in_words(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let found = found
        .strip_prefix("invalid type: ")
        .or_else(|| found.strip_prefix("invalid value: "))
        .unwrap_or(found);
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a section",
        other if other.starts_with("struct ") => "a section",
        other => other,
    };
    let found = match found.split_once(' ') {
        Some(("integer", value)) => format!("the number {}", value.trim_matches('`')),
        Some(("floating", value)) => {
            format!("the number {}", value.trim_start_matches("point ").trim_matches('`'))
        }
        Some(("boolean", value)) => value.trim_matches('`').to_owned(),
        Some(("string", value)) => format!("the string {value}"),
        Some(("unknown", value)) => value.trim_start_matches("variant ").to_owned(),
        _ => found.replace("sequence", "a list").replace("map", "a section"),
    };
    format!("expected {expected}, found {found}")
}

/// Sets a value and returns whether its place exists. An index may also be the one after the last element, which appends.
fn put(tree: &mut Value, path: &[Step], value: Value) -> bool {
    let Some((step, rest)) = path.split_first() else {
        // An empty table has no values, so it must not replace the section.
        if !(value.as_object().is_some_and(Map::is_empty) && tree.is_object()) {
            *tree = value;
        }
        return true;
    };
    match step {
        Step::Key(key) => {
            if !tree.is_object() {
                *tree = Value::Object(Map::new());
            }
            tree.as_object_mut()
                .is_some_and(|map| put(map.entry(key.as_str()).or_insert(Value::Null), rest, value))
        }
        Step::Index(index) => {
            let Some(array) = tree.as_array_mut() else { return false };
            if *index == array.len() {
                array.push(Value::Object(Map::new()));
            }
            array.get_mut(*index).is_some_and(|element| put(element, rest, value))
        }
    }
}

/// Like [`put`], but cuts every list to its first default element and sets the value there. Elements have no defaults of
/// their own, so a value is tried in a complete element.
fn put_over_default(tree: &mut Value, path: &[Step], value: Value) {
    match path.split_first() {
        None => {
            put(tree, path, value);
        }
        Some((Step::Key(key), rest)) => {
            if let Some(child) =
                tree.as_object_mut().map(|map| map.entry(key.as_str()).or_insert(Value::Null))
            {
                put_over_default(child, rest, value);
            }
        }
        Some((Step::Index(_), rest)) => {
            if let Some(array) = tree.as_array_mut() {
                array.truncate(1);
                array.iter_mut().for_each(|element| put_over_default(element, rest, value.clone()));
            }
        }
    }
}

/// Finds the list elements that lack a key, the only possible error when every value is valid by itself.
fn incomplete_elements<T: DeserializeOwned>(
    default: &Value,
    tree: &Value,
    leaves: &[Leaf],
    error: &serde_json::Error,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for (at, leaf) in leaves.iter().enumerate() {
        let Some(end) = leaf.path.0.iter().rposition(|step| matches!(step, Step::Index(_))) else { continue };
        let (list, element) = (&leaf.path.0[..end], KeyPath(leaf.path.0[..=end].to_vec()));
        // A later part replaces the whole list.
        if leaves[at + 1..].iter().any(|later| later.path.0 == list && later.value.is_array()) {
            continue;
        }
        let Some(value) = get(tree, &element.0).filter(|_| seen.insert(element.to_string())) else {
            continue;
        };
        let mut probe = default.clone();
        put(&mut probe, list, Value::Array(vec![value.clone()]));
        if let Err(error) = serde_json::from_value::<T>(probe) {
            let message = format!("{element}: {}", in_words(&error.to_string()));
            problems.push(Problem { message, origin: Some(leaf.origin.clone()), remedy: None });
        }
    }
    if problems.is_empty() { vec![without_place(error)] } else { problems }
}

fn get<'a>(tree: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(tree, |value, step| match step {
        Step::Key(key) => value.get(key.as_str()),
        Step::Index(index) => value.get(*index),
    })
}

/// The known keys, and the sections that contain them.
struct Known<'a> {
    keys: BTreeSet<&'a str>,
    sections: BTreeSet<String>,
}

impl<'a> Known<'a> {
    fn new(keys: &[&'a str]) -> Self {
        let mut sections = BTreeSet::new();
        for key in keys {
            let ends = key.char_indices().filter(|&(_, character)| matches!(character, '.' | '['));
            for (end, character) in ends {
                sections.insert(key[..end].to_owned());
                if character == '[' {
                    sections.insert(format!("{}[]", &key[..end]));
                }
            }
        }
        Self { keys: keys.iter().copied().collect(), sections }
    }

    /// The error in the name of a leaf, if any: the offending name and the problem.
    fn problem(&self, leaf: &Leaf) -> Option<(String, Problem)> {
        let pattern = leaf.path.pattern();
        let section = self.sections.contains(&pattern);
        if self.keys.contains(pattern.as_str())
            || (section && (leaf.value.is_object() || leaf.value.is_array()))
        {
            return None;
        }
        let problem = |name: &str, message, remedy| {
            Some((name.to_owned(), Problem { message, origin: Some(leaf.origin.clone()), remedy }))
        };
        if section {
            let value = leaf.value.to_string();
            return problem(
                &pattern,
                format!("{}: expected a section, found the value {value}", leaf.path),
                None,
            );
        }
        let mut above = String::new();
        for end in 1..=leaf.path.0.len() {
            let prefix = KeyPath(leaf.path.0[..end].to_vec());
            let pattern = prefix.pattern();
            if self.keys.contains(pattern.as_str()) {
                let message = format!("{prefix}: expected a value, found a section or list");
                return problem(&pattern, message, None);
            }
            if !self.sections.contains(&pattern) {
                let remedy = self.nearest(&above, &pattern).map(|near| format!("did you mean `{near}`?"));
                let remedy = remedy.or_else(|| Some("`dipaco config keys` lists all keys".into()));
                return problem(&pattern, format!("unknown key `{prefix}`"), remedy);
            }
            above = pattern;
        }
        None
    }

    /// The known name that is nearest to `name`: among its siblings, otherwise among all names by their last word.
    fn nearest(&self, above: &str, name: &str) -> Option<&str> {
        let last = |name: &'_ str| name.rsplit('.').next().unwrap_or_default().to_owned();
        let wanted = last(name);
        let all = || self.keys.iter().copied().chain(self.sections.iter().map(String::as_str));
        let alike = |name: &str| strsim::damerau_levenshtein(&last(name), &wanted);
        let limit = (wanted.len() / 3).max(1);
        let siblings = all().filter(|known| known.rsplit_once('.').map_or("", |(parent, _)| parent) == above);
        let sibling =
            siblings.map(|known| (alike(known), known)).min().filter(|&(distance, _)| distance <= limit);
        let anywhere =
            || all().map(|known| (alike(known), known)).min().filter(|&(distance, _)| distance <= 1);
        sibling.or_else(anywhere).map(|(_, known)| known)
    }
}
