//! Facts about a trained cell: sizes, time, shards, held-out losses.

use std::collections::BTreeMap;

use dipaco_config::RunConfig;
use dipaco_experiment::{Facts, Heldout, Shards, ValidationPoint};
use dipaco_model::{level_specs, parameters, path_specs};
use dipaco_routing::ShardSet;
use dipaco_telemetry::{Event, read_events};
use dipaco_topology::{PathId, Topology};

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
    let (seconds, heldout) = time_and_losses(run)?;
    Ok(Facts {
        paths: topology.paths(),
        modules: (0..topology.levels()).map(|level| topology.modules_in(level)).sum(),
        path_parameters: parameters(&path_specs(&config.model)) as u64,
        all_parameters: all.sum(),
        steps: u64::from(config.train.rounds) * config.train.inner_steps,
        step_tokens: config.train.batch as u64 * config.train.sequence_tokens as u64,
        seconds,
        wire_bytes: None,
        shards: Some(Shards {
            documents: shards.shards().iter().map(|shard| shard.documents).collect(),
            tokens: shards.shards().iter().map(|shard| shard.tokens).collect(),
        }),
        token_gain: dipaco_routing::token_gain(&shards, config.routing.prefix_tokens)?,
        heldout,
        validation: validation(&RunCurves::read(run, config)?),
    })
}

/// The measurements during training with their costs.
fn validation(curves: &RunCurves) -> Vec<ValidationPoint> {
    let point = |&(step, loss): &(f64, f64)| {
        let cost = curves.cost_at(step);
        let (seconds, wire_bytes) = (cost.map(|cost| cost.seconds), cost.map(|cost| cost.wire_bytes));
        ValidationPoint { steps: step as u64, loss, seconds, wire_bytes }
    };
    curves.validation.iter().map(point).collect()
}

/// Seconds of all rounds, and the held-out losses, from the run's events.
fn time_and_losses(run: &RunDirectory) -> Result<(f64, Option<Heldout>), PipelineError> {
    // A round that was repeated after an interruption counts once.
    let mut rounds: BTreeMap<u64, f64> = BTreeMap::new();
    let mut losses: BTreeMap<PathId, (f64, f64)> = BTreeMap::new();
    for record in read_events(&run.events())? {
        // A process that was killed may leave half a line.
        let Ok(record) = record else { continue };
        match record.event {
            Event::RoundCompleted { round, seconds, .. } => {
                rounds.insert(round, seconds);
            }
            // The held-out documents change with the phase, so losses of two phases can not be compared.
            Event::PhaseStarted { .. } => losses.clear(),
            Event::PathCompleted { path, heldout_loss: Some(loss), .. } => {
                let entry = losses.entry(path).or_insert((loss, loss));
                *entry = (entry.0.min(loss), loss);
            }
            _ => {}
        }
    }
    let heldout = (!losses.is_empty()).then(|| Heldout {
        best: losses.values().map(|(best, _)| *best).collect(),
        last: losses.values().map(|(_, last)| *last).collect(),
    });
    Ok((rounds.values().sum(), heldout))
}

#[cfg(test)]
mod tests {
    use dipaco_telemetry::Events;

    use super::*;

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
        let found = validation(&RunCurves::read(&run, &RunConfig::default()).unwrap());
        assert_eq!(found, [point(20, 5.0), point(40, 4.5)]);
    }
}
