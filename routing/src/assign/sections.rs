//! Sections: the unit of dividing a text. Each section decides about its own documents and writes its own token files, so
//! nobody has to copy the documents of all sections together at the end.
//!
//! Sections depend only on the text, the number of paths and the settings. So the files have the same bytes whatever the
//! number of machines and interruptions. A record, written last, vouches for the files of a section.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dipaco_shards::{ShardsError, TokenFileInfo, TokenFileWriter, WorkPart};
use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};

use super::tally::Tally;
use crate::RoutingError;
use crate::decisions::{Decider, Decision};
use crate::part_file::MISSING_COMMAND;
use crate::progress::{ProgressFn, RoutingProgress, report};
use crate::shard_set::{ROUTER_DOCUMENTS, shard_name};

/// Version of the records.
const VERSION: u32 = 1;
/// Documents between two reports.
const REPORT_EVERY: u64 = 4096;

/// A shard, or the documents that are reserved for the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShardTarget {
    Shard(u32),
    Router,
}

impl ShardTarget {
    /// Its name in the folder of the shards: of its folder, and with `.json` of its list.
    pub(super) fn name(self) -> String {
        match self {
            Self::Shard(path) => shard_name(PathId(path)),
            Self::Router => ROUTER_DOCUMENTS.to_owned(),
        }
    }

    /// Its file of a section.
    pub(super) fn file(self, section: WorkPart) -> String {
        format!("{}/{:05}.h5", self.name(), section.index() - 1)
    }
}

/// A section's documents of one target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Written {
    /// Content hash of the file; empty without documents, and there is no file then.
    pub(super) content_hash: String,
    pub(super) tally: Tally,
}

/// The record of a finished section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SectionRecord {
    /// Hash of everything that decides the outcome.
    key: String,
    /// The part of the work that made the section.
    part: WorkPart,
    /// Devices that computed the features; none if these are the same on every device.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) devices: BTreeSet<String>,
    /// The targets in the order of [`Sections::targets`].
    pub(super) written: Vec<Written>,
}

/// All sections of a text.
pub(super) struct Sections<'a> {
    pub(super) decider: Decider<'a>,
    /// Folder of the shards.
    pub(super) folder: &'a Path,
}

impl Sections<'_> {
    /// The sections of a part of the work.
    pub(super) fn of(&self, part: WorkPart) -> impl Iterator<Item = WorkPart> + use<> {
        let own = move |section: &WorkPart| {
            part.range(u64::from(section.count())).contains(&u64::from(section.index() - 1))
        };
        self.decider.sections().filter(own)
    }

    /// Number of documents of a section.
    pub(super) fn documents(&self, section: WorkPart) -> u64 {
        let range = self.decider.files().range(section);
        range.end - range.start
    }

    /// All targets: the paths, then the router.
    pub(super) fn targets(&self) -> impl Iterator<Item = ShardTarget> {
        (0..self.decider.router.paths()).map(ShardTarget::Shard).chain([ShardTarget::Router])
    }

    /// Description of a target's files.
    pub(super) fn info(&self, target: ShardTarget) -> TokenFileInfo {
        let Decider { router, file, .. } = &self.decider;
        let mut origin = serde_json::json!({
            "paths": router.paths(),
            "router": router.hash(),
            "tokens": file.content_hash(),
        });
        origin["path"] = match target {
            ShardTarget::Shard(path) => path.into(),
            ShardTarget::Router => "router".into(),
        };
        TokenFileInfo { source: String::new(), origin: origin.to_string(), ..file.info().clone() }
    }

    fn record_file(&self, section: WorkPart) -> PathBuf {
        self.decider.files().folder().join(format!("{:05}.json", section.index() - 1))
    }

    fn key(&self, section: WorkPart) -> String {
        let all = serde_json::json!([VERSION, section, self.decider.inputs()]);
        dipaco_files::content_hash(all.to_string().as_bytes())
    }

    /// The record of a section, if it is finished. A record of other inputs or settings does not count.
    fn record(&self, section: WorkPart) -> Option<SectionRecord> {
        let bytes = std::fs::read(self.record_file(section)).ok()?;
        let record: SectionRecord = serde_json::from_slice(&bytes).ok()?;
        (record.key == self.key(section)).then_some(record)
    }

    /// Makes the missing sections of a part of the work.
    pub(super) fn make(&self, part: WorkPart, progress: &mut ProgressFn<'_>) -> Result<(), RoutingError> {
        let (done, missing): (Vec<_>, Vec<_>) =
            self.of(part).partition(|&section| self.record(section).is_some());
        let mut before: u64 = done.iter().map(|&section| self.documents(section)).sum();
        let total = before + missing.iter().map(|&section| self.documents(section)).sum::<u64>();
        self.verify(&missing, progress)?;
        for section in missing {
            let mut of_all = |step| {
                progress(match step {
                    RoutingProgress::Documents { done, .. } => {
                        RoutingProgress::Documents { done: before + done, total }
                    }
                    RoutingProgress::Shards { done, .. } => {
                        RoutingProgress::Shards { done: before + done, total }
                    }
                    other => other,
                })
            };
            self.make_section(section, part, &mut of_all)?;
            before += self.documents(section);
        }
        Ok(())
    }

    /// Checks the content of the text of some sections, because a damaged text would go into the shards.
    fn verify(&self, sections: &[WorkPart], progress: &mut ProgressFn<'_>) -> Result<(), RoutingError> {
        let (Some(&first), Some(&last)) = (sections.first(), sections.last()) else { return Ok(()) };
        let files = self.decider.files();
        let documents = files.range(first).start..files.range(last).end;
        let mut told = |done: u64, total: u64| {
            report(progress, RoutingProgress::Verify { done, total }).map_err(|_| ShardsError::Cancelled)
        };
        self.decider.file.verify_documents(&documents, &mut told).map_err(|source| match source {
            ShardsError::Cancelled => RoutingError::Cancelled,
            source => {
                RoutingError::Tokens { what: "could not read the documents to route".to_owned(), source }
            }
        })
    }

    /// The records of all sections. A call makes the missing sections, unless parts of the work have begun elsewhere.
    ///
    /// # Errors
    ///
    /// [`RoutingError::MissingParts`] if parts have begun and some are missing.
    pub(super) fn records(&self, progress: &mut ProgressFn<'_>) -> Result<Vec<SectionRecord>, RoutingError> {
        let found: Vec<_> = self.decider.sections().map(|section| (section, self.record(section))).collect();
        let parts = found.iter().filter_map(|(_, record)| Some(record.as_ref()?.part));
        if let Some(division) = parts.max_by_key(|part| part.count()).filter(|part| part.count() > 1) {
            let lacks = |part: &WorkPart| {
                let own = part.range(found.len() as u64);
                found
                    .get(own.start as usize..own.end as usize)
                    .unwrap_or_default()
                    .iter()
                    .any(|(_, r)| r.is_none())
            };
            let missing: Vec<WorkPart> = division.all().filter(lacks).collect();
            if !missing.is_empty() {
                let folder = self.decider.files().folder().to_owned();
                return Err(RoutingError::MissingParts { folder, parts: missing, command: MISSING_COMMAND });
            }
        }
        self.make(WorkPart::WHOLE, progress)?;
        let damaged = |section| RoutingError::Manifest {
            path: self.record_file(section),
            problem: "the record of a finished section can't be read; run route assign again".to_owned(),
        };
        self.decider.sections().map(|section| self.record(section).ok_or_else(|| damaged(section))).collect()
    }

    /// Decides about the documents of a section, writes its files, and records it.
    fn make_section(
        &self,
        section: WorkPart,
        part: WorkPart,
        progress: &mut ProgressFn<'_>,
    ) -> Result<(), RoutingError> {
        self.decider.decide(section, progress)?;
        let mut chosen: Vec<(Vec<u64>, Tally)> = self.targets().map(|_| Default::default()).collect();
        let router = chosen.len() - 1;
        self.decider.for_each(section, &mut |document, decision| {
            match decision {
                Decision::Paths(choices) => {
                    for (path, score) in choices {
                        let (documents, tally) = &mut chosen[path.index()];
                        documents.push(document);
                        tally.add(document, score);
                    }
                }
                Decision::Reserved => {
                    chosen[router].0.push(document);
                    chosen[router].1.count();
                }
            }
            Ok(())
        })?;
        let mut written = Vec::with_capacity(chosen.len());
        let mut copied = 0;
        for (target, (documents, tally)) in self.targets().zip(chosen) {
            let mut told = |at: u64| {
                // With overlap a document is copied several times.
                let done = (copied + at).min(self.documents(section).saturating_sub(1));
                report(progress, RoutingProgress::Shards { done, total: self.documents(section) })
            };
            written.push(self.write(target, section, &documents, tally, &mut told)?);
            copied += documents.len() as u64;
        }
        let all = self.documents(section);
        report(progress, RoutingProgress::Shards { done: all, total: all })?;
        let files = self.decider.files();
        let (key, devices) = (self.key(section), files.devices(section)?);
        self.publish(section, &SectionRecord { key, part, devices, written })?;
        files.remove_part(section)
    }

    /// Writes a target's documents of a section. One file after the other, so that the open files and buffers do not grow
    /// with the number of paths.
    fn write(
        &self,
        target: ShardTarget,
        section: WorkPart,
        documents: &[u64],
        mut tally: Tally,
        told: &mut dyn FnMut(u64) -> Result<(), RoutingError>,
    ) -> Result<Written, RoutingError> {
        let path = self.folder.join(target.file(section));
        told(0)?;
        let Some(&first) = documents.first() else { return Ok(Written::default()) };
        let folder = self.folder.join(target.name());
        let io = |source| RoutingError::Io { action: "create the folder", path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(io)?;
        let failed = |source: ShardsError| RoutingError::Tokens {
            what: format!(
                "could not write {}; finished sections are kept, and the same command continues behind them",
                path.display()
            ),
            source,
        };
        let file = self.decider.file;
        let mut writer = TokenFileWriter::create(&path, self.info(target)).map_err(failed)?;
        let mut released = first;
        for (at, &document) in (0..).zip(documents) {
            if u64::is_multiple_of(at, REPORT_EVERY) {
                told(at)?;
                file.release(released..document);
                released = document;
            }
            writer.push_document(&file.document(document).to_vec()).map_err(failed)?;
        }
        file.release(released..documents.last().map_or(released, |last| last + 1));
        let summary = writer.finish().map_err(failed)?;
        tally.tokens = summary.tokens;
        Ok(Written { content_hash: summary.content_hash, tally })
    }

    fn publish(&self, section: WorkPart, record: &SectionRecord) -> Result<(), RoutingError> {
        let path = self.record_file(section);
        let io = |error: serde_json::Error| RoutingError::Io {
            action: "write the record of a section",
            path: path.clone(),
            source: error.into(),
        };
        let json = serde_json::to_vec(record).map_err(io)?;
        Ok(dipaco_files::publish(&path, &json)?)
    }
}
