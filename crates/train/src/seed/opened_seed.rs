//! A seed between the checks of its settings and its steps.

use std::time::Instant;

use dipaco_store::RunStore;
use dipaco_telemetry::Task;

use super::pretraining::Pretraining;
use super::{SeedError, SeedSummary, save};
use crate::blocking::blocking;
use crate::open_run::OpenRun;

/// A seed that fits its settings. [`open_seed`](super::open_seed) opens it.
pub struct OpenedSeed {
    run: OpenRun,
    work: SeedWork,
}

/// What is left to do for a seed.
enum SeedWork {
    Nothing(SeedSummary),
    Pretraining(Box<UnfinishedSeed>),
}

/// A seed with steps left.
pub(super) struct UnfinishedSeed {
    pub(super) store: RunStore,
    /// The origin that its snapshots record.
    pub(super) origin: String,
    /// Inner steps planned.
    pub(super) steps: u64,
    pub(super) pretraining: Pretraining,
    pub(super) task: Task,
    /// Start of the call.
    pub(super) begun: Instant,
}

impl OpenedSeed {
    pub(super) fn complete(run: OpenRun, summary: SeedSummary) -> Self {
        Self { run, work: SeedWork::Nothing(summary) }
    }

    pub(super) fn unfinished(run: OpenRun, seed: UnfinishedSeed) -> Self {
        Self { run, work: SeedWork::Pretraining(Box::new(seed)) }
    }

    /// True if the first step is still to be taken. The next snapshot then records these settings.
    #[must_use]
    pub fn begins(&self) -> bool {
        match &self.work {
            SeedWork::Nothing(_) => false,
            SeedWork::Pretraining(seed) => seed.pretraining.step() == 0,
        }
    }

    /// Takes the steps that are left, and saves the seed.
    ///
    /// # Errors
    /// When the data or the store can't be used, or training diverges.
    pub async fn train(self) -> Result<(SeedSummary, OpenRun), SeedError> {
        let Self { mut run, work } = self;
        let seed = match work {
            SeedWork::Nothing(summary) => return Ok((summary, run)),
            SeedWork::Pretraining(seed) => *seed,
        };
        let UnfinishedSeed { store, origin, steps, mut pretraining, task, begun } = seed;
        let first = pretraining.step();
        let mut validation_loss = None;
        // A seed without steps is its initial weights, which are saved like all others.
        let mut untrained = steps == 0;
        while std::mem::take(&mut untrained) || pretraining.goes_on() {
            // The thread owns the trainer while it computes, and returns it with the snapshot.
            let computed = blocking(move || {
                let snapshot = pretraining.train_to_snapshot()?;
                Ok::<_, SeedError>((pretraining, snapshot))
            });
            let snapshot;
            (pretraining, snapshot) = computed.await??;
            validation_loss = snapshot.validation_loss;
            save(&store, &mut run, &origin, steps, snapshot).await?;
        }
        task.finish();
        let step = pretraining.step();
        let summary = SeedSummary {
            finished: step >= steps,
            step,
            new_steps: step - first,
            validation_loss,
            tokens: pretraining.tokens(),
            seconds: begun.elapsed().as_secs_f64(),
        };
        Ok((summary, run))
    }
}
