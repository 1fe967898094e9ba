//! Errors of this package.

use std::path::PathBuf;

use dipaco_model::BoxError;
use dipaco_shards::WorkPart;
use dipaco_topology::PathId;

/// An error of this package. Its message names the object, the place and the remedy; `source` is the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// A value of the configuration is outside its valid range.
    #[error("routing.{key} = {value}: {problem}")]
    Config {
        /// The key below `[routing]`.
        key: &'static str,
        /// Its value.
        value: String,
        /// The problem, and the values that work.
        problem: &'static str,
    },
    /// Paths can't be added to a router or removed from it.
    #[error(
        "the router has no centroid for each path: only a router of routing.kind = \"kmeans\" can be extended"
    )]
    NoCentroids,
    /// The length of a buffer does not match its shape.
    #[error("{what}: expected {expected} values, got {actual}")]
    Shape {
        /// The buffer.
        what: &'static str,
        /// The required number of values.
        expected: usize,
        /// The actual number of values.
        actual: usize,
    },
    /// A feature or a point is NaN or infinite.
    #[error(
        "{what} {index} has a value that is not finite (component {component}): the seed model's weights are damaged or \
         its training diverged; check its validation loss, or pretrain it again"
    )]
    NotFinite {
        /// Name of the list that has the point.
        what: &'static str,
        /// Number of the point in the list.
        index: u64,
        /// Number of the component in the point.
        component: usize,
    },
    /// There are fewer different points than clusters.
    #[error(
        "k-means: {clusters} clusters need {clusters} different points, but of {points} points only {distinct} differ: use \
         fewer paths, more text or a larger routing.sample_documents"
    )]
    TooFewPoints {
        /// Requested number of clusters.
        clusters: usize,
        /// Number of points.
        points: usize,
        /// Number of different points.
        distinct: usize,
    },
    /// All points are the same.
    #[error(
        "k-means: all {points} points are the same: the seed model is untrained or damaged, or the text repeats one \
         document; check the seed's validation loss and the text"
    )]
    Identical {
        /// Number of points.
        points: usize,
    },
    /// Documents or targets do not suffice for a classifier.
    #[error("discriminative router: {problem}")]
    Targets {
        /// The problem and the remedy.
        problem: String,
    },
    /// A document has no token to route by.
    #[error("document {document} is empty: a router needs at least one token; run prepare again")]
    EmptyDocument {
        /// Number of the document in its file.
        document: u64,
    },
    /// The model failed to compute features.
    #[error("could not compute the features of documents from {first_document} on")]
    Features {
        /// The first document of the batch.
        first_document: u64,
        /// The model's error.
        #[source]
        source: BoxError,
    },
    /// The bytes are no router, or a damaged router.
    #[error("this is no usable router: {problem}")]
    Artefact {
        /// The problem and the remedy.
        problem: String,
    },
    /// Two objects do not belong together.
    #[error("{what} does not match: expected {expected}, got {actual}; {remedy}")]
    Mismatch {
        /// The compared property.
        what: &'static str,
        /// The required value.
        expected: String,
        /// The actual value.
        actual: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// Shards of paths hold no document.
    #[error(
        "{} of {} paths got no document (paths {}): raise routing.least_share, use fewer paths, more text, another \
         routing.seed, or fit the router on this text",
        paths.len(),
        total,
        list(paths)
    )]
    EmptyPaths {
        /// Paths without a document.
        paths: Vec<u32>,
        /// Number of paths.
        total: u32,
    },
    /// A file could not be published.
    #[error(transparent)]
    File(#[from] dipaco_files::FileError),
    /// A file could not be read or written.
    #[error("{}: could not {action}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// A token file could not be read or written.
    #[error("{what}")]
    Tokens {
        /// The failure: the token file and the action.
        what: String,
        /// The cause.
        #[source]
        source: dipaco_shards::ShardsError,
    },
    /// Parts of a divided computation are missing: not yet done, or not copied here.
    #[error(
        "{}: {} of {} parts are missing or not finished ({}): run `{command} --part {}` with this run, or copy the files that such \
         a run wrote in that folder here; remove the folder to do everything on this machine",
        folder.display(), parts.len(), parts.first().map_or(0, |part| part.count()), list_parts(parts),
        parts.first().copied().unwrap_or_default()
    )]
    MissingParts {
        /// Folder of the parts' results.
        folder: PathBuf,
        /// Missing parts.
        parts: Vec<WorkPart>,
        /// The command that makes them.
        command: &'static str,
    },
    /// The results of a part were damaged after they were written.
    #[error("{} is damaged: copy it again from an undamaged copy, or run `{command} --part {part}` again", path.display())]
    DamagedPart {
        /// The file.
        path: PathBuf,
        /// The part.
        part: WorkPart,
        /// The command that makes it.
        command: &'static str,
    },
    /// A manifest of shards, or the header of a transformer router, can't be used.
    #[error("{}: {problem}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The problem and the remedy.
        problem: String,
    },
    /// A path has not scored the reserved documents.
    #[error("{} holds no scores of path {path} for the run's reserved documents: run `dipaco route score`", folder.display())]
    NoScores {
        /// The path.
        path: PathId,
        /// The searched folder.
        folder: PathBuf,
    },
    /// A file of scores is damaged.
    #[error("{} is damaged: delete it, and run `dipaco route score` again", file.display())]
    ScoresDamaged {
        /// The file.
        file: PathBuf,
    },
    /// The caller cancelled the operation.
    #[error("stopped on request; nothing was published")]
    Cancelled,
}

/// Names of the first few parts, and the number of the others.
fn list_parts(parts: &[WorkPart]) -> String {
    const SHOWN: usize = 8;
    let mut text = parts.iter().take(SHOWN).map(|part| format!("part {part}")).collect::<Vec<_>>().join(", ");
    if parts.len() > SHOWN {
        text.push_str(&format!(" and {} more", parts.len() - SHOWN));
    }
    text
}

/// The first few numbers of a list, and the number of the others.
fn list(numbers: &[u32]) -> String {
    const SHOWN: usize = 8;
    let mut text = numbers.iter().take(SHOWN).map(u32::to_string).collect::<Vec<_>>().join(", ");
    if numbers.len() > SHOWN {
        text.push_str(&format!(" and {} more", numbers.len() - SHOWN));
    }
    text
}
