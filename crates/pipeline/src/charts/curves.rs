//! Curves from a run's events, reduced to the points that a chart can show.

use std::collections::BTreeMap;

use dipaco_config::{RunConfig, TrainConfig};
use dipaco_monitor::{CostMeter, PathRounds, TrainingCost};
use dipaco_protocol::WorkerPlan;
use dipaco_telemetry::{Event, EventRecord, read_events};
use dipaco_topology::{ModuleId, Topology};

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;

/// Upper bound on the points of a curve.
const POINTS: u64 = 200;

/// Curves of a run. A repeated round has its last values, and a round that a rollback undid has none. A step of the run is
/// an inner step of a round. Paths that rest in the round do not take it.
#[derive(Clone, Debug)]
pub struct RunCurves {
    /// The run's name.
    pub name: String,
    /// Mean training loss over the paths and over a round in nats per token, by the run's step at the round's end.
    pub training: Vec<(f64, f64)>,
    /// Mean loss over the paths on their held-out documents, by the run's step.
    pub heldout: Vec<(f64, f64)>,
    /// Loss of the routed model on validation text during training, by the run's step.
    pub validation: Vec<(f64, f64)>,
    /// Training loss of the seed model, by its step.
    pub seed_training: Vec<(f64, f64)>,
    /// Validation loss of the seed model, by its step.
    pub seed_validation: Vec<(f64, f64)>,
    /// Cosine between the outer gradients of a module's paths, by outer step: a curve for each fragment of each module.
    pub cosines: BTreeMap<(ModuleId, u32), Vec<(f64, f64)>>,
    /// Cost of the training up to a step of the run; empty when the events do not tell.
    costs: BTreeMap<u64, TrainingCost>,
    train: TrainConfig,
    /// Number of paths that train.
    trained: u64,
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
    /// [`PipelineError::Events`] when the event file can't be read, [`PipelineError::Topology`] and
    /// [`PipelineError::Plan`] when the configuration is wrong.
    pub fn read(run: &RunDirectory, config: &RunConfig) -> Result<Self, PipelineError> {
        let mut sums = EventSums::new(config)?;
        if run.events().exists() {
            // A process that was killed may leave half a line, and a later version may write other events.
            read_events(&run.events())?.filter_map(Result::ok).for_each(|record| sums.add(record));
        }
        sums.curves(config)
    }

    /// Inner steps of each path up to a step of the run: the mean, because paths may rest (`train.paths_per_round`).
    #[must_use]
    pub fn path_steps(&self, step: f64) -> f64 {
        self.steps_of_paths(step) as f64 / self.trained.max(1) as f64
    }

    /// Tokens of all paths up to a step of the run, padding included.
    #[must_use]
    pub fn tokens_at(&self, step: f64) -> f64 {
        self.steps_of_paths(step) as f64 * (self.train.batch as f64 * self.train.sequence_tokens as f64)
    }

    /// Inner steps of all paths together up to a step of the run.
    fn steps_of_paths(&self, step: f64) -> u64 {
        let (step, inner) = (step as u64, self.train.inner_steps.max(1));
        let round = u32::try_from(step / inner).unwrap_or(u32::MAX);
        let rounds_of_paths = |rounds| self.train.paths_per_round.rounds_of_paths(self.trained, rounds);
        let (before, after) = (rounds_of_paths(round), rounds_of_paths(round.saturating_add(1)));
        before.saturating_mul(inner).saturating_add(after.saturating_sub(before).saturating_mul(step % inner))
    }

    /// Cost of the training up to a step of the run: when all paths had completed the round of this step.
    #[must_use]
    pub fn cost_at(&self, step: f64) -> Option<TrainingCost> {
        self.costs.range((step as u64)..).next().map(|(_, cost)| *cost)
    }

    /// Cost of the training up to its last complete round; `None` when the events do not tell.
    #[must_use]
    pub fn cost(&self) -> Option<TrainingCost> {
        self.costs.last_key_value().map(|(_, cost)| *cost)
    }
}

/// Losses of the paths by the run's step.
type PathLosses = BTreeMap<u64, BTreeMap<u32, f64>>;

/// The cosine of an outer step.
struct CosinePoint {
    cosine: f64,
    /// Rounds that all paths had completed by then.
    rounds: u64,
}

/// The events so far.
struct EventSums {
    inner_steps: u64,
    /// The number of sends of a fragment up to an inner step, by the run's schedule.
    sent: Box<dyn Fn(u32, u64) -> u64>,
    rounds: PathRounds,
    /// Rounds that all paths have completed.
    completed: u64,
    training: PathLosses,
    heldout: PathLosses,
    validation: BTreeMap<u64, f64>,
    seed_training: Curve,
    seed_validation: BTreeMap<u64, f64>,
    /// By fragment, then by version.
    cosines: BTreeMap<(ModuleId, u32), BTreeMap<u64, CosinePoint>>,
    meter: CostMeter,
    costs: BTreeMap<u64, TrainingCost>,
}

impl EventSums {
    fn new(config: &RunConfig) -> Result<Self, PipelineError> {
        let schedule = WorkerPlan::new(config).schedule()?;
        Ok(Self {
            inner_steps: config.train.inner_steps,
            sent: Box::new(move |fragment, step| schedule.sent_through(fragment, step)),
            rounds: PathRounds::default(),
            completed: 0,
            training: BTreeMap::new(),
            heldout: BTreeMap::new(),
            validation: BTreeMap::new(),
            seed_training: Curve::over(config.seed_model.steps),
            seed_validation: BTreeMap::new(),
            cosines: BTreeMap::new(),
            meter: CostMeter::default(),
            costs: BTreeMap::new(),
        })
    }

    /// Steps of the run after so many rounds.
    fn steps(&self, rounds: u64) -> u64 {
        rounds.saturating_mul(self.inner_steps)
    }

    fn add(&mut self, record: EventRecord) {
        let cost = self.meter.add(&record);
        let leases = self.rounds.add(&record.event);
        match record.event {
            Event::SeedStep { step, loss, .. } => self.seed_training.add(step, loss),
            Event::SeedValidated { step, loss, .. } => {
                self.seed_validation.insert(step, loss);
            }
            Event::Validated { steps, loss, .. } => {
                self.validation.insert(steps, loss);
            }
            Event::PathCompleted { path, round, heldout_loss, .. } => {
                // The lease after the last round only measures, and has no loss.
                if let Some(loss) = leases.and_then(|leases| leases.loss()) {
                    let end = self.steps(round.saturating_add(1));
                    self.training.entry(end).or_default().insert(path.0, loss);
                }
                // The held-out loss belongs to the weights at the begin of the round. A later lease of it measures others.
                let first = leases.is_none_or(|leases| leases.leases == 1);
                if let Some(loss) = heldout_loss.filter(|_| first) {
                    let begin = self.steps(round);
                    self.heldout.entry(begin).or_default().insert(path.0, loss);
                }
            }
            Event::RoundCompleted { round, .. } => {
                self.completed = round.saturating_add(1);
                let step = self.steps(self.completed);
                // A round that is repeated costs again, and so do the rounds after it.
                while self.costs.last_key_value().is_some_and(|(known, _)| *known >= step) {
                    self.costs.pop_last();
                }
                self.costs.extend(cost.map(|cost| (step, cost)));
            }
            Event::RolledBack { to, .. } => {
                self.completed = to.into();
                let kept = self.steps(self.completed);
                self.training.retain(|step, _| *step <= kept);
                self.heldout.retain(|step, _| *step <= kept);
                self.validation.retain(|step, _| *step <= kept);
                self.costs.retain(|step, _| *step <= kept);
                self.keep_cosines(kept);
            }
            Event::ModuleStepped { module, fragment, version, cosine, .. } => {
                let (rounds, points) = (self.completed, self.cosines.entry((module, fragment)).or_default());
                // A step follows the version before it, so a rollback has undone known steps of later versions.
                while points.last_key_value().is_some_and(|(known, _)| *known >= version) {
                    points.pop_last();
                }
                points.extend(cosine.map(|cosine| (version, CosinePoint { cosine, rounds })));
            }
            _ => {}
        }
    }

    /// Keeps the cosines of the run's checkpoint at this step of the run.
    fn keep_cosines(&mut self, step: u64) {
        let (rounds, sent) = (self.completed, &self.sent);
        for (&(_, fragment), points) in &mut self.cosines {
            // The events don't tell whether the checkpoint has a step of paths that were ahead. Such a step stays until its
            // module steps again. With a quorum a step merges any number of sends, so the version does not tell, either.
            let merged = sent(fragment, step);
            points.retain(|version, point| {
                point.rounds < rounds || point.rounds == rounds && *version <= merged
            });
        }
    }

    fn curves(mut self, config: &RunConfig) -> Result<RunCurves, PipelineError> {
        let topology = Topology::new(&config.topology, config.model.blocks)?;
        self.cosines.retain(|_, points| !points.is_empty());
        if !self.costs.is_empty() {
            self.costs.insert(0, TrainingCost::default());
        }
        let floats = |points: BTreeMap<u64, f64>| -> Vec<(f64, f64)> {
            points.into_iter().map(|(at, value)| (at as f64, value)).collect()
        };
        let mean = |losses: &BTreeMap<u32, f64>| losses.values().sum::<f64>() / losses.len() as f64;
        let means = |steps: PathLosses| -> Vec<(f64, f64)> {
            floats(steps.into_iter().map(|(at, losses)| (at, mean(&losses))).collect())
        };
        let cosines = |points: BTreeMap<u64, CosinePoint>| -> Vec<(f64, f64)> {
            points.into_iter().map(|(version, point)| (version as f64, point.cosine)).collect()
        };
        Ok(RunCurves {
            name: config.run.name.clone(),
            training: means(self.training),
            heldout: means(self.heldout),
            validation: floats(self.validation),
            seed_training: self.seed_training.points(),
            seed_validation: floats(self.seed_validation),
            cosines: self.cosines.into_iter().map(|(key, points)| (key, cosines(points))).collect(),
            costs: self.costs,
            train: config.train.clone(),
            trained: topology.trained_paths().len() as u64,
        })
    }
}

#[cfg(test)]
mod tests;
