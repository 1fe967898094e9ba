//! The label file that the shards of a run follow.

use std::path::Path;

use dipaco_config::RunConfig;
use dipaco_routing::{Router, RouterKind};

use crate::error::PipelineError;
use crate::label_error::LabelError;

/// The label file; `None` for routers without labels.
pub(crate) fn label_file(config: &RunConfig) -> Option<&Path> {
    config.routing.labels.as_deref().filter(|_| config.routing.kind == RouterKind::Labels)
}

/// Hash of the label file; `None` for routers without labels.
///
/// # Errors
/// When the file can't be read.
pub(crate) fn labels_hash(config: &RunConfig) -> Result<Option<String>, PipelineError> {
    Ok(label_file(config).map(dipaco_files::file_hash).transpose()?)
}

/// Checks that a router of labels was fitted with the label file of the settings. Another file would divide the rest of a text
/// by other labels.
///
/// # Errors
/// [`LabelError::OtherFile`] when it was another file, and the errors of reading the file.
pub(crate) fn check_label_file(config: &RunConfig, router: &Router) -> Result<(), PipelineError> {
    let labels = config.routing.labels.as_ref().filter(|_| router.kind() == RouterKind::Labels);
    let (Some(file), Some(expected)) = (labels, &router.fitted_on().labels_hash) else { return Ok(()) };
    let found = dipaco_files::file_hash(file)?;
    if found == *expected {
        return Ok(());
    }
    Err(LabelError::OtherFile { file: file.clone(), found, expected: expected.clone() }.into())
}
