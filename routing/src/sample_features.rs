//! Features for fitting a router, computed in parts and kept until the router is fitted.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use dipaco_shards::{TokenSet, WorkPart};

use crate::features::{FeatureExtractor, Featurizer};
use crate::fit::sample;
use crate::part_file::PartFiles;
use crate::progress::ProgressFn;
use crate::{RouterConfig, RoutingError};

/// The features of a whole sample.
#[derive(Clone, Debug, PartialEq)]
pub struct FeaturePoints {
    /// (N, D), row-major.
    pub points: Vec<f32>,
    /// Devices that computed them, in the order of their names; none if the features are the same on every device.
    pub devices: Vec<String>,
}

/// Features of an even sample of the documents of a token file, for [`crate::fit_points`].
///
/// A folder keeps the finished features: the next call continues a stopped call, and machines can share the work
/// ([`Self::part`]). The features are the same whatever the number of parts and interruptions.
pub struct SampleFeatures<'a> {
    featurizer: Featurizer<'a>,
    file: &'a TokenSet,
    /// The sample, ascending.
    documents: Vec<u64>,
    files: PartFiles,
}

impl<'a> SampleFeatures<'a> {
    /// The features of `config.sample_documents` documents of `file`, drawn evenly, kept in `folder`. `seed_hash` names
    /// the weights of `model`.
    ///
    /// # Errors
    ///
    /// Unusable settings, or a prefix over the model's context.
    pub fn new(
        model: &'a dyn FeatureExtractor,
        seed_hash: &str,
        file: &'a TokenSet,
        config: &RouterConfig,
        folder: &Path,
    ) -> Result<Self, RoutingError> {
        config.check()?;
        let (prefix_tokens, batch_documents) = (config.prefix_tokens, config.batch_documents);
        let featurizer = Featurizer { model, prefix_tokens, batch_documents };
        featurizer.check()?;
        let documents = sample(file.documents(), config.sample_documents as u64, config.seed);
        let of = serde_json::json!({
            "model": seed_hash,
            "tokens": file.content_hash(),
            "dimension": model.dimension(),
            "features": config.features,
            "blocks": config.feature_blocks,
            "prefix_tokens": prefix_tokens,
            "sample_documents": config.sample_documents,
            "seed": config.seed,
        });
        let (bytes, count) = (model.dimension() * size_of::<f32>(), documents.len() as u64);
        let files =
            PartFiles::new(folder.to_owned(), of, bytes, batch_documents, count, "dipaco route features")
                .on(model.device());
        Ok(Self { featurizer, file, documents, files })
    }

    /// Numbers of the sample's documents in the token file, ascending.
    #[must_use]
    pub fn numbers(&self) -> &[u64] {
        &self.documents
    }

    /// Number of documents in the sample.
    #[must_use]
    pub fn documents(&self) -> u64 {
        self.documents.len() as u64
    }

    /// Computes the missing features of a part; returns the number of documents of the part.
    ///
    /// # Errors
    ///
    /// A document is empty, features can't be computed or are not finite, the disk is full, or
    /// [`RoutingError::Cancelled`].
    pub fn part(&self, part: WorkPart, progress: &mut ProgressFn<'_>) -> Result<u64, RoutingError> {
        self.files.compute(part, progress, &mut |frame| self.batch(frame))
    }

    /// Records of a frame of the sample.
    fn batch(&self, frame: Range<u64>) -> Result<Vec<u8>, RoutingError> {
        let documents = &self.documents[frame.start as usize..frame.end as usize];
        let features = self.featurizer.batch(self.file, documents)?;
        if let (Some(first), Some(last)) = (documents.first(), documents.last()) {
            self.file.release(*first..last + 1);
        }
        Ok(features.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// All features. Undivided work is completed by this call.
    ///
    /// # Errors
    ///
    /// As [`Self::part`], and [`RoutingError::MissingParts`] if the work was divided and parts are missing.
    pub fn all(&self, progress: &mut ProgressFn<'_>) -> Result<FeaturePoints, RoutingError> {
        let parts = self.files.all(progress, &mut |frame| self.batch(frame))?;
        let mut points = Vec::with_capacity(self.documents.len() * self.featurizer.model.dimension());
        let mut devices = BTreeSet::new();
        for part in parts {
            devices.append(&mut self.files.devices(part)?);
            self.files.read(part, &mut |_, frame| {
                points.extend(frame.as_chunks::<4>().0.iter().map(|&value| f32::from_le_bytes(value)));
                Ok(())
            })?;
        }
        Ok(FeaturePoints { points, devices: devices.into_iter().collect() })
    }

    /// Removes the kept features, once the router is fitted.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Io`].
    pub fn remove(&self) -> Result<(), RoutingError> {
        self.files.remove()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::features::silent;
    use crate::testing::{Histogram, corpus};

    #[test]
    fn parts_and_interruptions_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = corpus(folder.path(), 300);
        let config = RouterConfig { sample_documents: 150, batch_documents: 16, ..RouterConfig::default() };
        let features =
            |folder: &Path| SampleFeatures::new(&Histogram, "seed", &file, &config, folder).unwrap();
        let whole = features(&folder.path().join("whole")).all(&mut silent).unwrap();
        assert_eq!(whole.points.len(), 150 * Histogram.dimension());

        let shared = features(&folder.path().join("shared"));
        for part in WorkPart::new(1, 3).unwrap().all() {
            if part.index() == 2 {
                let message = shared.all(&mut silent).unwrap_err().to_string();
                assert!(message.contains("route features --part 2/3"), "{message}");
            }
            let mut told = 0;
            let stopped = shared.part(part, &mut |_| {
                told += 1;
                if told > 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(matches!(stopped, Err(RoutingError::Cancelled)));
            shared.part(part, &mut silent).unwrap();
        }
        assert_eq!(shared.all(&mut silent).unwrap(), whole);
        shared.remove().unwrap();
        assert!(!folder.path().join("shared").exists());
    }
}
