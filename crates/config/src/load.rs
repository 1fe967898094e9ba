//! Loading a configuration from defaults, file, environment and arguments.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::keys::keys;
use crate::layer::{self, Leaf};
use crate::resolve::resolve;
use crate::{ConfigError, Origin, Pretrained, Problem, RunConfig};

/// Sources of the values. Later fields win.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// A pretrained model, which gives the shape of the transformer. The other sources can't contradict it.
    pub pretrained: Option<Pretrained>,
    /// A TOML file.
    pub file: Option<PathBuf>,
    /// Names and values of environment variables. Names that do not begin with `DIPACO__` are ignored.
    pub environment: Vec<(String, String)>,
    /// Overrides as `section.key=value`.
    pub overrides: Vec<String>,
}

impl Sources {
    /// A file, the environment of this process, and overrides.
    #[must_use]
    pub fn with_environment(file: Option<PathBuf>, overrides: Vec<String>) -> Self {
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        let mut environment: Vec<_> =
            std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
        environment.sort();
        Self { pretrained: None, file, environment, overrides }
    }
}

/// A checked configuration and the places of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The configuration.
    pub config: RunConfig,
    /// Place of each value that is not a default, by key.
    pub origins: BTreeMap<String, Origin>,
}

impl RunConfig {
    /// Loads a configuration and checks it.
    ///
    /// # Errors
    /// When the file can't be read, or [`ConfigError::Problems`] with all errors at once: unknown keys, values of the wrong
    /// type or out of range, and values that do not fit together.
    pub fn load(sources: &Sources) -> Result<Resolved, ConfigError> {
        let mut leaves = Vec::new();
        let mut problems = Vec::new();
        let mut add = |layer: Result<Vec<Leaf>, Vec<Problem>>| match layer {
            Ok(layer) => leaves.extend(layer),
            Err(wrong) => problems.extend(wrong),
        };
        if let Some(path) = &sources.file {
            let read = std::fs::read_to_string(path);
            let text = read.map_err(|source| ConfigError::Read { path: path.clone(), source })?;
            add(layer::from_file(&text, path));
        }
        for (name, value) in &sources.environment {
            if let Some(layer) = layer::from_environment(name, value) {
                add(layer);
            }
        }
        for argument in &sources.overrides {
            add(layer::from_argument(argument));
        }
        if let Some(pretrained) = &sources.pretrained {
            problems.extend(pretrained.take_precedence(&mut leaves));
        }
        if !problems.is_empty() {
            return Err(ConfigError::Problems(problems));
        }
        resolve_leaves(&leaves)
    }
}

pub(crate) fn resolve_leaves(leaves: &[Leaf]) -> Result<Resolved, ConfigError> {
    let keys: Vec<&str> = keys().map(|doc| doc.key).collect();
    let (config, origins) = resolve::<RunConfig>(leaves, &keys).map_err(ConfigError::Problems)?;
    let problems = config.problems();
    if problems.is_empty() {
        return Ok(Resolved { config, origins });
    }
    let placed = problems.into_iter().map(|problem| with_origin(problem, &origins)).collect();
    Err(ConfigError::Problems(placed))
}

/// Adds the place of the first key that the message names.
fn with_origin(mut problem: Problem, origins: &BTreeMap<String, Origin>) -> Problem {
    let words = problem.message.split(|c: char| !(c.is_alphanumeric() || matches!(c, '.' | '_' | '[' | ']')));
    let mut named = words.filter_map(|word| origins.get(word.trim_end_matches('.')));
    problem.origin = named.next().cloned();
    problem
}
