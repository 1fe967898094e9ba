//! Dividing a token set into one shard per path.

mod sections;
mod tally;

use std::collections::BTreeSet;
use std::error::Error as _;
use std::path::Path;

use dipaco_shards::{ShardsError, TokenSet, TokenSetManifest, WorkPart};
use dipaco_topology::PathId;

use crate::advice::better_division;
use crate::decisions::{Decider, Reserve};
use crate::features::FeatureExtractor;
use crate::progress::ProgressFn;
use crate::shard_set::{Reserved, Shard, ShardManifest, ShardSet};
use crate::{Router, RoutingError};
use sections::{SectionRecord, Sections, ShardTarget};
use tally::Tally;

/// A shard larger than the mean by this factor causes a warning.
const DOMINATING: f64 = 4.0;

/// Result of [`Assignment::run`].
#[derive(Clone, Debug)]
pub struct Assigned {
    /// The shards.
    pub shards: ShardSet,
    /// True if the shards were there already, undamaged, and made from the same text by the same router; they stayed as they
    /// were then.
    pub skipped: bool,
}

/// The division of a token set among the paths, into `path-000.json` and so on in a folder.
///
/// Each document goes to its best path, or to several with [`Self::overlap`], in the order of the corpus. `shards.json` is
/// written last. If the folder already holds the shards of the same text and router, they are read through; undamaged ones
/// stay as they are, and damaged ones are made again.
///
/// The text is divided in sections of documents. For its decisions the model reads the beginning of every document; then
/// the section's documents go to one token file per path, which stay where they are: the shard of a path lists them. The
/// folder `parts` keeps decisions and records of finished sections until the shards are there: the next call continues a
/// call that was stopped or found the disk full, and machines can share the work ([`Self::part`]). Shards are the same
/// whatever the number of parts, threads and interruptions.
pub struct Assignment<'a> {
    model: &'a dyn FeatureExtractor,
    seed_hash: &'a str,
    router: &'a Router,
    file: &'a TokenSet,
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
        file: &'a TokenSet,
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

    /// Divides the documents of a part of the sections; returns the number of documents of the part. Finished work is not
    /// repeated. Any number of machines may do their parts at the same time, in one folder or in copies of it;
    /// [`Self::run`] lists the files of all parts once they are in one folder.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn part(&self, part: WorkPart, progress: &mut ProgressFn<'_>) -> Result<u64, RoutingError> {
        self.check()?;
        let sections = self.sections();
        if self.finished(progress)?.is_none() {
            ShardSet::retract(self.folder)?;
            sections.make(part, progress)?;
        }
        Ok(sections.of(part).map(|section| sections.documents(section)).sum())
    }

    /// Divides all documents that no part has divided, and publishes the shards. Once all sections are there, the time
    /// to list them does not grow with the text. Paths without documents get an empty shard and a warning in the log: see
    /// [`ShardSet::empty_paths`] and [`ShardSet::check_trainable`].
    ///
    /// # Errors
    ///
    /// The router was made for another seed model or tokenizer, a document is empty, features can't be computed or are not
    /// finite, parts are missing, files can't be written, or [`RoutingError::Cancelled`]. A half-written folder has no
    /// manifest.
    pub fn run(&self, progress: &mut ProgressFn<'_>) -> Result<Assigned, RoutingError> {
        self.check()?;
        let sections = self.sections();
        if let Some(shards) = self.finished(progress)? {
            sections.decider.files().remove()?;
            return Ok(Assigned { shards, skipped: true });
        }
        // From here on shards are replaced, and the old manifest must not vouch for them.
        ShardSet::retract(self.folder)?;
        let records = sections.records(progress)?;
        let shards = self.publish(&sections, &records)?;
        sections.decider.files().remove()?;
        self.warn(&shards);
        Ok(Assigned { shards, skipped: false })
    }

    /// Lists the files of all sections, writes the manifest, and removes other files of shards.
    fn publish(&self, sections: &Sections<'_>, records: &[SectionRecord]) -> Result<ShardSet, RoutingError> {
        let mut kept = BTreeSet::new();
        let (mut shards, mut reserved) = (Vec::new(), None);
        for (at, target) in sections.targets().enumerate() {
            let mut list = TokenSetManifest::new(&sections.info(target));
            let mut tally = Tally::default();
            for (section, record) in sections.decider.sections().zip(records) {
                let Some(written) = record.written.get(at).filter(|written| written.tally.documents > 0)
                else {
                    continue;
                };
                let file = target.file(section);
                kept.insert(file.clone());
                list.push(self.folder, file, &written.content_hash).map_err(unlisted)?;
                tally.append(&written.tally);
            }
            if target == ShardTarget::Router && self.reserve.is_none() {
                continue;
            }
            let name = format!("{}.json", target.name());
            list.publish(&self.folder.join(&name)).map_err(unlisted)?;
            kept.insert(name);
            let Tally { documents, tokens, score, nearest } = tally;
            let content_hash = list.content_hash();
            match target {
                ShardTarget::Shard(path) => {
                    let bytes = list.files.iter().map(|file| file.bytes).sum();
                    let path = PathId(path);
                    shards.push(Shard { path, documents, tokens, bytes, content_hash, score, nearest });
                }
                ShardTarget::Router => {
                    reserved = self.reserve.map(|Reserve { share, seed }| Reserved {
                        documents,
                        tokens,
                        content_hash,
                        share,
                        seed,
                    });
                }
            }
        }
        ShardSet::remove_others(self.folder, &kept)?;
        let devices: BTreeSet<&String> = records.iter().flat_map(|record| &record.devices).collect();
        let devices = devices.into_iter().cloned().collect();
        let manifest = ShardManifest::new(self.router, self.file, self.overlap as u32, shards, reserved);
        let manifest = ShardManifest { devices, ..manifest };
        ShardSet::publish(self.folder, manifest)
    }

    fn check(&self) -> Result<(), RoutingError> {
        self.router.check_seed(self.model.dimension(), self.seed_hash)?;
        self.router.check_tokenizer(self.file.tokenizer_hash())
    }

    fn sections(&self) -> Sections<'a> {
        let decider =
            Decider::new(self.model, self.router, self.file, self.overlap, self.reserve, self.folder);
        Sections { decider, folder: self.folder }
    }

    /// The shards in the folder, if they were made from this text by this router with these options, and are undamaged.
    fn finished(&self, progress: &mut ProgressFn<'_>) -> Result<Option<ShardSet>, RoutingError> {
        let Ok(known) = ShardSet::open(self.folder) else { return Ok(None) };
        let manifest = known.manifest();
        let reserved = manifest.reserved.as_ref().map(|reserved| (reserved.share, reserved.seed));
        let same = manifest.router_hash == self.router.hash()
            && manifest.tokens_hash == self.file.content_hash()
            && manifest.overlap as usize == self.overlap
            && reserved == self.reserve.map(|reserve| (reserve.share, reserve.seed))
            && known.paths() == self.router.paths();
        if !same {
            return Ok(None);
        }
        match known.verify(progress) {
            Ok(()) => Ok(Some(known)),
            Err(RoutingError::Cancelled) => Err(RoutingError::Cancelled),
            Err(error) => {
                let folder = self.folder.display();
                tracing::warn!(%folder, source = ?error.source(), "shards can't be used and are made again: {error}");
                Ok(None)
            }
        }
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
            let better = better_division(self.router.kind(), self.router.fitted_on().config.features);
            tracing::warn!(
                path = %largest.path, documents = largest.documents, %folder,
                "the largest shard has {times:.1} times the mean: one kind of text dominates; more paths may divide it better, \
                 or {better}"
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
    file: &TokenSet,
    folder: &Path,
    progress: &mut ProgressFn<'_>,
) -> Result<Assigned, RoutingError> {
    Assignment::new(model, seed_hash, router, file, folder).run(progress)
}

fn unlisted(source: ShardsError) -> RoutingError {
    RoutingError::Tokens { what: "could not list the files of a shard".to_owned(), source }
}

#[cfg(test)]
mod tests;
