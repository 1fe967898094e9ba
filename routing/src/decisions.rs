//! Decisions about documents: the shards of each document of a token set, and the documents reserved for the router.
//!
//! Decisions are small and take long, because the seed model reads the beginning of every document. So a stopped run keeps
//! them, section by section.

use std::ops::Range;
use std::path::Path;

use dipaco_shards::{TokenSet, WorkPart};
use dipaco_topology::PathId;

use crate::features::{FeatureExtractor, Featurizer};
use crate::part_file::{MISSING_COMMAND, PartFiles};
use crate::progress::ProgressFn;
use crate::{Router, RoutingError, is_router_document};

/// Name of the folder of decisions in the folder of the shards.
const FOLDER: &str = "parts";
/// Least number of frames of a section.
const SECTION_FRAMES: u64 = 64;
/// Largest number of sections, and so of parts of the work.
const SECTIONS: u64 = 1024;
/// Largest number of token files of all sections and paths. An evaluation reads the validation files of all paths and
/// keeps at most half as many open: more files would be opened again and again.
const SECTION_FILES: u64 = 1 << 15;
/// Path number in the record of a document that is reserved for the router.
const RESERVED: u32 = u32::MAX;
/// Bytes of a path and its score in a record.
const CHOICE: usize = 8;

/// The choice of documents that are reserved for the router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reserve {
    pub(crate) share: f64,
    pub(crate) seed: u64,
}

/// The decision about a document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// It goes to the shards of these paths, best first, each with its score.
    Paths(Vec<(PathId, f32)>),
    /// It is reserved for the router and goes to no shard.
    Reserved,
}

/// Decides about the documents of a token set.
pub(crate) struct Decider<'a> {
    pub(crate) model: &'a dyn FeatureExtractor,
    pub(crate) router: &'a Router,
    pub(crate) file: &'a TokenSet,
    /// Number of shards of a document.
    pub(crate) overlap: usize,
    pub(crate) reserve: Option<Reserve>,
    files: PartFiles,
    /// Inputs and settings of the decisions.
    inputs: serde_json::Value,
    /// Number of sections.
    sections: u32,
}

/// Number of sections of a text of `frames` frames for `paths` paths.
fn section_count(frames: u64, paths: u32) -> u32 {
    let most = (SECTION_FILES / u64::from(paths.max(1))).clamp(1, SECTIONS);
    (frames / SECTION_FRAMES).clamp(1, most) as u32
}

impl<'a> Decider<'a> {
    pub(crate) fn new(
        model: &'a dyn FeatureExtractor,
        router: &'a Router,
        file: &'a TokenSet,
        overlap: usize,
        reserve: Option<Reserve>,
        folder: &Path,
    ) -> Self {
        let inputs = serde_json::json!({
            "router": router.hash(),
            "tokens": file.content_hash(),
            "overlap": overlap,
            "reserve": reserve.map(|reserve| (reserve.share, reserve.seed)),
        });
        let batch = router.fitted_on().config.batch_documents;
        let (bytes, documents) = (overlap * CHOICE, file.documents());
        let files =
            PartFiles::new(folder.join(FOLDER), inputs.clone(), bytes, batch, documents, MISSING_COMMAND)
                .on(model.device());
        let sections = section_count(documents.div_ceil(batch.max(1) as u64), router.paths());
        Self { model, router, file, overlap, reserve, files, inputs, sections }
    }

    /// Files of the decisions of each section, kept until its shards are there.
    pub(crate) fn files(&self) -> &PartFiles {
        &self.files
    }

    /// Inputs and settings of the decisions.
    pub(crate) fn inputs(&self) -> &serde_json::Value {
        &self.inputs
    }

    /// The sections in the order of their documents.
    pub(crate) fn sections(&self) -> impl Iterator<Item = WorkPart> + use<> {
        WorkPart::new(1, self.sections).unwrap_or_default().all()
    }

    /// Decides about the documents of a section that have no decision yet.
    pub(crate) fn decide(
        &self,
        section: WorkPart,
        progress: &mut ProgressFn<'_>,
    ) -> Result<(), RoutingError> {
        let featurizer = self.featurizer()?;
        self.files.compute(section, progress, &mut |documents| self.batch(&featurizer, documents))?;
        Ok(())
    }

    fn featurizer(&self) -> Result<Featurizer<'a>, RoutingError> {
        let batch_documents = self.router.fitted_on().config.batch_documents;
        let featurizer =
            Featurizer { model: self.model, prefix_tokens: self.router.prefix_tokens(), batch_documents };
        featurizer.check()?;
        Ok(featurizer)
    }

    /// Records of a frame of documents.
    fn batch(&self, featurizer: &Featurizer<'_>, documents: Range<u64>) -> Result<Vec<u8>, RoutingError> {
        let reserved = |document: u64| {
            self.reserve.is_some_and(|Reserve { share, seed }| {
                is_router_document(&self.file.document(document).to_vec(), seed, share)
            })
        };
        // Reserved documents need no features, which are the expensive part.
        let routed: Vec<u64> = documents.clone().filter(|&document| !reserved(document)).collect();
        let features = if routed.is_empty() { Vec::new() } else { featurizer.batch(self.file, &routed)? };
        let mut features = routed.iter().zip(features.chunks_exact(self.router.dimension())).peekable();
        let mut bytes =
            Vec::with_capacity((documents.end - documents.start) as usize * self.overlap * CHOICE);
        for document in documents.clone() {
            match features.next_if(|(routed, _)| **routed == document) {
                Some((_, features)) => {
                    let ranked = self.router.ranked(features, self.overlap)?;
                    for (path, score) in ranked {
                        bytes.extend_from_slice(&path.0.to_le_bytes());
                        bytes.extend_from_slice(&score.to_le_bytes());
                    }
                }
                None => {
                    for _ in 0..self.overlap {
                        bytes.extend_from_slice(&RESERVED.to_le_bytes());
                        bytes.extend_from_slice(&0f32.to_le_bytes());
                    }
                }
            }
        }
        self.file.release(documents);
        Ok(bytes)
    }

    /// Passes the decisions about a section to `visit` in the order of the documents.
    pub(crate) fn for_each(
        &self,
        section: WorkPart,
        visit: &mut dyn FnMut(u64, Decision) -> Result<(), RoutingError>,
    ) -> Result<(), RoutingError> {
        self.files.read(section, &mut |first, frame| {
            for (document, record) in (first..).zip(frame.chunks_exact(self.overlap * CHOICE)) {
                visit(document, self.decision(record, document)?)?;
            }
            Ok(())
        })
    }

    fn decision(&self, record: &[u8], document: u64) -> Result<Decision, RoutingError> {
        let mut choices = Vec::with_capacity(self.overlap);
        for &[a, b, c, d, e, f, g, h] in record.as_chunks::<CHOICE>().0 {
            let path = u32::from_le_bytes([a, b, c, d]);
            if path == RESERVED {
                return Ok(Decision::Reserved);
            }
            if path >= self.router.paths() {
                return Err(RoutingError::Mismatch {
                    what: "a decision and the router's number of paths",
                    expected: format!("a path below {}", self.router.paths()),
                    actual: format!("{path} for document {document} in {}", self.files.folder().display()),
                    remedy: "remove that folder and run route assign again",
                });
            }
            choices.push((PathId(path), f32::from_le_bytes([e, f, g, h])));
        }
        Ok(Decision::Paths(choices))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_follow_the_text_and_the_paths_within_bounds() {
        assert_eq!([0, 63, 128, 200].map(|frames| section_count(frames, 4)), [1, 1, 2, 3]);
        assert_eq!([1, 16, 256, 1 << 20].map(|paths| section_count(1 << 40, paths)), [1024, 1024, 128, 1]);
    }
}
