//! Validation during training: the routed model on the run's validation text, every few rounds and after the last. The weights
//! of a due round stay in the store until they are measured, and training does not wait.

mod due_round;
mod measuring;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::error::Error as _;
use std::time::Duration;

use dipaco_config::RunConfig;
use dipaco_eval::Evaluation;
use dipaco_store::{RunManifest, RunStore, TrainingRecord};
use dipaco_telemetry::{Events, Progress, ProgressUnit};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::device::{self, DeviceChoice, TrainDevice};
use crate::error::PipelineError;
use crate::pinned::pins_ended;
use crate::run_directory::RunDirectory;
use crate::version::Version;
use crate::weights::Weights;
use due_round::{DueRound, due, turns, weight_bytes};
use measuring::{Means, Measuring, ended};

pub use due_round::trained_tokens;

/// Shortest time between two looks at the manifest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// Longest time between two looks at the manifest.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Least pause between two looks in the time that a look takes. Large manifests and remote stores take long.
const LOOKS: u32 = 10;

/// Rounds that may wait for their measurement. Each has a pin, which the coordinator reads before it deletes objects.
const WAITING: usize = 64;

/// Bytes of weights that waiting rounds may keep in the store together. One round may always wait.
const WAITING_BYTES: u64 = 8 << 30;

/// Measures the routed model during a training, and records each result as an event. Each path reads its own validation shard.
pub(crate) struct Validation<'a> {
    run: &'a RunDirectory,
    config: &'a RunConfig,
    store: RunStore,
    events: Events,
    begun: Instant,
    /// Complete rounds at the last look, and the time of the first look that found as many.
    complete: (u32, Instant),
    /// Time that the last look took.
    looked: Duration,
    /// The last round that had its turn.
    last: u32,
    /// The rounds whose weights wait for their measurement, in their order. The first one may be in measurement.
    waiting: VecDeque<DueRound>,
    /// The measurement of the first one beside the training.
    measuring: Option<Measuring>,
    /// True if the last look has failed.
    failing: bool,
}

impl<'a> Validation<'a> {
    /// The validation of a training that goes on after `rounds` rounds. `None` if its settings want none, or, with a warning, if
    /// the run has no validation text.
    pub(crate) fn begin(
        run: &'a RunDirectory,
        config: &'a RunConfig,
        store: &RunStore,
        rounds: u32,
    ) -> Result<Option<Self>, PipelineError> {
        if config.train.validate_every == 0 {
            return Ok(None);
        }
        if let Some(warning) = missing_text(run) {
            tracing::warn!("{warning}");
            return Ok(None);
        }
        Ok(Some(Self::of_store(run, config, store.clone(), Events::create(&run.events())?, rounds)))
    }

    fn of_store(
        run: &'a RunDirectory,
        config: &'a RunConfig,
        store: RunStore,
        events: Events,
        rounds: u32,
    ) -> Self {
        let now = Instant::now();
        Self {
            run,
            config,
            store,
            events,
            begun: now,
            complete: (rounds, now),
            looked: Duration::ZERO,
            // An earlier coordinator may have ended before it measured the round with which this one begins.
            last: rounds.saturating_sub(1),
            waiting: VecDeque::new(),
            measuring: None,
            failing: false,
        }
    }

    /// Looks for due rounds, and measures one after the other on one thread, so that the workers of this machine keep theirs.
    /// When this ends, the round in measurement waits again.
    pub(crate) async fn beside_training(&mut self) -> Infallible {
        loop {
            if self.measuring.is_none() {
                let begin = |due: &DueRound| {
                    // Workers may have the GPUs.
                    let means = Means { threads: 1, device: TrainDevice::Cpu, progress: Progress::hidden() };
                    Measuring::begin(self.run, self.config, due, means)
                };
                self.measuring = self.waiting.front().map(begin);
            }
            let pause = self.pause();
            tokio::select! {
                measured = ended(self.measuring.as_mut()) => {
                    self.measuring = None;
                    self.record(measured);
                }
                () = sleep(pause) => self.look().await,
            }
        }
    }

    /// Ends the validation. After a training that ended `in_order` it measures the rounds that still wait, and the last round of
    /// a complete run, on all cores of this machine and on `device`, until `cancel` is triggered.
    pub(crate) async fn end(
        mut self,
        in_order: bool,
        device: DeviceChoice,
        progress: &Progress,
        cancel: &CancellationToken,
    ) {
        let beside = self.measuring.take().map(Measuring::abandon);
        if in_order && !cancel.is_cancelled() {
            self.measure_rest(device, progress, cancel).await;
        }
        let rounds = self.waiting.len();
        if rounds > 0 {
            tracing::warn!(rounds, "rounds that waited for their validation are not measured");
        }
        self.waiting.clear();
        // What the pins have kept is deleted next. After a failure the next coordinator of the run deletes it.
        if in_order {
            if let Some(beside) = beside {
                // It holds its weights until then. Its round has been measured anew, or is not measured.
                let _ = beside.await;
            }
            pins_ended().await;
        }
    }

    async fn measure_rest(&mut self, device: DeviceChoice, progress: &Progress, cancel: &CancellationToken) {
        // For the last round, which no later round follows.
        self.look().await;
        if self.waiting.is_empty() {
            return;
        }
        let device = match device::open(device) {
            Ok(device) => device,
            Err(error) => {
                tracing::warn!(%error, source = ?error.source(), "no device for the validation");
                return;
            }
        };
        let task = progress.task("validate", Some(self.waiting.len() as u64), ProgressUnit::Count("rounds"));
        while let Some(due) = self.waiting.front() {
            let means = Means { threads: 0, device: device.clone(), progress: progress.clone() };
            let mut measuring = Measuring::begin(self.run, self.config, due, means);
            tokio::select! {
                biased;
                () = cancel.cancelled() => return measuring.stop().await,
                measured = measuring.ended() => self.record(measured),
            }
            task.add(1);
        }
        task.finish();
    }

    /// Records the measurement of the first round that waits, which then waits no more.
    fn record(&mut self, measured: Result<Evaluation, PipelineError>) {
        let Some(DueRound { cost, .. }) = self.waiting.pop_front() else { return };
        match measured {
            Ok(found) => self.events.note(cost.event(&found)),
            Err(error) => {
                tracing::warn!(round = cost.round, %error, source = ?error.source(), "no validation of this round");
            }
        }
    }

    /// Time until the next look: a part of the time since the last complete round. So the weights of a round are found while
    /// they are the current ones, also where rounds are short.
    fn pause(&self) -> Duration {
        let (_, since) = self.complete;
        (since.elapsed() / 4).max(self.looked * LOOKS).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
    }

    /// Lets a round wait for its measurement if one is due now.
    async fn look(&mut self) {
        let begun = Instant::now();
        let found = self.find().await;
        self.looked = begun.elapsed();
        match found {
            Ok(found) => {
                self.failing = false;
                self.waiting.extend(found);
            }
            // One line of the log for each time of failures.
            Err(_) if self.failing => {}
            Err(error) => {
                self.failing = true;
                tracing::warn!(%error, source = ?error.source(), "the weights can't be read for validation");
            }
        }
    }

    /// The round that is due now. Its weights stay in the store.
    async fn find(&mut self) -> Result<Option<DueRound>, PipelineError> {
        // Most looks find nothing. Only weights that will be measured are worth a pin.
        let manifest = self.store.load::<RunManifest>().await?.map(|loaded| loaded.manifest);
        let Some(training) = manifest.and_then(|manifest| manifest.training) else { return Ok(None) };
        let rounds = training.rounds_done();
        if rounds > self.complete.0 {
            self.complete = (rounds, Instant::now());
        }
        let every = self.config.train.validate_every;
        let Some(round) = due(&training, every, self.last) else { return Ok(None) };
        if self.is_full(&training) {
            let waiting = self.waiting.len();
            tracing::warn!(
                round,
                waiting,
                "no validation of this round, because too many rounds wait for theirs: raise train.validate_every"
            );
            self.has_had_its_turn(round);
            return Ok(None);
        }
        let weights = Weights::of_store(self.store.clone(), self.config, Version::Current).await?;
        // The training may have gone on since.
        let found = DueRound::of(weights, every, self.last, self.begun.elapsed());
        if let Some(found) = &found {
            self.has_had_its_turn(found.cost.round);
        }
        Ok(found)
    }

    /// True if no further round may wait. The last round always may: no other one comes after it.
    fn is_full(&self, training: &TrainingRecord) -> bool {
        let kept: u64 = self.waiting.iter().map(|due| due.bytes).sum();
        let too_many = self.waiting.len() >= WAITING;
        let too_large = kept.saturating_add(weight_bytes(training)) > WAITING_BYTES;
        !self.waiting.is_empty() && (too_many || too_large) && training.rounds_done() < training.rounds
    }

    /// Notes that a due round waits or is left out. Tells of due rounds before it that no look has found.
    fn has_had_its_turn(&mut self, round: u32) {
        let every = self.config.train.validate_every;
        let missed = turns(round.saturating_sub(1), every).saturating_sub(turns(self.last, every));
        if missed > 0 {
            tracing::warn!(
                missed,
                before = round,
                "no validation of rounds that ended faster than they were found"
            );
        }
        self.last = round;
    }
}

/// Tells that a run without validation text can't be validated.
fn missing_text(run: &RunDirectory) -> Option<&'static str> {
    (!run.validation_tokens().exists()).then_some(
        "train.validate_every has no effect: the run has no validation text; prepare with --validation or \
         prepare.validation_fraction",
    )
}

#[cfg(test)]
mod tests;
