//! A configuration that is made of several parts in TOML, each with its own place.

use std::path::{Path, PathBuf};

use crate::layer::{self, Leaf};
use crate::load::resolve_leaves;
use crate::{ConfigError, Pretrained, Problem, RunConfig};

/// A part of a configuration in TOML, and the place that its errors name.
#[derive(Clone, Debug)]
pub struct ConfigPart {
    text: String,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    File(PathBuf),
    Named(String),
}

impl ConfigPart {
    /// The content of a file. Its errors name the file and the line.
    #[must_use]
    pub fn of_file(text: impl Into<String>, path: &Path) -> Self {
        Self { text: text.into(), place: Place::File(path.to_owned()) }
    }

    /// A text that is no file. Its errors have this name.
    #[must_use]
    pub fn named(text: impl Into<String>, name: impl Into<String>) -> Self {
        Self { text: text.into(), place: Place::Named(name.into()) }
    }

    fn leaves(&self) -> Result<Vec<Leaf>, Vec<Problem>> {
        match &self.place {
            Place::File(path) => layer::from_file(&self.text, path),
            Place::Named(name) => layer::from_part(&self.text, name),
        }
    }
}

impl RunConfig {
    /// Reads a configuration in TOML, without environment and overrides. The errors name the file `name`.
    ///
    /// # Errors
    /// When the text is not valid TOML or the values do not pass [`RunConfig::check`].
    pub fn from_toml(text: &str, name: &Path) -> Result<Self, ConfigError> {
        Self::from_parts(&[ConfigPart::of_file(text, name)], None)
    }

    /// Reads a configuration that is made of parts, without environment and overrides. Later parts win. `pretrained` is the model
    /// with which the run begins, if there is one.
    ///
    /// # Errors
    /// When a part is not valid TOML, when the values do not pass [`RunConfig::check`], and when a value contradicts the shape of
    /// the model.
    pub fn from_parts(parts: &[ConfigPart], pretrained: Option<&Pretrained>) -> Result<Self, ConfigError> {
        let (mut leaves, mut problems) = (Vec::new(), Vec::new());
        for part in parts {
            match part.leaves() {
                Ok(layer) => leaves.extend(layer),
                Err(wrong) => problems.extend(wrong),
            }
        }
        problems.extend(pretrained.map_or_else(Vec::new, |model| model.take_precedence(&mut leaves)));
        if !problems.is_empty() {
            return Err(ConfigError::Problems(problems));
        }
        resolve_leaves(&leaves).map(|resolved| resolved.config)
    }
}
