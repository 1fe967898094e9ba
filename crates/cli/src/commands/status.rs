//! `dipaco status`: shows the progress of a run.

mod data;
mod progress;
mod quarantine;
mod watch;

use clap::Args;
use dipaco_config::RunConfig;
use dipaco_monitor::{EventTail, RunHistory};
use dipaco_store::{RunManifest, TrainingRecord};
use dipaco_telemetry::{Align, Table, human};
use serde::Serialize;

use self::data::Accounts;
use self::progress::ShownProgress;
use crate::commands::rollback;
use crate::error::CliError;
use crate::plain_text::without_commands;
use crate::run_options::RunOptions;
use crate::{output, runtime};
use dipaco_pipeline::store::manifest;
use dipaco_pipeline::{PipelineError, RunDirectory};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco status --run runs/tiny
  dipaco status --run runs/tiny --watch                again and again, with the workers
  dipaco status --run runs/tiny --json                 the run's manifest, and its progress
  dipaco status --run runs/tiny --data                 how much of its text each path has used
  dipaco status --run runs/tiny --complete             for scripts: is there anything left to train?";

/// Options of `dipaco status`.
#[derive(Debug, Args)]
pub(crate) struct StatusOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Show the text that each path has used, and whether every inner step counts once.
    #[arg(long)]
    data: bool,
    /// Print the run's manifest and its progress as JSON; with --data the accounts.
    #[arg(long)]
    json: bool,
    /// Show the status again every two seconds, with the workers, until the run is complete.
    #[arg(long, conflicts_with_all = ["data", "json"])]
    watch: bool,
    /// Only say with the exit code whether the training is complete: 0, or else 1.
    #[arg(long, conflicts_with_all = ["data", "json", "watch"])]
    complete: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    /// Without a manifest the object is empty.
    #[serde(flatten)]
    manifest: Option<&'a RunManifest>,
    /// Absent before the training begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ShownProgress>,
}

/// The sum of the run's events so far.
fn history(run: &RunDirectory) -> Result<RunHistory, CliError> {
    let (mut tail, mut history) = (EventTail::new(&run.events()), RunHistory::default());
    follow(run, &mut tail, &mut history)?;
    Ok(history)
}

/// Adds the events that have come since the last call.
fn follow(run: &RunDirectory, tail: &mut EventTail, history: &mut RunHistory) -> Result<(), CliError> {
    history.follow(tail).map_err(|source| CliError::Io { action: "read", path: run.events(), source })
}

pub(crate) fn run(options: &StatusOptions) -> Result<(), CliError> {
    let (run, config) = options.run.open_existing()?;
    if options.watch {
        return watch::run(&run, &config);
    }
    let manifest = runtime::run(async { Ok(manifest(&run).await?) })?;
    if options.complete {
        let training = manifest.and_then(|manifest| manifest.training);
        let complete = training.is_some_and(|training| training.finished());
        return if complete { Ok(()) } else { Err(CliError::Incomplete { run: run.root().to_owned() }) };
    }
    let Some(manifest) = manifest else {
        return match options {
            StatusOptions { data: true, .. } => Err(PipelineError::NotTrained.into()),
            StatusOptions { json: true, .. } => {
                output::print_json(&Report { manifest: None, progress: None })
            }
            _ => output::print(&nothing(&run)),
        };
    };
    if options.data {
        let training = manifest.training.as_ref().ok_or(PipelineError::NotTrained)?;
        let accounts = Accounts::new(training, &config)?;
        return if options.json {
            output::print_json(&accounts)
        } else {
            output::print(&accounts.to_string())
        };
    }
    let history = history(&run)?;
    if options.json {
        let kept = config.topology.kept_paths;
        let progress = manifest.training.as_ref();
        let progress = progress.map(|training| ShownProgress::new(training, kept, &history));
        return output::print_json(&Report { manifest: Some(&manifest), progress });
    }
    // Reasons of a quarantine come from workers.
    output::print(&without_commands(&describe(&history, &config, &manifest)))
}

/// The status of a run without a manifest.
fn nothing(run: &RunDirectory) -> String {
    format!("{}: nothing has been trained yet\n", run.root().display())
}

/// The fingerprint of the run, who set it, and how many workers it keeps out or sets apart.
fn numerics(history: &RunHistory, training: &TrainingRecord) -> String {
    let Some(fingerprint) = &training.numerics else { return String::new() };
    let set_by = training.numerics_token.as_ref().map(|token| format!(", set by the token {token:?}"));
    let others = match history.with_other_numerics(fingerprint) {
        0 => String::new(),
        others => format!("; {others} connected workers have another one"),
    };
    format!("numerics: {fingerprint}{}{others}\n", set_by.unwrap_or_default())
}

/// The status of a run, in words and a table.
fn describe(history: &RunHistory, config: &RunConfig, manifest: &RunManifest) -> String {
    let mut text = format!("run {} ({})\n", manifest.run, config.run.name);
    if let Some(seed) = &manifest.seed {
        let loss =
            seed.validation_loss.map(|loss| format!(", validation loss {loss:.4}")).unwrap_or_default();
        text += &format!("seed: {} of {} steps{loss}\n", seed.step, seed.steps);
    }
    if let Some(training) = &manifest.training {
        text += &format!("paths: {} of {} rounds\n", training.rounds_done(), training.rounds);
        if let Some(rollback) = manifest.rollbacks.last() {
            text += &rollback::describe(rollback);
        }
        for (path, record) in training.paths.iter().enumerate() {
            if let Some(record) = &record.quarantine {
                text += &quarantine::describe(path, record, &manifest.checkpoints);
            }
        }
        if !training.boundaries.is_empty() {
            let (phase, last) = (training.phase, training.boundaries.len());
            text += &format!("routing: phase {phase} of 0 to {last}, up to round {}\n", training.phase_end());
        }
        text += &ShownProgress::new(training, config.topology.kept_paths, history).to_string();
        text += &numerics(history, training);
        text += &paths(training, config.topology.kept_paths).to_string();
        let rounds = training.phase_begin()..training.phase_end();
        let small = dipaco_train::small_shards(&training.shards, config, rounds);
        for warning in small.into_iter().chain(dipaco_train::rising_losses(training, config)) {
            text += &format!("warning: {warning}\n");
        }
    }
    text
}

/// A table of the paths. The first `kept_paths` are kept.
fn paths(training: &TrainingRecord, kept_paths: u32) -> Table {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("path", right),
        ("rounds", right),
        ("documents", right),
        ("tokens", right),
        ("best held-out loss", right),
        ("at round", right),
    ]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    for (number, (path, shard)) in (0u32..).zip(training.paths.iter().zip(&training.shards)) {
        let rounds = training.rounds_before_quarantine(path);
        let rounds = match &path.quarantine {
            _ if number < kept_paths => "kept".to_owned(),
            Some(_) => format!("{rounds}, then quarantine"),
            None => rounds.to_string(),
        };
        // A run in which nobody trains began without shards.
        let shard = Some(shard).filter(|shard| !shard.file.is_empty());
        table.row([
            number.to_string(),
            rounds,
            or_dash(shard.map(|shard| human::integer(shard.documents))),
            or_dash(shard.map(|shard| human::integer(shard.tokens))),
            or_dash(path.best.as_ref().map(|best| format!("{:.4}", best.loss))),
            or_dash(path.best.as_ref().map(|best| best.round.to_string())),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use dipaco_store::{CheckpointRecord, ObjectRef, PathRecord, QuarantineRecord, ShardRecord};

    use super::*;

    /// A training of nine rounds whose paths have these shards.
    fn training(paths: Vec<PathRecord>, shard: &ShardRecord) -> TrainingRecord {
        TrainingRecord {
            origin: "o".into(),
            rounds: 9,
            inner_steps: 10,
            shards: vec![shard.clone(); paths.len()],
            paths,
            ..TrainingRecord::default()
        }
    }

    fn shard(documents: u64, tokens: u64) -> ShardRecord {
        ShardRecord { file: "f".into(), hash: "h".into(), documents, tokens }
    }

    #[test]
    fn the_status_warns_of_shards_that_training_reads_too_often() {
        let mut config = RunConfig::default();
        (config.train.rounds, config.train.inner_steps) = (9, 10);
        // 9 rounds of 10 steps of the configured batch: four readings, and more.
        let sequences = 90 * config.train.batch as u64 / 4;
        let status = |documents: u64| {
            let tokens = documents * config.train.sequence_tokens as u64;
            let training = training(vec![PathRecord::default(); 2], &shard(documents, tokens));
            let manifest = RunManifest { training: Some(training), ..RunManifest::new("run".into()) };
            describe(&RunHistory::default(), &config, &manifest)
        };
        let warning = "warning: data per path is small: 2 of 2 paths see their shard more than 4 times";
        assert!(status(sequences / 2).contains(warning), "{}", status(sequences / 2));
        assert!(!status(sequences).contains("warning"), "{}", status(sequences));
    }

    #[test]
    fn the_status_names_each_path_in_quarantine() {
        let record = QuarantineRecord {
            step: 40,
            workers: vec!["gpu-1".into(), "gpu-2".into()],
            reason: "its training diverged after inner step 43".into(),
            back_to: Some(2),
        };
        let left_out = PathRecord { steps: 90, quarantine: Some(record.clone()), ..PathRecord::default() };
        let training = training(vec![PathRecord::default(), left_out], &shard(1, 2));
        let checkpoint = CheckpointRecord { round: 2, object: ObjectRef::of("checkpoints/2-1", b"") };
        let manifest = RunManifest {
            training: Some(training),
            checkpoints: vec![checkpoint],
            ..RunManifest::new("run".into())
        };
        let text = describe(&RunHistory::default(), &RunConfig::default(), &manifest);
        let lines: Vec<_> = text.lines().filter(|line| line.contains("quarantine")).collect();
        let [line, row] = lines.as_slice() else { panic!("{text}") };
        assert_eq!(format!("{line}\n"), quarantine::describe(1, &record, &manifest.checkpoints));
        // Its steps go on to the end, but nobody took them.
        assert!(row.trim_start().starts_with("1  4, then quarantine  "), "{text}");
    }

    #[test]
    fn kept_paths_have_no_rounds_of_their_own_and_text_that_is_not_known_has_no_size() {
        let none = ShardRecord { file: String::new(), hash: String::new(), documents: 0, tokens: 0 };
        let path = PathRecord { steps: 90, measured: true, ..PathRecord::default() };
        let rows = |kept, shard: &ShardRecord| {
            let table = paths(&training(vec![path.clone(); 2], shard), kept).to_string();
            let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            table.lines().map(cells).filter(|cells| cells[0] == "0" || cells[0] == "1").collect::<Vec<_>>()
        };
        assert_eq!(rows(2, &none), [["0", "kept", "–", "–", "–", "–"], ["1", "kept", "–", "–", "–", "–"]]);
        // A kept path of a run in which others train has a shard.
        let known = shard(3, 40);
        assert_eq!(rows(1, &known), [["0", "kept", "3", "40", "–", "–"], ["1", "9", "3", "40", "–", "–"]]);
    }
}
