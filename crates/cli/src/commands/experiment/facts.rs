//! What was trained in a cell: sizes, time, shards, held-out losses.

use std::collections::BTreeMap;

use dipaco_config::RunConfig;
use dipaco_experiment::{Facts, Heldout, Shards};
use dipaco_model::{level_specs, parameters, path_specs};
use dipaco_routing::ShardSet;
use dipaco_telemetry::{Event, read_events};
use dipaco_topology::{PathId, Topology};

use crate::error::CliError;
use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;

/// Reads what a trained run says of itself in its last phase of routing. `config` has its vocabulary.
pub(crate) fn facts(run: &RunDirectory, config: &RunConfig, phase: u32) -> Result<Facts, CliError> {
    let topology = Topology::new(&config.topology, config.model.blocks).map_err(StepError::from)?;
    let all = (0..topology.levels()).map(|level| {
        u64::from(topology.modules_in(level))
            * parameters(&level_specs(&config.model, &topology, level)) as u64
    });
    let shards = ShardSet::open(&run.routing(phase).train())?;
    let (seconds, heldout) = told(run)?;
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
        heldout,
    })
}

/// Seconds of all rounds, and the held-out losses, from the run's events.
fn told(run: &RunDirectory) -> Result<(f64, Option<Heldout>), CliError> {
    // A round or a path that was repeated after an interruption counts once.
    let mut rounds: BTreeMap<u64, f64> = BTreeMap::new();
    let mut losses: BTreeMap<PathId, (f64, f64)> = BTreeMap::new();
    for record in read_events(&run.events())? {
        // A line that a dying process cut off.
        let Ok(record) = record else { continue };
        match record.event {
            Event::RoundCompleted { round, seconds, .. } => {
                rounds.insert(round, seconds);
            }
            // Other held-out documents: their losses are not to be compared with those before.
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
