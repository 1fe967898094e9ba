//! Takes up the weights of a training that goes on beside a server.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dipaco_config::RunConfig;
use dipaco_infer::{BoxError, Generation, RunModel, RunPaths};
use dipaco_server::Preload;

use crate::error::PipelineError;
use crate::fingerprint::{FixedParts, fingerprint};
use crate::run_directory::RunDirectory;
use crate::served_modules::ServedModules;
use crate::weights::{Version, Weights};

/// Where the weights of a server come from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) run: RunDirectory,
    pub(crate) config: RunConfig,
    pub(crate) version: Version,
    pub(crate) modules: ServedModules,
    /// The phase of the server's router.
    pub(crate) phase: u32,
    /// Tokenizer and routers, for the fingerprints.
    pub(crate) fixed: FixedParts,
}

impl Source {
    /// All paths with these weights, as far as `serve.preload` and `serve.memory` have them loaded. Blocks on the store.
    pub(crate) fn load(&self, weights: Weights) -> Result<RunPaths, PipelineError> {
        let fingerprint = fingerprint(&self.config, &weights, &self.fixed)?;
        let paths = self.modules.paths(weights, &fingerprint)?;
        if self.config.serve.preload == Preload::All {
            paths.preload()?;
        }
        Ok(paths)
    }

    /// The paths of the newest manifest, or `None` if they are those that are served.
    async fn newer(self: &Arc<Self>, served: &str) -> Result<Option<RunPaths>, PipelineError> {
        let weights = Weights::open(&self.run, &self.config, self.version).await?;
        if fingerprint(&self.config, &weights, &self.fixed)? == served {
            return Ok(None);
        }
        let phase = weights.manifest().phase();
        if phase != self.phase {
            return Err(PipelineError::OtherPhase { phase, served: self.phase });
        }
        let own = Arc::clone(self);
        let load = tokio::task::spawn_blocking(move || own.load(weights));
        Ok(Some(load.await.map_err(|source| PipelineError::Task { source })??))
    }
}

/// Gives the model new weights whenever the run has some. Ends when the model is gone. A failure leaves the weights that are
/// served, and the next look comes as usual.
pub(crate) async fn follow(source: Arc<Source>, model: Weak<RunModel>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(served) = model.upgrade().map(|model| model.newest().fingerprint()) else { return };
        match source.newer(&served).await {
            Ok(None) => {}
            Ok(Some(paths)) => {
                let Some(model) = model.upgrade() else { return };
                tracing::info!(fingerprint = %paths.fingerprint(), "new weights are served");
                model.replace(paths);
            }
            Err(error) => {
                let error: BoxError = error.into();
                tracing::warn!(%error, source = ?error.source(), "the served weights stay: new ones can't be loaded");
            }
        }
    }
}
