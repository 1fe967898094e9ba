//! Dividing a token file into one shard per path.

mod shards;

use std::path::Path;

use dipaco_shards::{TokenFile, WorkPart};
use dipaco_topology::PathId;

use crate::decisions::{Decider, Decision, Reserve};
use crate::features::FeatureExtractor;
use crate::progress::ProgressFn;
use crate::shard_set::{Example, Reserved, Shard, ShardManifest, ShardSet};
use crate::{Router, RoutingError};
use shards::{ShardWriting, WrittenShards};

/// Number of examples in the manifest for each path: its documents with the best scores.
const EXAMPLES: usize = 16;
/// A shard larger than the mean by this factor causes a warning.
const DOMINATING: f64 = 4.0;

/// Result of [`Assignment::run`].
#[derive(Clone, Debug)]
pub struct Assigned {
    /// The shards.
    pub shards: ShardSet,
    /// True if the shards were there already, made from the same text by the same router; nothing was done then.
    pub skipped: bool,
}

/// The division of a token file among the paths, into `path-000.h5` and so on in a folder.
///
/// Each document goes to its best path, or to several with [`Self::overlap`], in the order of the corpus. `shards.json` is
/// written last. If the folder already holds the shards of the same text and router, nothing is done.
///
/// For its decisions the model reads the beginning of every document. The folder `parts` keeps the decisions until the
/// shards are there: the next call continues a call that was stopped or found the disk full, and machines can share the
/// work ([`Self::part`]). Shards are the same whatever the number of parts, threads and interruptions. Memory does not grow
/// with the number of documents or paths.
pub struct Assignment<'a> {
    model: &'a dyn FeatureExtractor,
    seed_hash: &'a str,
    router: &'a Router,
    file: &'a TokenFile,
    folder: &'a Path,
    overlap: usize,
    reserve: Option<Reserve>,
}

impl<'a> Assignment<'a> {
    /// The division of `file` by `router` into shards in `folder`, which is created if it is missing. `seed_hash` names the
    /// weights of `model`.
    #[must_use]
    pub fn new(
        model: &'a dyn FeatureExtractor,
        seed_hash: &'a str,
        router: &'a Router,
        file: &'a TokenFile,
        folder: &'a Path,
    ) -> Self {
        Self { model, seed_hash, router, file, folder, overlap: 1, reserve: None }
    }

    /// Gives each document to its `shards` best paths, at most to all paths (top-n sharding, arXiv:2403.10616 §2.4.4).
    #[must_use]
    pub fn overlap(self, shards: usize) -> Self {
        Self { overlap: shards.clamp(1, self.router.paths() as usize), ..self }
    }

    /// Reserves a share of the documents for the router ([`crate::is_router_document`]): they go to `router.h5` in the same
    /// folder instead of the shards.
    #[must_use]
    pub fn reserve(self, share: f64, seed: u64) -> Self {
        Self { reserve: (share > 0.0).then_some(Reserve { share, seed }), ..self }
    }

    /// Decides about a part of the documents and writes no shard; returns the number of documents of the part. Finished
    /// work is not repeated. Any number of machines may do their parts at the same time, in one folder or in copies of it;
    /// [`Self::run`] joins the parts once all files of `parts` are in one folder.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn part(&self, part: WorkPart, progress: &mut ProgressFn<'_>) -> Result<u64, RoutingError> {
        self.check()?;
        let decider = self.decider();
        if self.finished().is_some() {
            let range = decider.files().range(part);
            return Ok(range.end - range.start);
        }
        decider.decide(part, progress)
    }

    /// Decides about all documents that no part has decided, and writes the shards. Paths without documents get an empty
    /// shard and a warning in the log: see [`ShardSet::empty_paths`] and [`ShardSet::check_trainable`].
    ///
    /// # Errors
    ///
    /// The router was made for another seed model or tokenizer, a document is empty, features can't be computed or are not
    /// finite, parts are missing, files can't be written, or [`RoutingError::Cancelled`]. A half-written folder has no
    /// manifest.
    pub fn run(&self, progress: &mut ProgressFn<'_>) -> Result<Assigned, RoutingError> {
        self.check()?;
        let decider = self.decider();
        if let Some(shards) = self.finished() {
            decider.files().remove()?;
            return Ok(Assigned { shards, skipped: true });
        }
        let decisions = decider.all(progress)?;
        let mut tallies = vec![Tally::default(); self.router.paths() as usize];
        let mut reserved = 0;
        let decisions_hash = decisions.for_each(&mut |document, decision| {
            match decision {
                Decision::Paths(choices) => {
                    choices.iter().for_each(|&(path, score)| tallies[path.index()].add(document, score));
                }
                Decision::Reserved => reserved += 1,
            }
            Ok(())
        })?;
        // From here on shards are replaced, and the old manifest must not vouch for them.
        ShardSet::retract(self.folder)?;
        let counts: Vec<u64> = tallies.iter().map(|tally| tally.documents).collect();
        let writing = ShardWriting {
            file: self.file,
            folder: self.folder,
            decisions: &decisions,
            origin: serde_json::json!({
                "paths": self.router.paths(),
                "router": self.router.hash(),
                "tokens": self.file.content_hash(),
                "decisions": decisions_hash,
            }),
        };
        let WrittenShards { shards, router_documents } =
            writing.write(&counts, self.reserve.is_some().then_some(reserved), progress)?;
        let shards = shards
            .into_iter()
            .zip(tallies)
            .zip(0..)
            .map(|((summary, tally), path)| Shard {
                path: PathId(path),
                documents: summary.documents,
                tokens: summary.tokens,
                bytes: summary.bytes,
                content_hash: summary.content_hash,
                score: tally.score,
                nearest: tally.nearest,
            })
            .collect();
        let reserved = self.reserve.zip(router_documents).map(|(reserve, summary)| Reserved {
            documents: summary.documents,
            tokens: summary.tokens,
            content_hash: summary.content_hash,
            share: reserve.share,
            seed: reserve.seed,
        });
        ShardSet::remove_others(self.folder, self.router.paths(), reserved.is_some())?;
        let manifest = ShardManifest::new(self.router, self.file, self.overlap as u32, shards, reserved);
        let shards = ShardSet::publish(self.folder, manifest)?;
        decider.files().remove()?;
        self.warn(&shards);
        Ok(Assigned { shards, skipped: false })
    }

    fn check(&self) -> Result<(), RoutingError> {
        self.router.check_seed(self.model.dimension(), self.seed_hash)?;
        self.router.check_tokenizer(self.file.tokenizer_hash())
    }

    fn decider(&self) -> Decider<'a> {
        Decider::new(self.model, self.router, self.file, self.overlap, self.reserve, self.folder)
    }

    /// The shards in the folder, if they are whole and were made from this text by this router with these options.
    fn finished(&self) -> Option<ShardSet> {
        let known = ShardSet::open(self.folder).ok()?;
        let manifest = known.manifest();
        let reserved = manifest.reserved.as_ref().map(|reserved| (reserved.share, reserved.seed));
        let same = manifest.router_hash == self.router.hash()
            && manifest.tokens_hash == self.file.content_hash()
            && manifest.overlap as usize == self.overlap
            && reserved == self.reserve.map(|reserve| (reserve.share, reserve.seed));
        let whole = || {
            (0..known.paths()).all(|path| known.open_shard(PathId(path)).is_ok())
                && (self.reserve.is_none() || known.open_router_documents().is_ok_and(|file| file.is_some()))
        };
        (same && known.paths() == self.router.paths() && whole()).then_some(known)
    }

    /// Warns of shards that will train badly.
    fn warn(&self, shards: &ShardSet) {
        let folder = self.folder.display();
        for path in shards.empty_paths() {
            tracing::warn!(%path, %folder, "path got no document");
        }
        let documents: u64 = shards.shards().iter().map(|shard| shard.documents).sum();
        let mean = documents as f64 / f64::from(shards.paths());
        if let Some(largest) = shards.shards().iter().max_by_key(|shard| shard.documents)
            && largest.documents as f64 > DOMINATING * mean
        {
            let times = largest.documents as f64 / mean;
            tracing::warn!(
                path = %largest.path, documents = largest.documents, %folder,
                "the largest shard has {times:.1} times the mean: one kind of text dominates; more paths, another \
                 routing.kind or a larger seed model divide it better"
            );
        }
    }
}

/// Divides `file` into one shard per path, each document to one of them: [`Assignment`] without options.
///
/// # Errors
///
/// As [`Assignment::run`].
pub fn assign(
    model: &dyn FeatureExtractor,
    seed_hash: &str,
    router: &Router,
    file: &TokenFile,
    folder: &Path,
    progress: &mut ProgressFn<'_>,
) -> Result<Assigned, RoutingError> {
    Assignment::new(model, seed_hash, router, file, folder).run(progress)
}

/// Counts and best examples of a path's documents.
#[derive(Clone, Debug, Default)]
struct Tally {
    documents: u64,
    score: f64,
    nearest: Vec<Example>,
}

impl Tally {
    fn add(&mut self, source_document: u64, score: f32) {
        let document = self.documents;
        self.documents += 1;
        self.score += f64::from(score);
        // Behind equal scores, so that the first documents stay.
        let place = self.nearest.partition_point(|example| example.score >= score);
        if place < EXAMPLES {
            self.nearest.truncate(EXAMPLES - 1);
            self.nearest.insert(place, Example { document, source_document, score });
        }
    }
}

#[cfg(test)]
mod tests;
