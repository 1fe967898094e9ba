//! The source of the features that a router of this run reads, on the device that the user asks for.

use std::sync::atomic::AtomicBool;

use dipaco_model::{BoxError, Path, TokenRows};
use dipaco_path::{DeviceChoice, PathReader, ReaderSize};
use dipaco_routing::{
    FeatureExtractor, RouterConfig, RouterFeatures, RouterKind, SeedFeatures, TokenVectors,
};
use dipaco_telemetry::Progress;

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;
use crate::weights::Weights;
use crate::{device, labels};

/// The features that a router reads, before their source is opened.
pub(crate) struct WantedFeatures<'a> {
    /// Settings of the fit.
    pub(crate) settings: &'a RouterConfig,
    pub(crate) kind: RouterKind,
    /// Token vectors of features "lsa".
    pub(crate) vectors: Option<TokenVectors>,
    /// The device for features of the seed.
    pub(crate) device: DeviceChoice,
}

impl WantedFeatures<'_> {
    /// The source of the features. A router of labels reads the run's text again.
    ///
    /// # Errors
    /// When the text has no labels, the run has no seed, or the device can't be used.
    pub(crate) fn features(
        self,
        run: &RunDirectory,
        weights: &Weights,
        progress: &Progress,
        cancel: &AtomicBool,
    ) -> Result<RouterFeatures, PipelineError> {
        let config = weights.config();
        let features = match &config.routing.labels {
            Some(file) if self.kind == RouterKind::Labels => {
                let (prepare, prefix) = (&config.prepare, self.settings.prefix_tokens);
                let labels = labels::prefix_labels(run, prepare, file, prefix, progress, cancel)?;
                RouterFeatures::labelled(weights.model(), labels, weights.topology().paths())?
            }
            _ => RouterFeatures::new(self.kind, self.settings, self.vectors, weights.model(), || {
                SeedReader::new(self.device, self.settings, || weights.seed())
            })?,
        };
        warn_of_idle(self.device, self.kind, &features);
        Ok(features)
    }
}

/// The seed on the device that computes its features.
#[derive(Debug)]
struct SeedReader(PathReader);

impl SeedReader {
    /// Opens the device and puts the seed there, for batches of the router's settings.
    ///
    /// # Errors
    /// As [`device::open`]; also if the seed can't be put on the device.
    fn new(
        choice: DeviceChoice,
        settings: &RouterConfig,
        seed: impl FnOnce() -> Result<Path, PipelineError>,
    ) -> Result<Self, PipelineError> {
        // The device first: a missing one is reported before the weights are read.
        let device = device::open(choice)?;
        let size = ReaderSize { sequences: settings.batch_documents, tokens: settings.prefix_tokens };
        Ok(Self(PathReader::new(&device, seed()?, size)?))
    }
}

impl SeedFeatures for SeedReader {
    fn hidden_size(&self) -> usize {
        self.0.hidden_size()
    }

    fn early_features(
        &self,
        blocks: usize,
        tokens: &TokenRows,
        lengths: &[usize],
    ) -> Result<Vec<f32>, BoxError> {
        Ok(self.0.early_features(blocks, tokens, lengths)?)
    }

    fn device(&self) -> String {
        self.0.device().to_owned()
    }
}

/// Warns a user who asks for a GPU of features that no model computes. The work goes on: its result is right, and one
/// value of `DIPACO_DEVICE` then serves all steps of a run.
fn warn_of_idle(choice: DeviceChoice, kind: RouterKind, features: &RouterFeatures) {
    if matches!(choice, DeviceChoice::Cuda(_)) && features.device().is_none() {
        let cause = match kind {
            RouterKind::Random => "routing.kind is \"random\"",
            RouterKind::Labels => "routing.kind is \"labels\"",
            _ => "routing.features is \"lsa\"",
        };
        tracing::warn!(
            "{cause}, which no model computes: --device {choice} is not used, the CPU does this step"
        );
    }
}
