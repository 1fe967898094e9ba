//! Curves from a run's events, reduced to the points that a chart can show.

use std::collections::BTreeMap;

use dipaco_config::{RunConfig, TrainConfig};
use dipaco_monitor::{CostMeter, PathRounds, TrainingCost};
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
    /// [`PipelineError::Events`] when the event file can't be read, [`PipelineError::Topology`] when the configuration is
    /// wrong.
    pub fn read(run: &RunDirectory, config: &RunConfig) -> Result<Self, PipelineError> {
        let mut sums = EventSums::new(config);
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
    /// Rounds that all paths had completed by then. With a quorum the version does not tell.
    rounds: u64,
}

/// The events so far.
struct EventSums {
    inner_steps: u64,
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
    fn new(config: &RunConfig) -> Self {
        Self {
            inner_steps: config.train.inner_steps,
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
        }
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
                // A module often takes its outer step before its round is complete, and then the version tells the round. With a
                // quorum it does not: such a step of the first undone round may stay, or one of the last kept round go.
                let (rounds, cosines) = (self.completed, &mut self.cosines);
                cosines.retain(|_, points| {
                    points.retain(|version, point| {
                        point.rounds < rounds || point.rounds == rounds && *version <= rounds
                    });
                    !points.is_empty()
                });
            }
            Event::ModuleStepped { module, fragment, version, cosine: Some(cosine), .. } => {
                let point = CosinePoint { cosine, rounds: self.completed };
                self.cosines.entry((module, fragment)).or_default().insert(version, point);
            }
            _ => {}
        }
    }

    fn curves(mut self, config: &RunConfig) -> Result<RunCurves, PipelineError> {
        let topology = Topology::new(&config.topology, config.model.blocks)?;
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
mod tests {
    use dipaco_config::PathsPerRound;
    use dipaco_telemetry::WireBytes;
    use dipaco_topology::PathId;

    use super::*;

    fn started() -> Event {
        Event::CoordinatorStarted { rounds: 0 }
    }

    /// A lease of the first path. Its held-out loss is larger by one.
    fn lease(round: u64, steps: u64, loss: f64) -> Event {
        Event::PathCompleted {
            path: PathId(0),
            round,
            worker: "a".to_owned(),
            steps: Some(steps),
            loss,
            heldout_loss: Some(loss + 1.0),
            best: true,
            seconds: 1.0,
            waited_seconds: 0.0,
        }
    }

    /// A round of a run of one path, and the bytes since the coordinator began.
    fn round(round: u64, loss: f64, sent: u64) -> [Event; 2] {
        let path = lease(round, 10, loss);
        let wire_bytes = Some(WireBytes { sent, received: 0 });
        [path, Event::RoundCompleted { round, loss, seconds: 1.0, wire_bytes }]
    }

    fn validated(rounds: u64, loss: f64) -> Event {
        Event::Validated {
            rounds,
            steps: 10 * rounds,
            trained_tokens: 0,
            seconds: 0.0,
            loss,
            bits_per_byte: None,
            tokens: 1,
        }
    }

    /// An outer step of a fragment of the first module.
    fn stepped(fragment: u32, version: u64, cosine: f64) -> Event {
        Event::ModuleStepped {
            module: ModuleId { level: 0, index: 0 },
            fragment,
            version,
            paths: 2,
            outer_gradient_norm: 1.0,
            cosine: Some(cosine),
        }
    }

    /// The curves of these events, a second apart.
    fn curves(events: Vec<Event>) -> RunCurves {
        let mut config = RunConfig::default();
        config.train.inner_steps = 10;
        let mut sums = EventSums::new(&config);
        for (second, event) in events.into_iter().enumerate() {
            sums.add(EventRecord { time: format!("2026-01-01T00:00:{second:02}.000Z"), event });
        }
        sums.curves(&config).unwrap()
    }

    fn costs(curves: &RunCurves, points: &[(f64, f64)]) -> Vec<Option<(f64, u64)>> {
        let cost = |step| curves.cost_at(step).map(|cost| (cost.seconds, cost.wire_bytes));
        points.iter().map(|&(step, _)| cost(step)).collect()
    }

    #[test]
    fn losses_have_the_cost_of_their_rounds_over_all_coordinators() {
        let [path, _] = round(2, 3.0, 0);
        let events = [vec![started()], round(0, 5.0, 100).to_vec(), vec![validated(1, 5.5), started()]];
        let later = [round(1, 4.0, 30).to_vec(), vec![path]];
        let curves = curves([events.concat(), later.concat()].concat());
        assert_eq!(curves.training, [(10.0, 5.0), (20.0, 4.0), (30.0, 3.0)]);
        assert_eq!(costs(&curves, &curves.training), [Some((2.0, 100)), Some((4.0, 130)), None]);
        assert_eq!(curves.validation, [(10.0, 5.5)]);
        assert_eq!(costs(&curves, &curves.validation), [Some((2.0, 100))]);
        assert_eq!(costs(&curves, &curves.heldout), [Some((0.0, 0)), Some((2.0, 100)), Some((4.0, 130))]);
    }

    #[test]
    fn a_round_of_several_leases_has_the_mean_over_its_inner_steps() {
        let curves = curves(vec![started(), lease(0, 2, 9.0), lease(0, 8, 4.0), lease(1, 2, 3.0)]);
        assert_eq!(curves.training, [(10.0, 5.0), (20.0, 3.0)]);
        assert_eq!(curves.heldout, [(0.0, 10.0), (10.0, 4.0)], "before the inner steps of the round");
    }

    #[test]
    fn undone_rounds_have_no_points_and_cost_nevertheless() {
        let rounds = [vec![started()], round(0, 5.0, 10).to_vec(), round(1, 9.0, 20).to_vec()];
        let undone = vec![validated(2, 9.5), Event::RolledBack { from: 2, to: 1, undone: vec![2] }];
        let mut events = [rounds.concat(), undone].concat();
        assert_eq!(curves(events.clone()).training, [(10.0, 5.0)]);
        events.extend([vec![started()], round(1, 4.0, 7).to_vec()].concat());
        let curves = curves(events);
        assert_eq!(curves.training, [(10.0, 5.0), (20.0, 4.0)]);
        assert!(curves.validation.is_empty(), "{:?}", curves.validation);
        assert_eq!(costs(&curves, &curves.training), [Some((2.0, 10)), Some((6.0, 27))]);
    }

    #[test]
    fn fragments_have_cosines_of_their_own() {
        let curves = curves(vec![started(), stepped(0, 1, 0.5), stepped(1, 1, 0.25)]);
        let points: Vec<_> = curves.cosines.into_values().collect();
        assert_eq!(points, [[(1.0, 0.5)], [(1.0, 0.25)]]);
    }

    #[test]
    fn undone_rounds_have_no_cosines() {
        let mut events = vec![started()];
        for at in 0..3 {
            // One fragment steps before its round is complete, and the other one after it.
            events.push(stepped(0, at + 1, 0.5));
            events.extend(round(at, 5.0, 10));
            events.push(stepped(1, at + 1, 0.25));
        }
        events.push(Event::RolledBack { from: 3, to: 1, undone: vec![2, 3] });
        let points: Vec<_> = curves(events).cosines.into_values().collect();
        assert_eq!(points, [[(1.0, 0.5)], [(1.0, 0.25)]]);
    }

    #[test]
    fn a_path_takes_no_steps_in_a_round_in_which_it_rests() {
        let of = |paths_per_round| {
            let mut config = RunConfig::default();
            (config.train.inner_steps, config.train.batch, config.train.sequence_tokens) = (10, 2, 100);
            config.train.paths_per_round = paths_per_round;
            let curves = EventSums::new(&config).curves(&config).unwrap();
            assert_eq!(curves.trained, 4);
            move |step| (curves.path_steps(step), curves.tokens_at(step))
        };
        let all = of(PathsPerRound::default());
        assert_eq!([all(0.0), all(25.0)], [(0.0, 0.0), (25.0, 20_000.0)]);
        let two = of(PathsPerRound::Always(2));
        assert_eq!([two(20.0), two(25.0)], [(10.0, 8_000.0), (12.5, 10_000.0)]);
        let changing = of(PathsPerRound::Changing(vec![(0, 1), (2, 0)]));
        assert_eq!([changing(20.0), changing(25.0)], [(5.0, 4_000.0), (10.0, 8_000.0)]);
    }
}
