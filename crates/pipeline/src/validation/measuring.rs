//! The measurement of a round on a thread of its own.

use std::future::pending;
use std::sync::Arc;

use dipaco_config::RunConfig;
use dipaco_eval::Evaluation;
use dipaco_telemetry::Progress;
use tokio::task::{JoinHandle, spawn_blocking};

use super::due_round::DueRound;
use crate::device::TrainDevice;
use crate::error::PipelineError;
use crate::evaluate::{EvaluatedRun, Subject, evaluate};
use crate::phases::StopWhenDropped;
use crate::run_directory::RunDirectory;

/// Where a measurement runs, and what it shows.
pub(super) struct Means {
    /// Number of threads; 0 for all cores.
    pub(super) threads: usize,
    pub(super) device: TrainDevice,
    pub(super) progress: Progress,
}

/// A measurement under way. It ends soon after this is dropped.
pub(super) struct Measuring {
    task: JoinHandle<Result<Evaluation, PipelineError>>,
    stop: StopWhenDropped,
}

impl Measuring {
    /// Begins the measurement of a round.
    pub(super) fn begin(run: &RunDirectory, config: &RunConfig, due: &DueRound, means: Means) -> Self {
        let (run, mut config, weights) = (run.clone(), config.clone(), due.weights.clone());
        config.evaluation.max_documents = config.train.validation_documents;
        config.evaluation.rank_candidates = 0;
        let stop = StopWhenDropped(Arc::default());
        let cancel = stop.0.clone();
        let work = move || {
            let Means { threads, device, progress } = means;
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let pool = pool.map_err(|source| PipelineError::Threads { threads, source })?;
            let routed = Subject::Routed(config.evaluation.route);
            let evaluated = EvaluatedRun { run: &run, config: &config, weights: &weights, device: &device };
            pool.install(|| evaluate(evaluated, routed, None, &progress, &cancel))
        };
        Self { task: spawn_blocking(work), stop }
    }

    /// The result, when there is one. Call it until then, and not again.
    pub(super) async fn ended(&mut self) -> Result<Evaluation, PipelineError> {
        (&mut self.task).await.map_err(|source| PipelineError::Task { source })?
    }

    /// Asks the measurement to end without a result. It holds its weights until it has ended.
    pub(super) fn abandon(self) -> JoinHandle<Result<Evaluation, PipelineError>> {
        let Self { task, stop } = self;
        drop(stop);
        task
    }

    /// Ends the measurement without a result, and waits for its end.
    pub(super) async fn stop(self) {
        // The round has no result, whatever the work returns.
        let _ = self.abandon().await;
    }
}

/// The result of a measurement. Without one it waits for ever.
pub(super) async fn ended(measuring: Option<&mut Measuring>) -> Result<Evaluation, PipelineError> {
    match measuring {
        Some(measuring) => measuring.ended().await,
        None => pending().await,
    }
}
