//! Curves from a run's events, reduced to the points that a chart can show.

use std::collections::BTreeMap;

use dipaco_config::RunConfig;
use dipaco_telemetry::{Event, read_events};
use dipaco_topology::{ModuleId, Topology};

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;

/// Upper bound on the points of a curve.
const POINTS: u64 = 200;

/// Curves of a run.
#[derive(Clone, Debug)]
pub struct RunCurves {
    /// The run's name.
    pub name: String,
    /// Tokens of one inner step of all paths, padding included.
    pub step_tokens: f64,
    /// Mean training loss over the paths and over a round in nats per token, by the inner step at the round's end.
    pub training: Vec<(f64, f64)>,
    /// Mean loss over the paths on their held-out documents, by inner step.
    pub heldout: Vec<(f64, f64)>,
    /// Loss of the routed model on validation text during training, by inner step.
    pub validation: Vec<(f64, f64)>,
    /// Training loss of the seed model, by its step.
    pub seed_training: Vec<(f64, f64)>,
    /// Validation loss of the seed model, by its step.
    pub seed_validation: Vec<(f64, f64)>,
    /// Cosine between the outer gradients of a module's paths, by outer step.
    pub cosines: BTreeMap<ModuleId, Vec<(f64, f64)>>,
}

/// A curve of means over intervals of equal length.
struct Curve {
    every: u64,
    sums: BTreeMap<u64, (f64, u64, u64)>,
}

impl Curve {
    fn over(steps: u64) -> Self {
        Self { every: steps.div_ceil(POINTS).max(1), sums: BTreeMap::new() }
    }

    fn add(&mut self, step: u64, loss: f64) {
        if loss.is_finite() {
            let (sum, count, last) = self.sums.entry(step.saturating_sub(1) / self.every).or_default();
            *sum += loss;
            *count += 1;
            *last = (*last).max(step);
        }
    }

    fn points(&self) -> Vec<(f64, f64)> {
        self.sums.values().map(|&(sum, count, last)| (last as f64, sum / count as f64)).collect()
    }
}

impl RunCurves {
    /// Reads the events of a run. A run without events has empty curves.
    ///
    /// # Errors
    /// [`PipelineError::Events`] when the event file can't be read, [`PipelineError::Topology`] when the configuration is
    /// wrong.
    pub fn read(run: &RunDirectory, config: &RunConfig) -> Result<Self, PipelineError> {
        let topology = Topology::new(&config.topology, config.model.blocks)?;
        let inner = config.train.inner_steps;
        let mut training: BTreeMap<u64, BTreeMap<u32, f64>> = BTreeMap::new();
        let mut seed_training = Curve::over(config.seed_model.steps);
        let mut heldout: BTreeMap<u64, BTreeMap<u32, f64>> = BTreeMap::new();
        let mut seed_validation = BTreeMap::new();
        let mut validation = BTreeMap::new();
        let mut cosines: BTreeMap<ModuleId, BTreeMap<u64, f64>> = BTreeMap::new();
        if run.events().exists() {
            for record in read_events(&run.events())? {
                // A process that was killed may leave half a line, and a later version may write other events.
                let Ok(record) = record else { continue };
                match record.event {
                    Event::SeedStep { step, loss, .. } => seed_training.add(step, loss),
                    Event::SeedValidated { step, loss, .. } => {
                        seed_validation.insert(step, loss);
                    }
                    Event::Validated { steps, loss, .. } => {
                        validation.insert(steps, loss);
                    }
                    Event::PathCompleted { path, round, loss, heldout_loss, .. } => {
                        // The lease after the last round only measures, and its loss is not a number.
                        if loss.is_finite() {
                            training.entry((round + 1) * inner).or_default().insert(path.0, loss);
                        }
                        // The held-out loss belongs to the weights at the begin of the round.
                        if let Some(loss) = heldout_loss {
                            heldout.entry(round * inner).or_default().insert(path.0, loss);
                        }
                    }
                    Event::ModuleStepped { module, version, cosine: Some(cosine), .. } => {
                        cosines.entry(module).or_default().insert(version, cosine);
                    }
                    _ => {}
                }
            }
        }
        let floats = |points: BTreeMap<u64, f64>| -> Vec<(f64, f64)> {
            points.into_iter().map(|(at, value)| (at as f64, value)).collect()
        };
        let mean = |losses: &BTreeMap<u32, f64>| losses.values().sum::<f64>() / losses.len() as f64;
        let means = |rounds: BTreeMap<u64, BTreeMap<u32, f64>>| -> Vec<(f64, f64)> {
            floats(rounds.into_iter().map(|(at, losses)| (at, mean(&losses))).collect())
        };
        Ok(Self {
            name: config.run.name.clone(),
            step_tokens: f64::from(topology.paths())
                * (config.train.batch as f64 * config.train.sequence_tokens as f64),
            training: means(training),
            heldout: means(heldout),
            validation: floats(validation),
            seed_training: seed_training.points(),
            seed_validation: floats(seed_validation),
            cosines: cosines.into_iter().map(|(module, points)| (module, floats(points))).collect(),
        })
    }
}
