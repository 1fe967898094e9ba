//! Validation during training: the routed model on the run's validation text, every few rounds and after the last. Training
//! does not wait.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dipaco_config::RunConfig;
use dipaco_eval::Evaluation;
use dipaco_store::{PathRecord, RunManifest, TrainingRecord};
use dipaco_telemetry::{Event, Events, Progress};
use tokio::time::{Instant, MissedTickBehavior};

use crate::device::{self, DeviceChoice, TrainDevice};
use crate::error::PipelineError;
use crate::evaluate::{EvaluatedRun, Subject, evaluate};
use crate::phases::StopWhenDropped;
use crate::run_directory::RunDirectory;
use crate::store::manifest;
use crate::weights::{Version, Weights};

/// Time between two looks at the manifest.
const LOOK: Duration = Duration::from_secs(2);

/// Measures the routed model during a training, and records each result as an event. Each path reads its own validation shard.
pub(crate) struct Validation<'a> {
    run: &'a RunDirectory,
    config: &'a RunConfig,
    events: Events,
    begun: Instant,
    /// Complete rounds at the last measurement.
    validated: u32,
}

/// Where a measurement runs, and what it shows.
struct Means {
    threads: usize,
    device: TrainDevice,
    progress: Progress,
}

impl<'a> Validation<'a> {
    /// The validation of a training that begins now. `None` if its settings want none, or, with a warning, if the run has no
    /// validation text.
    pub(crate) fn begin(run: &'a RunDirectory, config: &'a RunConfig) -> Result<Option<Self>, PipelineError> {
        if config.train.validate_every == 0 {
            return Ok(None);
        }
        if let Some(warning) = missing_text(run) {
            tracing::warn!("{warning}");
            return Ok(None);
        }
        let events = Events::create(&run.events())?;
        Ok(Some(Self { run, config, events, begun: Instant::now(), validated: 0 }))
    }

    /// Measures when another `train.validate_every` rounds are complete. It takes one thread, so that the workers of this
    /// machine keep theirs.
    pub(crate) async fn in_turn(&mut self) -> Infallible {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            // A look only reads the manifest. Opening the weights also writes a pin into the store.
            match manifest(self.run).await {
                Ok(Some(RunManifest { training: Some(training), .. })) if self.due(&training).is_some() => {}
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(%error, "the manifest can't be read for validation");
                    continue;
                }
            }
            let Some((training, weights)) = self.open().await else { continue };
            let Some(round) = self.due(&training) else { continue };
            // Workers may have the GPUs.
            let means = Means { threads: 1, device: TrainDevice::Cpu, progress: Progress::hidden() };
            self.validate(&training, round, weights, means).await;
        }
    }

    /// Measures the last round of a training that is complete, on all cores of this machine and on `device`.
    pub(crate) async fn of_last_round(&mut self, device: DeviceChoice, progress: &Progress) {
        let device = match device::open(device) {
            Ok(device) => device,
            Err(error) => {
                tracing::warn!(%error, "no validation of the last round");
                return;
            }
        };
        let Some((training, weights)) = self.open().await else { return };
        let means = Means { threads: 0, device, progress: progress.clone() };
        self.validate(&training, training.rounds_done(), weights, means).await;
    }

    fn due(&self, training: &TrainingRecord) -> Option<u32> {
        due(training, self.config.train.validate_every, self.validated)
    }

    /// The current weights, and the training that they are of. What fails is logged.
    async fn open(&self) -> Option<(TrainingRecord, Weights)> {
        match Weights::open(self.run, self.config, Version::Current).await {
            Ok(weights) => weights.manifest().training.clone().map(|training| (training, weights)),
            Err(error) => {
                tracing::warn!(%error, "the weights can't be read for validation");
                None
            }
        }
    }

    async fn validate(&mut self, training: &TrainingRecord, round: u32, weights: Weights, means: Means) {
        self.validated = round;
        match measure(self.run, self.config, weights, means).await {
            Ok(found) => {
                self.events.note(validated_event(training, round, &found, self.begun.elapsed()));
            }
            Err(error) => tracing::warn!(round, %error, "no validation of this round"),
        }
    }
}

/// Tells that a run without validation text can't be validated.
fn missing_text(run: &RunDirectory) -> Option<&'static str> {
    (!run.validation_tokens().exists()).then_some(
        "train.validate_every has no effect: the run has no validation text; prepare with --validation or \
         prepare.validation_fraction",
    )
}

/// The number of complete rounds, if they are to be validated and are not yet: the last validation was after `validated`
/// rounds. The last round has its own measurement.
fn due(training: &TrainingRecord, every: u32, validated: u32) -> Option<u32> {
    let rounds = training.rounds_done();
    let turn = |rounds: u32| rounds.checked_div(every).unwrap_or(0);
    (turn(rounds) > turn(validated) && rounds < training.rounds).then_some(rounds)
}

async fn measure(
    run: &RunDirectory,
    config: &RunConfig,
    weights: Weights,
    means: Means,
) -> Result<Evaluation, PipelineError> {
    let (run, mut config) = (run.clone(), config.clone());
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
    tokio::task::spawn_blocking(work).await.map_err(|source| PipelineError::Task { source })?
}

/// Tokens of the outer gradients so far, of all paths together, padding not counted.
#[must_use]
pub fn trained_tokens(training: &TrainingRecord) -> u64 {
    // Every fragment counts the same tokens of a path, but for sends that are under way and frozen levels, which count none.
    let of_path = |path: &PathRecord| path.counted.iter().map(|counted| counted.tokens).max().unwrap_or(0);
    training.paths.iter().map(of_path).sum()
}

fn validated_event(training: &TrainingRecord, round: u32, found: &Evaluation, elapsed: Duration) -> Event {
    Event::Validated {
        rounds: round.into(),
        steps: u64::from(round) * training.inner_steps,
        trained_tokens: trained_tokens(training),
        seconds: elapsed.as_secs_f64(),
        loss: found.nll_sum / found.tokens_counted.max(1) as f64,
        bits_per_byte: found.bits_per_byte,
        tokens: found.tokens_counted,
    }
}

#[cfg(test)]
mod tests {
    use dipaco_store::CountRecord;

    use super::*;

    /// A run of 10 rounds of 4 steps whose paths have done these steps.
    fn training(steps: &[u64]) -> TrainingRecord {
        let path = |&steps: &u64| PathRecord {
            steps,
            counted: vec![CountRecord { steps, tokens: 10 * steps }],
            ..PathRecord::default()
        };
        TrainingRecord {
            origin: "o".into(),
            rounds: 10,
            inner_steps: 4,
            boundaries: Vec::new(),
            phase: 0,
            shards: Vec::new(),
            modules: Vec::new(),
            paths: steps.iter().map(path).collect(),
            numerics: None,
            numerics_token: None,
        }
    }

    #[test]
    fn a_run_without_validation_text_is_told_that_nothing_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        assert!(missing_text(&run).unwrap().starts_with("train.validate_every has no effect"));
        std::fs::create_dir_all(run.data()).unwrap();
        std::fs::write(run.validation_tokens(), "").unwrap();
        assert_eq!(missing_text(&run), None);
    }

    #[test]
    fn rounds_are_validated_once_in_their_turn() {
        let due_after = |steps: &[u64], validated| due(&training(steps), 3, validated);
        assert_eq!(due_after(&[12, 11], 0), None, "a path has not completed the third round");
        assert_eq!(due_after(&[12, 12], 0), Some(3));
        assert_eq!(due_after(&[16, 20], 3), None);
        assert_eq!(due_after(&[32, 32], 3), Some(8), "rounds that went by are not made up for");
        assert_eq!(due_after(&[40, 40], 8), None, "the run is complete");
        assert_eq!(due(&training(&[12, 12]), 0, 0), None);
    }

    #[test]
    fn the_tokens_of_a_path_are_those_of_a_level_that_trains() {
        let mut frozen_below = training(&[12, 13]);
        for path in &mut frozen_below.paths {
            path.counted.insert(0, CountRecord::default());
        }
        assert_eq!(trained_tokens(&frozen_below), 250);
    }

    #[test]
    fn an_event_tells_the_cost_so_far() {
        let found: Evaluation = serde_json::from_value(serde_json::json!({
            "documents": 1, "sequences": 1, "tokens_counted": 4, "nll_sum": 8.0, "perplexity": 7.4,
            "bits_per_byte": 1.5, "prefix_tokens": 2, "sequence_tokens": 8, "per_path": [],
        }))
        .unwrap();
        let event = validated_event(&training(&[12, 13]), 3, &found, Duration::from_millis(2500));
        let expected = Event::Validated {
            rounds: 3,
            steps: 12,
            trained_tokens: 250,
            seconds: 2.5,
            loss: 2.0,
            bits_per_byte: Some(1.5),
            tokens: 4,
        };
        assert_eq!(event, expected);
    }
}
