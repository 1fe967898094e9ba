//! Layers of a configuration: the values of a file, the environment or the arguments, each with its place.

use std::fmt;
use std::path::Path;

use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

use crate::{Origin, Problem};

/// A step of a key path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

/// The path to a value, written `topology.levels[0].modules`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyPath(pub(crate) Vec<Step>);

impl KeyPath {
    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    /// Parses `a.b[0].c` or `a.b.0.c`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        for part in text.replace('[', ".").replace(']', "").split('.').map(str::trim) {
            match part.parse() {
                Ok(index) => steps.push(Step::Index(index)),
                Err(_) if part.is_empty() => return None,
                Err(_) => steps.push(Step::Key(part.to_owned())),
            }
        }
        Some(Self(steps))
    }

    /// The path with `[]` for every index, as in the list of keys.
    pub(crate) fn pattern(&self) -> String {
        render(&self.0, |_| "[]".into())
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render(&self.0, |index| format!("[{index}]")))
    }
}

fn render(steps: &[Step], index: impl Fn(usize) -> String) -> String {
    let mut out = String::new();
    for step in steps {
        match step {
            Step::Key(key) if out.is_empty() => out.push_str(key),
            Step::Key(key) => out.extend([".", key]),
            Step::Index(i) => out.push_str(&index(*i)),
        }
    }
    out
}

/// A value given by the user.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) path: KeyPath,
    pub(crate) value: Value,
    /// The text of an argument or variable, for keys that take a string: it may be written without quotes.
    pub(crate) raw: Option<String>,
    pub(crate) origin: Origin,
}

/// The values of a TOML file. A list of tables becomes an empty list, which drops the elements of earlier layers, followed
/// by its elements.
pub(crate) fn from_file(text: &str, path: &Path) -> Result<Vec<Leaf>, Vec<Problem>> {
    let line_of = |offset: usize| 1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count();
    from_toml(text, &|offset| Origin::File { path: path.to_owned(), line: line_of(offset) })
}

/// The values of a part in TOML that is no file, as [`from_file`] has them.
pub(crate) fn from_part(text: &str, name: &str) -> Result<Vec<Leaf>, Vec<Problem>> {
    from_toml(text, &|_| Origin::Part(name.to_owned()))
}

/// The values of a text in TOML. `origin` is the place of the byte at an offset.
fn from_toml(text: &str, origin: OriginOf<'_>) -> Result<Vec<Leaf>, Vec<Problem>> {
    let table = DeTable::parse(text).map_err(|error| {
        let place = error.span().map(|span| origin(span.start));
        let message = format!("this is not valid TOML: {}", error.message().trim().replace('\n', ", "));
        vec![Problem { message, origin: place, remedy: None }]
    })?;
    let (mut leaves, mut problems) = (Vec::new(), Vec::new());
    walk_table(table.get_ref(), &KeyPath::default(), origin, &mut leaves, &mut problems);
    if problems.is_empty() { Ok(leaves) } else { Err(problems) }
}

/// Prefix of the environment variables of the configuration.
pub(crate) const ENVIRONMENT_PREFIX: &str = "DIPACO__";

/// The value of an environment variable such as `DIPACO__TRAIN__ROUNDS`; `None` for a variable without the prefix.
pub(crate) fn from_environment(name: &str, text: &str) -> Option<Result<Vec<Leaf>, Vec<Problem>>> {
    let key = name.strip_prefix(ENVIRONMENT_PREFIX)?.to_lowercase().replace("__", ".");
    let origin = Origin::Environment(name.to_owned());
    Some(from_text(&key, text, &origin))
}

/// The value of an argument `a.b=c`.
pub(crate) fn from_argument(argument: &str) -> Result<Vec<Leaf>, Vec<Problem>> {
    let origin = Origin::Argument(argument.to_owned());
    match argument.split_once('=') {
        Some((key, text)) => from_text(key, text, &origin),
        None => Err(vec![Problem {
            message: "no value is given".into(),
            origin: Some(origin),
            remedy: Some("write --set section.key=value".into()),
        }]),
    }
}

fn from_text(key: &str, text: &str, origin: &Origin) -> Result<Vec<Leaf>, Vec<Problem>> {
    let Some(path) = KeyPath::parse(key) else {
        let message = format!("`{key}` is not a key");
        let remedy = Some("write section.key, as in train.rounds".into());
        return Err(vec![Problem { message, origin: Some(origin.clone()), remedy }]);
    };
    let text = text.trim();
    // No key takes a date or a time, but a run may be named after one.
    let value = DeValue::parse(text).ok().filter(|value| !value.get_ref().is_datetime());
    let Some(value) = value else {
        let value = Value::String(text.to_owned());
        return Ok(vec![Leaf { path, value, raw: None, origin: origin.clone() }]);
    };
    let (mut leaves, mut problems) = (Vec::new(), Vec::new());
    walk(value.get_ref(), &path, 0, &|_| origin.clone(), &mut leaves, &mut problems);
    if let [leaf] = leaves.as_mut_slice() {
        leaf.raw = Some(text.to_owned());
    }
    if problems.is_empty() { Ok(leaves) } else { Err(problems) }
}

type OriginOf<'a> = &'a dyn Fn(usize) -> Origin;

fn walk_table(
    table: &DeTable<'_>,
    path: &KeyPath,
    origin: OriginOf<'_>,
    leaves: &mut Vec<Leaf>,
    problems: &mut Vec<Problem>,
) {
    for (key, value) in table {
        let path = path.with(Step::Key(key.get_ref().to_string()));
        walk(value.get_ref(), &path, key.span().start, origin, leaves, problems);
    }
}

fn walk(
    value: &DeValue<'_>,
    path: &KeyPath,
    offset: usize,
    origin: OriginOf<'_>,
    leaves: &mut Vec<Leaf>,
    problems: &mut Vec<Problem>,
) {
    let leaf = |value| Leaf { path: path.clone(), value, raw: None, origin: origin(offset) };
    match value {
        DeValue::Table(table) => {
            // An empty table has no values, but its name must be checked too.
            if table.is_empty() {
                leaves.push(leaf(Value::Object(Map::new())));
            }
            walk_table(table, path, origin, leaves, problems);
        }
        DeValue::Array(array) if array.iter().any(|element| element.get_ref().is_table()) => {
            leaves.push(leaf(Value::Array(Vec::new())));
            for (index, element) in array.iter().enumerate() {
                let path = path.with(Step::Index(index));
                walk(element.get_ref(), &path, element.span().start.max(offset), origin, leaves, problems);
            }
        }
        other => match scalar(other) {
            Ok(value) => leaves.push(leaf(value)),
            Err(problem) => {
                problems.push(Problem {
                    message: format!("{path}: {problem}"),
                    origin: Some(origin(offset)),
                    remedy: None,
                });
            }
        },
    }
}

fn scalar(value: &DeValue<'_>) -> Result<Value, String> {
    match value {
        DeValue::String(text) => Ok(Value::String(text.to_string())),
        DeValue::Boolean(value) => Ok(Value::Bool(*value)),
        DeValue::Integer(integer) => {
            // TOML has no others, so a larger one could not be saved with the run.
            let number = i64::from_str_radix(integer.as_str(), integer.radix());
            number.map(|number| Value::Number(number.into())).map_err(|_| {
                format!(
                    "{integer} is out of range: the largest number is {}, the least {}",
                    i64::MAX,
                    i64::MIN
                )
            })
        }
        DeValue::Float(float) => {
            let number = float.as_str().parse::<f64>().ok().and_then(Number::from_f64);
            number.map(Value::Number).ok_or_else(|| format!("{float} is not a finite number"))
        }
        DeValue::Datetime(time) => {
            Err(format!("found the date or time {time}, but no key takes dates or times"))
        }
        DeValue::Array(array) => {
            array.iter().map(|element| scalar(element.get_ref())).collect::<Result<_, _>>().map(Value::Array)
        }
        DeValue::Table(_) => Err("found a table inside a list of values".into()),
    }
}
