//! Places of configuration values.

use std::fmt;
use std::path::PathBuf;

/// The place where the user wrote a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
    },
    /// Name of a part that is no file, such as a table of an experiment.
    Part(String),
    /// A pretrained model, by its folder or file.
    Pretrained(PathBuf),
    /// Name of an environment variable.
    Environment(String),
    /// Text of an argument `--set`.
    Argument(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Part(name) => f.write_str(name),
            Self::Pretrained(path) => write!(f, "the model in {}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Argument(text) => write!(f, "--set {text}"),
        }
    }
}
