//! What can go wrong while routing.

use std::path::PathBuf;

use dipaco_shards::Part;

/// An error of another package, kept as the source of ours.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why routing failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// A value of the configuration can't be used.
    #[error("routing.{key} = {value}: {problem}")]
    Config {
        /// The key below `[routing]`.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it, and what would be right.
        problem: &'static str,
    },
    /// A buffer does not have the length that its shape asks for.
    #[error("{what}: expected {expected} values, got {actual}")]
    Shape {
        /// Which buffer.
        what: &'static str,
        /// The length that was needed.
        expected: usize,
        /// The length that came.
        actual: usize,
    },
    /// A feature or a point is NaN or infinite.
    #[error(
        "{what} {index} has a value that is not finite (component {component}): the seed model's weights are damaged or \
         its training diverged; check its validation loss, or pretrain it again"
    )]
    NotFinite {
        /// Which list the point belongs to.
        what: &'static str,
        /// The point's place in the list.
        index: u64,
        /// The place in the point.
        component: usize,
    },
    /// There are fewer different points than clusters.
    #[error(
        "k-means: {clusters} clusters need as many different points, but of {points} points only {distinct} differ: use \
         fewer paths, more text or a larger routing.sample_documents"
    )]
    TooFewPoints {
        /// How many clusters were asked for.
        clusters: usize,
        /// How many points there are.
        points: usize,
        /// How many of them differ.
        distinct: usize,
    },
    /// All points are the same.
    #[error(
        "k-means: all {points} points are the same: the seed model is untrained or damaged, or the text is one document \
         over and over; check the seed's validation loss and the text"
    )]
    Identical {
        /// How many points there are.
        points: usize,
    },
    /// There are fewer documents or targets than a classifier needs.
    #[error("discriminative router: {problem}")]
    Targets {
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A document has no token to route by.
    #[error("document {document} is empty: a router needs at least one token; run prepare again")]
    EmptyDocument {
        /// The document's number in its file.
        document: u64,
    },
    /// The model failed to compute features.
    #[error("features of documents from {first_document} on could not be computed")]
    Features {
        /// The first document of the batch.
        first_document: u64,
        /// The model's error.
        #[source]
        source: Source,
    },
    /// The bytes are no router, or a damaged one.
    #[error("this is no usable router: {problem}")]
    Artefact {
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Things that have to belong together do not.
    #[error("{what} does not match: expected {expected}, got {actual}; {remedy}")]
    Mismatch {
        /// What was compared.
        what: &'static str,
        /// The value that was needed.
        expected: String,
        /// The value that came.
        actual: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A path's shard holds no document.
    #[error(
        "{} of {} paths got no document (paths {}): raise routing.least_share, use fewer paths, more text, another \
         routing.seed, or fit the router on this text",
        paths.len(),
        total,
        list(paths)
    )]
    EmptyPaths {
        /// The paths without a document.
        paths: Vec<u32>,
        /// How many paths there are.
        total: u32,
    },
    /// A file could not be read or written.
    #[error("{}: could not {action}", path.display())]
    Io {
        /// What was being done.
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
        /// Which one, and what for.
        what: String,
        /// Why.
        #[source]
        source: dipaco_shards::ShardsError,
    },
    /// Parts of a divided computation have not been done, or not been copied here.
    #[error(
        "{}: {} of {} parts are missing or not finished ({}): run `{command} --part {}` with this run, or copy what such a \
         run wrote in that folder here; remove the folder to do everything in one go",
        folder.display(), parts.len(), parts.first().map_or(0, |part| part.count()), list_parts(parts),
        parts.first().copied().unwrap_or_default()
    )]
    MissingParts {
        /// Where the parts put what they make.
        folder: PathBuf,
        /// The parts that are missing.
        parts: Vec<Part>,
        /// The command that makes them.
        command: &'static str,
    },
    /// What a part has made was changed afterwards.
    #[error("{} is damaged: copy it again from where it is whole, or run `{command} --part {part}` again", path.display())]
    DamagedPart {
        /// The file.
        path: PathBuf,
        /// Its part.
        part: Part,
        /// The command that makes it.
        command: &'static str,
    },
    /// A manifest of shards can't be used.
    #[error("{}: {problem}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The caller asked to stop.
    #[error("stopped on request; nothing was published")]
    Cancelled,
}

/// The first few parts of a list, and how many more there are.
fn list_parts(parts: &[Part]) -> String {
    const SHOWN: usize = 8;
    let mut text = parts.iter().take(SHOWN).map(|part| format!("part {part}")).collect::<Vec<_>>().join(", ");
    if parts.len() > SHOWN {
        text.push_str(&format!(" and {} more", parts.len() - SHOWN));
    }
    text
}

/// The first few numbers of a list, and how many more there are.
fn list(numbers: &[u32]) -> String {
    const SHOWN: usize = 8;
    let mut text = numbers.iter().take(SHOWN).map(u32::to_string).collect::<Vec<_>>().join(", ");
    if numbers.len() > SHOWN {
        text.push_str(&format!(" and {} more", numbers.len() - SHOWN));
    }
    text
}
