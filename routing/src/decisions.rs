//! Decisions about documents: the shards of each document of a token file, and the documents reserved for the router.
//!
//! Decisions are small and take long, because the seed model reads the beginning of every document. So machines divide the
//! decisions, and a stopped run keeps them; one machine then writes the shards from them.

use std::ops::Range;
use std::path::Path;

use dipaco_shards::{TokenFile, WorkPart};
use dipaco_topology::PathId;

use crate::features::{FeatureExtractor, Featurizer};
use crate::part_file::PartFiles;
use crate::progress::ProgressFn;
use crate::{Router, RoutingError, is_router_document};

/// Name of the folder of decisions in the folder of the shards.
const FOLDER: &str = "parts";
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

/// Decides about the documents of a token file.
pub(crate) struct Decider<'a> {
    pub(crate) model: &'a dyn FeatureExtractor,
    pub(crate) router: &'a Router,
    pub(crate) file: &'a TokenFile,
    /// Number of shards of a document.
    pub(crate) overlap: usize,
    pub(crate) reserve: Option<Reserve>,
    files: PartFiles,
}

impl<'a> Decider<'a> {
    pub(crate) fn new(
        model: &'a dyn FeatureExtractor,
        router: &'a Router,
        file: &'a TokenFile,
        overlap: usize,
        reserve: Option<Reserve>,
        folder: &Path,
    ) -> Self {
        let of = serde_json::json!({
            "router": router.hash(),
            "tokens": file.content_hash(),
            "overlap": overlap,
            "reserve": reserve.map(|reserve| (reserve.share, reserve.seed)),
        });
        let batch = router.fitted_on().config.batch_documents;
        let (bytes, documents) = (overlap * CHOICE, file.documents());
        let files = PartFiles::new(folder.join(FOLDER), of, bytes, batch, documents, "dipaco route assign");
        Self { model, router, file, overlap, reserve, files }
    }

    /// Files of the decisions, kept until the shards are there.
    pub(crate) fn files(&self) -> &PartFiles {
        &self.files
    }

    /// Decides about the documents of a part that have no decision yet; returns the number of documents of the part.
    pub(crate) fn decide(&self, part: WorkPart, progress: &mut ProgressFn<'_>) -> Result<u64, RoutingError> {
        let featurizer = self.featurizer()?;
        self.files.compute(part, progress, &mut |documents| self.batch(&featurizer, documents))
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

    /// The decisions about all documents. Undivided work is completed by this call.
    ///
    /// # Errors
    ///
    /// [`RoutingError::MissingParts`] if the work was divided and parts are missing.
    pub(crate) fn all(&self, progress: &mut ProgressFn<'_>) -> Result<Decisions<'_>, RoutingError> {
        let featurizer = self.featurizer()?;
        let parts = self.files.all(progress, &mut |documents| self.batch(&featurizer, documents))?;
        Ok(Decisions { parts, files: &self.files, overlap: self.overlap, paths: self.router.paths() })
    }
}

/// The decisions about all documents.
pub(crate) struct Decisions<'a> {
    parts: Vec<WorkPart>,
    files: &'a PartFiles,
    overlap: usize,
    paths: u32,
}

impl Decisions<'_> {
    /// Passes the decisions to `visit` in the order of the documents; returns their hash.
    pub(crate) fn for_each(
        &self,
        visit: &mut dyn FnMut(u64, Decision) -> Result<(), RoutingError>,
    ) -> Result<String, RoutingError> {
        let mut hasher = blake3::Hasher::new();
        for &part in &self.parts {
            self.files.read(part, &mut |first, frame| {
                hasher.update(frame);
                for (document, record) in (first..).zip(frame.chunks_exact(self.overlap * CHOICE)) {
                    visit(document, self.decision(record, document)?)?;
                }
                Ok(())
            })?;
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    fn decision(&self, record: &[u8], document: u64) -> Result<Decision, RoutingError> {
        let mut choices = Vec::with_capacity(self.overlap);
        for &[a, b, c, d, e, f, g, h] in record.as_chunks::<CHOICE>().0 {
            let path = u32::from_le_bytes([a, b, c, d]);
            if path == RESERVED {
                return Ok(Decision::Reserved);
            }
            if path >= self.paths {
                return Err(RoutingError::Mismatch {
                    what: "a decision and the router's number of paths",
                    expected: format!("a path below {}", self.paths),
                    actual: format!("{path} for document {document} in {}", self.files.folder().display()),
                    remedy: "remove that folder and run route assign again",
                });
            }
            choices.push((PathId(path), f32::from_le_bytes([e, f, g, h])));
        }
        Ok(Decision::Paths(choices))
    }
}
