//! Errors of a configuration.

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::Origin;

/// One error of a configuration: its message, the place of the value, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Message, which names the key.
    pub message: String,
    /// Place of the value; `None` for a default, or for several values that do not fit together.
    pub origin: Option<Origin>,
    /// Remedy, if one is known.
    pub remedy: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        f.write_str(&self.message)?;
        if let Some(remedy) = &self.remedy {
            write!(f, " ({remedy})")?;
        }
        Ok(())
    }
}

/// Errors of loading a configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file can't be read.
    #[error("the configuration file {} can't be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the file system.
        #[source]
        source: io::Error,
    },
    /// Values that are unknown, of the wrong type, out of range, or that do not fit together.
    #[error("{}", list(.0))]
    Problems(Vec<Problem>),
}

fn list(problems: &[Problem]) -> String {
    match problems {
        [one] => one.to_string(),
        several => {
            let lines: Vec<String> = several.iter().map(|problem| format!("\n  {problem}")).collect();
            format!("the configuration has {} problems:{}", several.len(), lines.concat())
        }
    }
}
