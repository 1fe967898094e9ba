//! Errors as exceptions of Python.

use std::error::Error;
use std::path::PathBuf;

use dipaco_infer::EngineError;
use dipaco_pipeline::PipelineError;
use dipaco_routing::RoutingError;
use dipaco_shards::ShardsError;
use dipaco_telemetry::{EventsError, causes};
use pyo3::PyErr;
use pyo3::exceptions::{PyException, PyFileExistsError, PyValueError};
use thiserror::Error;

pyo3::create_exception!(dipaco, RunError, PyException, "A run can't be read or used.");

/// Why a call failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// An argument.
    #[error("{0}")]
    Argument(String),
    /// A prompt that the engine refuses.
    #[error("prompt {number}")]
    Prompt {
        /// Its place in the list.
        number: usize,
        /// The reason.
        #[source]
        source: EngineError,
    },
    /// A text that the tokenizer refuses.
    #[error("text {number}")]
    Text {
        /// Its place in the list.
        number: usize,
        /// The reason.
        #[source]
        source: ShardsError,
    },
    /// A file to write that exists.
    #[error("{} is there already: give another name, or force=True to write over it", file.display())]
    ThereAlready {
        /// The file.
        file: PathBuf,
    },
    /// A call in a process that was forked after the run was opened.
    #[error(
        "the run was opened before this process was forked, and its threads stayed behind: open it in this process"
    )]
    Forked,
    /// Ctrl-C, or an exception of another signal's handler.
    #[error("interrupted")]
    Stopped,
    /// The runtime of the store can't be started.
    #[error("the threads that read the run can't be started")]
    Threads(#[source] std::io::Error),
    /// A result that is no JSON.
    #[error("internal fault of dipaco: a result can't be written as JSON; please report it")]
    Json(#[from] serde_json::Error),
    /// A step of a run.
    #[error(transparent)]
    Step(#[from] PipelineError),
    /// The engine, while it works.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Tokenizer and token files.
    #[error(transparent)]
    Tokens(#[from] ShardsError),
    /// Shards.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// The event file.
    #[error(transparent)]
    Events(#[from] EventsError),
}

impl Failure {
    /// True if another argument would help.
    fn is_argument(&self) -> bool {
        matches!(
            self,
            Self::Argument(_)
                | Self::Prompt { .. }
                | Self::Text { .. }
                | Self::Step(PipelineError::NoSuchPath { .. })
        )
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let what = failure.to_string();
        let because: String =
            causes(&what, failure.source()).iter().map(|cause| format!("\n  because: {cause}")).collect();
        let text = what + &because;
        match failure {
            Failure::ThereAlready { .. } => PyFileExistsError::new_err(text),
            failure if failure.is_argument() => PyValueError::new_err(text),
            _ => RunError::new_err(text),
        }
    }
}
