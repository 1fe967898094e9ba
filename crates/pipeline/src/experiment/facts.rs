//! Facts about a trained cell: sizes, time, shards, held-out losses.

use std::collections::BTreeMap;

use dipaco_config::RunConfig;
use dipaco_experiment::{Facts, Heldout, Shards, ValidationPoint};
use dipaco_model::{level_specs, parameters, path_specs};
use dipaco_routing::ShardSet;
use dipaco_store::ShardRecord;
use dipaco_telemetry::{Event, read_events};
use dipaco_topology::{PathId, Topology};
use dipaco_train::shard_repeats;

use crate::charts::RunCurves;
use crate::error::PipelineError;
use crate::run_directory::RunDirectory;

/// Collects the facts about a trained run in its last phase of routing. `config` has its vocabulary.
pub(super) fn facts(run: &RunDirectory, config: &RunConfig, phase: u32) -> Result<Facts, PipelineError> {
    let topology = Topology::new(&config.topology, config.model.blocks)?;
    let all = (0..topology.levels()).map(|level| {
        u64::from(topology.modules_in(level))
            * parameters(&level_specs(&config.model, &topology, level)) as u64
    });
    let shards = ShardSet::open(&run.routing(phase).train())?;
    let curves = RunCurves::read(run, config)?;
    let steps = steps(&curves, config);
    let rounds = steps as f64 / config.train.inner_steps.max(1) as f64;
    let readings = shards.shards().iter().map(|shard| {
        let (documents, tokens) = (shard.documents, shard.tokens);
        let shard = ShardRecord { file: String::new(), hash: String::new(), documents, tokens };
        shard_repeats(&shard, &config.train, rounds)
    });
    Ok(Facts {
        paths: topology.paths(),
        modules: (0..topology.levels()).map(|level| topology.modules_in(level)).sum(),
        path_parameters: parameters(&path_specs(&config.model)) as u64,
        all_parameters: all.sum(),
        steps,
        readings: readings.reduce(f64::max),
        step_tokens: config.train.batch as u64 * config.train.sequence_tokens as u64,
        seconds: seconds(&curves),
        wire_bytes: None,
        shards: Some(Shards {
            documents: shards.shards().iter().map(|shard| shard.documents).collect(),
            tokens: shards.shards().iter().map(|shard| shard.tokens).collect(),
        }),
        token_gain: dipaco_routing::token_gain(&shards, config.routing.prefix_tokens)?,
        heldout: heldout(run)?,
        validation: validation(&curves),
        trained_by: None,
    })
}

/// Inner steps of each path in the whole training.
fn steps(curves: &RunCurves, config: &RunConfig) -> u64 {
    curves.path_steps(f64::from(config.train.rounds) * config.train.inner_steps as f64) as u64
}

/// The measurements during training with their costs.
fn validation(curves: &RunCurves) -> Vec<ValidationPoint> {
    let point = |&(step, loss): &(f64, f64)| {
        let cost = curves.cost_at(step);
        let (seconds, wire_bytes) = (cost.map(|cost| cost.seconds), cost.map(|cost| cost.wire_bytes));
        ValidationPoint { steps: curves.path_steps(step) as u64, loss, seconds, wire_bytes }
    };
    curves.validation.iter().map(point).collect()
}

/// Seconds from the start of the training to the end of its last round; 0 when the events do not tell. Rounds overlap, so
/// their seconds together are more.
fn seconds(curves: &RunCurves) -> f64 {
    curves.cost().map_or(0.0, |cost| cost.seconds)
}

/// The held-out losses from the run's events.
fn heldout(run: &RunDirectory) -> Result<Option<Heldout>, PipelineError> {
    let mut losses: BTreeMap<PathId, (f64, f64)> = BTreeMap::new();
    for record in read_events(&run.events())? {
        // A process that was killed may leave half a line.
        let Ok(record) = record else { continue };
        match record.event {
            // The held-out documents change with the phase, so losses of two phases can not be compared.
            Event::PhaseStarted { .. } => losses.clear(),
            Event::PathCompleted { path, heldout_loss: Some(loss), .. } => {
                let entry = losses.entry(path).or_insert((loss, loss));
                *entry = (entry.0.min(loss), loss);
            }
            _ => {}
        }
    }
    Ok((!losses.is_empty()).then(|| Heldout {
        best: losses.values().map(|(best, _)| *best).collect(),
        last: losses.values().map(|(_, last)| *last).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, SystemTime};

    use dipaco_config::PathsPerRound;
    use dipaco_telemetry::{Events, RunClock, WireBytes};

    use super::*;

    /// A clock on which each event comes a second after the one before it.
    struct Ticking(AtomicU64);

    impl RunClock for Ticking {
        fn elapsed(&self) -> Duration {
            Duration::ZERO
        }

        fn now(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH + Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed))
        }
    }

    #[test]
    fn the_time_in_which_rounds_overlap_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        let events = Events::with_clock(&run.events(), Box::new(Ticking(AtomicU64::new(0)))).unwrap();
        let events = events.with_wire_bytes(Arc::new(WireBytes::default));
        events.write(Event::CoordinatorStarted { rounds: 0 }).unwrap();
        for (round, seconds) in [(0, 1.0), (1, 1.5), (2, 2.0)] {
            events.write(Event::RoundCompleted { round, loss: 4.0, seconds, wire_bytes: None }).unwrap();
        }
        events.write(Event::CoordinatorStopped { wire_bytes: WireBytes::default() }).unwrap();
        assert!((seconds(&RunCurves::read(&run, &RunConfig::default()).unwrap()) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn events_without_the_start_of_a_coordinator_tell_no_time() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        let events = Events::create(&run.events()).unwrap();
        events.write(Event::RoundCompleted { round: 0, loss: 4.0, seconds: 1.0, wire_bytes: None }).unwrap();
        assert!(seconds(&RunCurves::read(&run, &RunConfig::default()).unwrap()).abs() < 1e-9);
    }

    #[test]
    fn measurements_during_training_are_facts() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        let events = Events::create(&run.events()).unwrap();
        for (rounds, loss) in [(2, 5.0), (4, 4.5)] {
            let (steps, tokens) = (10 * rounds, 1);
            let (trained_tokens, seconds, bits_per_byte) = (0, 0.0, None);
            let event =
                Event::Validated { rounds, steps, trained_tokens, seconds, loss, bits_per_byte, tokens };
            events.write(event).unwrap();
        }
        let point = |steps, loss| ValidationPoint { steps, loss, seconds: None, wire_bytes: None };
        let mut config = RunConfig::default();
        (config.train.rounds, config.train.inner_steps) = (5, 10);
        let found = |config: &RunConfig| {
            let curves = RunCurves::read(&run, config).unwrap();
            (validation(&curves), steps(&curves, config))
        };
        assert_eq!(found(&config), (vec![point(20, 5.0), point(40, 4.5)], 50));
        config.train.paths_per_round = PathsPerRound::Always(2);
        assert_eq!(found(&config), (vec![point(10, 5.0), point(20, 4.5)], 25), "half of the paths rest");
    }
}
