//! Writing the shards from the decisions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dipaco_shards::{ShardsError, TokenFile, TokenFileInfo, TokenFileSummary, TokenFileWriter};
use dipaco_topology::PathId;

use crate::RoutingError;
use crate::decisions::{Decision, Decisions};
use crate::progress::{ProgressFn, RoutingProgress, report};
use crate::shard_set::{ROUTER_DOCUMENTS, shard_file_name};

/// Shards that are written at once: each holds two files and two buffers.
pub(super) const WRITERS: usize = 128;
/// Documents between two reports.
const REPORT_EVERY: u64 = 4096;

/// A file for documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ShardTarget {
    Shard(u32),
    Router,
}

impl ShardTarget {
    fn name(self) -> String {
        match self {
            Self::Shard(path) => shard_file_name(PathId(path)),
            Self::Router => ROUTER_DOCUMENTS.to_owned(),
        }
    }
}

/// Finished shards.
pub(super) struct WrittenShards {
    /// The shards in the order of the paths.
    pub(super) shards: Vec<TokenFileSummary>,
    /// The documents that are reserved for the router, if there are any.
    pub(super) router_documents: Option<TokenFileSummary>,
}

/// Copies documents into the files of the decisions.
pub(super) struct ShardWriting<'a> {
    pub(super) file: &'a TokenFile,
    pub(super) folder: &'a Path,
    pub(super) decisions: &'a Decisions<'a>,
    /// Origin of the shards: router, text and decisions. Each shard adds its path.
    pub(super) origin: serde_json::Value,
}

impl ShardWriting<'_> {
    /// Writes the shards with the given numbers of documents (P) and, if there are any, the router's documents. Files that
    /// an earlier call has finished are kept.
    pub(super) fn write(
        &self,
        documents: &[u64],
        router_documents: Option<u64>,
        progress: &mut ProgressFn<'_>,
    ) -> Result<WrittenShards, RoutingError> {
        let wanted: Vec<(ShardTarget, u64)> = (0..)
            .map(ShardTarget::Shard)
            .zip(documents.iter().copied())
            .chain(router_documents.map(|documents| (ShardTarget::Router, documents)))
            .collect();
        let mut done = BTreeMap::new();
        let mut left = Vec::new();
        for (target, documents) in wanted {
            match self.finished(target, documents) {
                Some(summary) => drop(done.insert(target, summary)),
                None => left.push(target),
            }
        }
        // Many paths need several passes over the text, because the open files of a process are limited.
        let passes = left.len().div_ceil(WRITERS) as u64;
        let total = self.file.documents() * passes;
        for (pass, targets) in (0..).zip(left.chunks(WRITERS)) {
            let before = pass * self.file.documents();
            let mut told = |at| report(progress, RoutingProgress::Shards { done: before + at, total });
            self.pass(targets, &mut done, &mut told)?;
        }
        let router_documents = done.remove(&ShardTarget::Router);
        Ok(WrittenShards { shards: done.into_values().collect(), router_documents })
    }

    fn path(&self, target: ShardTarget) -> PathBuf {
        self.folder.join(target.name())
    }

    fn info(&self, target: ShardTarget) -> TokenFileInfo {
        let mut origin = self.origin.clone();
        origin["path"] = match target {
            ShardTarget::Shard(path) => path.into(),
            ShardTarget::Router => "router".into(),
        };
        TokenFileInfo { origin: origin.to_string(), ..self.file.metadata().info.clone() }
    }

    /// Summary of a target's file, if it has the content that would be written.
    fn finished(&self, target: ShardTarget, documents: u64) -> Option<TokenFileSummary> {
        let path = self.path(target);
        let file = TokenFile::open(&path).ok()?;
        let metadata = file.metadata();
        if metadata.documents != documents || metadata.info != self.info(target) || file.verify().is_err() {
            return None;
        }
        let bytes = std::fs::metadata(&path).ok()?.len();
        let (tokens, content_hash) = (metadata.tokens, metadata.content_hash.clone());
        Some(TokenFileSummary { path, documents, tokens, bytes, content_hash })
    }

    /// Writes some targets in one pass over the text.
    fn pass(
        &self,
        targets: &[ShardTarget],
        done: &mut BTreeMap<ShardTarget, TokenFileSummary>,
        told: &mut dyn FnMut(u64) -> Result<(), RoutingError>,
    ) -> Result<(), RoutingError> {
        let mut writers = BTreeMap::new();
        for &target in targets {
            let writer = TokenFileWriter::create(self.path(target), self.info(target));
            writers.insert(target, writer.map_err(failed(target))?);
        }
        let mut released = 0;
        self.decisions.for_each(&mut |document, decision| {
            if document.is_multiple_of(REPORT_EVERY) {
                told(document)?;
                self.file.release(released..document);
                released = document;
            }
            let targets = match decision {
                Decision::Paths(choices) => {
                    choices.iter().map(|(path, _)| ShardTarget::Shard(path.0)).collect()
                }
                Decision::Reserved => vec![ShardTarget::Router],
            };
            for target in targets {
                if let Some(writer) = writers.get_mut(&target) {
                    writer.push_document(&self.file.document(document).to_vec()).map_err(failed(target))?;
                }
            }
            Ok(())
        })?;
        self.file.release(released..self.file.documents());
        told(self.file.documents())?;
        for (target, writer) in writers {
            done.insert(target, writer.finish().map_err(failed(target))?);
        }
        Ok(())
    }
}

fn failed(target: ShardTarget) -> impl FnOnce(ShardsError) -> RoutingError {
    move |source| RoutingError::Tokens {
        what: format!(
            "could not write {}; finished files are kept, and the same command continues behind them",
            target.name()
        ),
        source,
    }
}
