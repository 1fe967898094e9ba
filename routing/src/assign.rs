//! Dividing a token file into one shard per path.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use dipaco_shards::{ShardsError, TokenFile, TokenFileInfo, TokenFileWriter};
use dipaco_topology::PathId;

use crate::features::{FeatureExtractor, Featurizer};
use crate::progress::{Progress, ProgressFn, report};
use crate::shard_set::{Example, Shard, ShardManifest, ShardSet};
use crate::{Router, RoutingError};

/// Shards that are written at once: each one in progress holds two files and two buffers.
const WRITERS: u32 = 128;
/// Documents nearest to their centroid that the manifest keeps for each path.
const EXAMPLES: usize = 16;
/// Documents between two reports while shards are written.
const REPORT_EVERY: u64 = 4096;

/// What [`assign()`] did.
#[derive(Clone, Debug)]
pub struct Assigned {
    /// The shards.
    pub shards: ShardSet,
    /// Whether they were already there, made of the same text by the same router, so that nothing was done.
    pub skipped: bool,
}

/// Divides `file` into one token file per path, `path-000.h5` and so on, in `folder`, which is made if need be.
///
/// Each document goes to the path that `router` gives it, in the order of the corpus, and to no other. `shards.json` is
/// written last; when the folder already holds the shards of the same text and router, nothing is done. Paths without
/// documents get an empty shard and a warning in the log: see [`ShardSet::empty_paths`] and
/// [`ShardSet::check_trainable`]. Memory is bounded whatever the number of documents and paths.
///
/// # Errors
///
/// A router that was made for another seed model or tokenizer, an empty document, features that can't be computed or are
/// not finite, files that can't be written, or [`RoutingError::Cancelled`]. A folder that is left half written has no
/// manifest.
pub fn assign(
    model: &dyn FeatureExtractor,
    seed_hash: &str,
    router: &Router,
    file: &TokenFile,
    folder: &Path,
    progress: &mut ProgressFn<'_>,
) -> Result<Assigned, RoutingError> {
    router.check_seed(model.dimension(), seed_hash)?;
    router.check_tokenizer(file.tokenizer_hash())?;
    if let Some(shards) = finished(router, file, folder) {
        return Ok(Assigned { shards, skipped: true });
    }
    let io = |action| move |source| RoutingError::Io { action, path: folder.to_owned(), source };
    std::fs::create_dir_all(folder).map_err(io("create the folder of the shards"))?;

    // The decisions go to a file, so that many shards can be written in several passes without computing features anew.
    let mut decisions = BufWriter::new(tempfile::tempfile_in(folder).map_err(io("create a temporary file"))?);
    let mut tallies = vec![Tally::default(); router.paths() as usize];
    let batch_documents = router.fitted_on().config.batch_documents;
    let featurizer = Featurizer { model, prefix_tokens: router.prefix_tokens(), batch_documents };
    let total = file.documents();
    featurizer.for_each(file, 0..total, total, progress, |documents, features| {
        for (&document, features) in documents.iter().zip(features.chunks_exact(router.dimension())) {
            let (path, squared_distance) = router.nearest(features)?;
            tallies[path.index()].add(document, squared_distance);
            decisions.write_all(&path.0.to_le_bytes()).map_err(io("write a temporary file"))?;
        }
        Ok(())
    })?;
    let mut decisions =
        decisions.into_inner().map_err(|error| io("write a temporary file")(error.into_error()))?;

    ShardSet::retract(folder)?;
    let mut shards = Vec::with_capacity(tallies.len());
    for first in (0..router.paths()).step_by(WRITERS as usize) {
        let paths = first..router.paths().min(first + WRITERS);
        let passes = u64::from(router.paths().div_ceil(WRITERS));
        let done_before = u64::from(first / WRITERS) * total;
        let mut report_written =
            |done| report(progress, Progress::Shards { done: done_before + done, total: passes * total });
        let summaries = write_shards(router, file, folder, &mut decisions, paths, &mut report_written)?;
        shards.extend(summaries.into_iter().map(|(path, summary)| {
            let tally = std::mem::take(&mut tallies[path.index()]);
            Shard {
                path,
                documents: summary.documents,
                tokens: summary.tokens,
                bytes: summary.bytes,
                content_hash: summary.content_hash,
                squared_distance: tally.squared_distance,
                nearest: tally.nearest,
            }
        }));
    }
    ShardSet::remove_others(folder, router.paths())?;
    let shards = ShardSet::publish(folder, ShardManifest::new(router, file, shards))?;
    for path in shards.empty_paths() {
        tracing::warn!(%path, folder = %folder.display(), "path got no document");
    }
    Ok(Assigned { shards, skipped: false })
}

/// The shards in the folder, when they are whole and made of this text by this router.
fn finished(router: &Router, file: &TokenFile, folder: &Path) -> Option<ShardSet> {
    let known = ShardSet::open(folder).ok()?;
    let manifest = known.manifest();
    let same = manifest.router_hash == router.hash() && manifest.tokens_hash == file.content_hash();
    let whole = || (0..known.paths()).all(|path| known.open_shard(PathId(path)).is_ok());
    (same && known.paths() == router.paths() && whole()).then_some(known)
}

/// What is counted of a path's documents while they are assigned.
#[derive(Clone, Debug, Default)]
struct Tally {
    documents: u64,
    squared_distance: f64,
    nearest: Vec<Example>,
}

impl Tally {
    fn add(&mut self, source_document: u64, squared_distance: f64) {
        let document = self.documents;
        self.documents += 1;
        self.squared_distance += squared_distance;
        let place = self.nearest.partition_point(|example| example.squared_distance <= squared_distance);
        if place < EXAMPLES {
            self.nearest.truncate(EXAMPLES - 1);
            self.nearest.insert(place, Example { document, source_document, squared_distance });
        }
    }
}

/// Copies the documents of some paths into their shards.
fn write_shards(
    router: &Router,
    file: &TokenFile,
    folder: &Path,
    decisions: &mut File,
    paths: std::ops::Range<u32>,
    report: &mut dyn FnMut(u64) -> Result<(), RoutingError>,
) -> Result<Vec<(PathId, dipaco_shards::TokenFileSummary)>, RoutingError> {
    let tokens_error = |path: u32| {
        move |source: ShardsError| RoutingError::Tokens {
            what: format!("the shard of path {path} could not be written; nothing was published"),
            source,
        }
    };
    let io =
        |source| RoutingError::Io { action: "read a temporary file back", path: folder.to_owned(), source };
    let mut writers = Vec::with_capacity(paths.len());
    for path in paths.clone() {
        let origin = serde_json::json!({
            "path": path,
            "paths": router.paths(),
            "router": router.hash(),
            "tokens": file.content_hash(),
        });
        let info = TokenFileInfo { origin: origin.to_string(), ..file.metadata().info.clone() };
        let name = folder.join(crate::shard_file_name(PathId(path)));
        writers.push((path, TokenFileWriter::create(name, info).map_err(tokens_error(path))?));
    }
    decisions.seek(SeekFrom::Start(0)).map_err(io)?;
    let mut decided = BufReader::new(decisions);
    for document in 0..file.documents() {
        if document % REPORT_EVERY == 0 {
            report(document)?;
        }
        let mut path = [0; 4];
        decided.read_exact(&mut path).map_err(io)?;
        let path = u32::from_le_bytes(path);
        if let Some((path, writer)) =
            path.checked_sub(paths.start).and_then(|at| writers.get_mut(at as usize))
        {
            writer.push_document(&file.document(document).to_vec()).map_err(tokens_error(*path))?;
        }
    }
    report(file.documents())?;
    writers
        .into_iter()
        .map(|(path, writer)| Ok((PathId(path), writer.finish().map_err(tokens_error(path))?)))
        .collect()
}

#[cfg(test)]
mod tests;
