//! `dipaco status --data`: the text that each path has used, and its share in the weights.

use dipaco_config::RunConfig;
use dipaco_protocol::{PlanError, WorkerPlan};
use dipaco_store::{PathRecord, TrainingRecord};
use dipaco_sync::Schedule;
use dipaco_telemetry::{Align, Table, human};
use dipaco_topology::{PathId, Topology};
use serde::Serialize;

/// The accounts of all paths.
#[derive(Debug, Serialize)]
pub(super) struct Accounts {
    paths: Vec<Account>,
    /// Paths whose account does not balance.
    wrong: Vec<u32>,
}

/// The account of a path.
#[derive(Debug, Serialize)]
struct Account {
    path: u32,
    /// Inner steps of complete leases, without those of rounds in which the path rests. A kept path has none, and a path in
    /// quarantine those before it.
    steps: u64,
    /// The inner step since which the path is in quarantine; absent if it is in none.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantined_since: Option<u64>,
    /// Sequences drawn from the shard in this phase. They are drawn in turn: every sequence is used once before any is used
    /// again.
    sequences: u64,
    /// Inner steps in the outer gradients that count, for the fragment with the fewest and the fragment with the most.
    counted_steps: [u64; 2],
    /// Inner steps in outer gradients that wait for an outer step, for the fragment with the most.
    waiting_steps: u64,
    /// Tokens in the outer gradients of the fragment with the most.
    counted_tokens: u64,
    /// True if the outer gradients of each fragment hold every inner step once, up to the last one that a complete lease
    /// sent. The lease that is out may have sent more. For a path in quarantine: if none holds more steps than that.
    balanced: bool,
}

impl Accounts {
    pub(super) fn new(training: &TrainingRecord, config: &RunConfig) -> Result<Self, PlanError> {
        let plan = WorkerPlan::new(config);
        let (schedule, topology) = (plan.schedule()?, plan.topology()?);
        let account = |(path, record)| Account::new(path, record, training, config, (&schedule, &topology));
        let paths: Vec<_> = (0..).zip(&training.paths).map(account).collect();
        let wrong = paths.iter().filter(|account| !account.balanced).map(|account| account.path).collect();
        Ok(Self { paths, wrong })
    }
}

impl Account {
    fn new(
        path: u32,
        record: &PathRecord,
        training: &TrainingRecord,
        config: &RunConfig,
        (schedule, topology): (&Schedule, &Topology),
    ) -> Self {
        // The record's steps go on while the path rests, and those of a kept path, which nobody trains, are those of the run.
        let kept = path < config.topology.kept_paths;
        let taken = |from, to| if kept { 0 } else { schedule.trained(PathId(path), from, to) };
        // The steps of a path in quarantine go on without training.
        let last = record.steps_before_quarantine();
        let steps = taken(0, last);
        // A level that does not train has no outer gradients.
        let fragments = config.sync.fragments.max(1);
        let levels = (0..topology.levels()).map(|level| topology.trains(level));
        let slots = levels.flat_map(|trains| (0..fragments).map(move |fragment| (fragment, trains)));
        let trained = record.counted.iter().zip(slots).filter(|(_, (_, trains))| *trains);
        let counted: Vec<_> = trained.map(|(counted, (fragment, _))| (fragment, counted.steps)).collect();
        let most = counted.iter().map(|(_, steps)| *steps).max().unwrap_or(0);
        let least = counted.iter().map(|(_, steps)| *steps).min().unwrap_or(0);
        let waiting = record.gradients.iter().map(|g| (g.module.level, g.fragment, g.steps));
        let mut by_fragment = std::collections::BTreeMap::new();
        waiting
            .for_each(|(level, fragment, steps)| *by_fragment.entry((level, fragment)).or_insert(0) += steps);
        // The inner steps in the outer gradients of a fragment that a path has sent after `step` steps. A lease of
        // dynamic length sends all its steps.
        let sent = |fragment, step: u64| {
            let unsent = if config.sync.dynamic_steps {
                0
            } else {
                schedule.steps_in(PathId(path), fragment, step + 1).saturating_sub(1)
            };
            taken(0, step - unsent)
        };
        // A lease that is out may have sent gradients of steps beyond the last complete lease.
        let out = schedule.next_stop(schedule.rests_until(PathId(path), last));
        // The modules of a path in quarantine may have gone back to a checkpoint.
        let quarantined_since = record.quarantine.as_ref().map(|quarantine| quarantine.step);
        let balanced = counted.iter().all(|&(fragment, counted)| {
            (quarantined_since.is_some() || counted >= sent(fragment, last)) && counted <= sent(fragment, out)
        });
        Self {
            path,
            steps,
            quarantined_since,
            sequences: taken(training.phase_begin_step(), last) * config.train.batch as u64,
            counted_steps: [least, most],
            waiting_steps: by_fragment.into_values().max().unwrap_or(0),
            counted_tokens: record.counted.iter().map(|counted| counted.tokens).max().unwrap_or(0),
            balanced,
        }
    }
}

impl std::fmt::Display for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let right = Align::Right;
        let mut table = Table::new(&[
            ("path", right),
            ("inner steps", right),
            ("in outer gradients", right),
            ("of them waiting", right),
            ("tokens", right),
            ("sequences in this phase", right),
        ]);
        for account in &self.paths {
            let [least, most] = account.counted_steps;
            let counted = if least == most {
                human::integer(most)
            } else {
                format!("{} to {}", human::integer(least), human::integer(most))
            };
            table.row([
                account.path.to_string(),
                human::integer(account.steps),
                counted,
                human::integer(account.waiting_steps),
                human::integer(account.counted_tokens),
                human::integer(account.sequences),
            ]);
        }
        table.fmt(f)?;
        for Account { path, quarantined_since, .. } in &self.paths {
            if let Some(step) = quarantined_since {
                writeln!(f, "path {path} is in quarantine since inner step {}", human::integer(*step))?;
            }
        }
        let quarantine = self.paths.iter().any(|account| account.quarantined_since.is_some());
        match self.wrong.as_slice() {
            [] if quarantine => writeln!(f, "every inner step of the other paths counts once"),
            [] => writeln!(f, "every inner step counts once"),
            wrong => writeln!(f, "does not balance: paths {wrong:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use dipaco_config::PathsPerRound;
    use dipaco_store::{CountRecord, QuarantineRecord};
    use dipaco_sync::SchedulePoint;

    use super::*;

    #[test]
    fn rounds_in_which_a_path_rests_are_no_steps_of_it() {
        let mut config = RunConfig::default();
        (config.train.rounds, config.train.paths_per_round) = (6, PathsPerRound::Always(2));
        let (inner_steps, batch) = (config.train.inner_steps, config.train.batch as u64);
        let schedule = WorkerPlan::new(&config).schedule().unwrap();
        let end = schedule.total();
        let took = |path| schedule.trained(PathId(path), 0, end);
        let record = |path| PathRecord {
            steps: end,
            counted: vec![CountRecord { steps: took(path), tokens: 1 }; 2],
            ..PathRecord::default()
        };
        let mut training = TrainingRecord {
            rounds: config.train.rounds,
            inner_steps,
            paths: (0..4).map(record).collect(),
            ..TrainingRecord::default()
        };
        let accounts = Accounts::new(&training, &config).unwrap();
        assert!(accounts.wrong.is_empty(), "{accounts}");
        for account in &accounts.paths {
            let steps = took(account.path);
            assert_eq!((account.steps, account.sequences), (steps, steps * batch), "path {}", account.path);
        }
        assert_eq!(accounts.paths.iter().map(|account| account.steps).sum::<u64>(), 6 * 2 * inner_steps);

        let most = (0..4).max_by_key(|&path| took(path)).unwrap();
        training.paths[most as usize].counted[0].steps -= inner_steps;
        assert_eq!(Accounts::new(&training, &config).unwrap().wrong, [most], "an outer gradient is lost");
    }

    #[test]
    fn a_kept_path_has_taken_no_step() {
        let mut config = RunConfig::default();
        (config.topology.paths, config.topology.kept_paths) = (vec![vec![0, 0], vec![1, 1]], 1);
        let end = WorkerPlan::new(&config).schedule().unwrap().total();
        let record = |counted| PathRecord {
            steps: end,
            counted: vec![CountRecord { steps: counted, tokens: counted }; 2],
            ..PathRecord::default()
        };
        let training = TrainingRecord {
            rounds: config.train.rounds,
            inner_steps: config.train.inner_steps,
            paths: vec![record(0), record(end)],
            ..TrainingRecord::default()
        };
        let accounts = Accounts::new(&training, &config).unwrap();
        let taken: Vec<_> = accounts.paths.iter().map(|account| (account.steps, account.sequences)).collect();
        assert_eq!(taken, [(0, 0), (end, end * config.train.batch as u64)]);
        assert!(accounts.wrong.is_empty(), "{accounts}");
    }

    #[test]
    fn the_steps_of_a_quarantine_are_not_taken_and_nothing_is_claimed_of_them() {
        let config = RunConfig::default();
        let end = WorkerPlan::new(&config).schedule().unwrap().total();
        let first = config.train.inner_steps;
        let record = |counted, since: Option<u64>| PathRecord {
            steps: end,
            counted: vec![CountRecord { steps: counted, tokens: counted }; 2],
            quarantine: since.map(|step| QuarantineRecord {
                step,
                workers: Vec::new(),
                reason: "its training diverged".into(),
                back_to: None,
            }),
            ..PathRecord::default()
        };
        let training = |paths| TrainingRecord {
            rounds: config.train.rounds,
            inner_steps: config.train.inner_steps,
            paths,
            ..TrainingRecord::default()
        };
        let paths =
            vec![record(end, None), record(0, Some(0)), record(first, Some(first)), record(end, None)];
        let accounts = Accounts::new(&training(paths), &config).unwrap();
        let taken: Vec<_> = accounts.paths.iter().map(|account| (account.steps, account.sequences)).collect();
        let batch = config.train.batch as u64;
        assert_eq!(taken, [(end, end * batch), (0, 0), (first, first * batch), (end, end * batch)]);
        let text = accounts.to_string();
        for says in [
            "path 1 is in quarantine since inner step 0\n".to_owned(),
            format!("path 2 is in quarantine since inner step {first}\n"),
            "every inner step of the other paths counts once\n".to_owned(),
        ] {
            assert!(text.contains(&says), "{text}");
        }
        // Outer gradients of steps that nobody took are one too many.
        let paths = vec![record(end, None), record(end, Some(first)), record(end, None), record(end, None)];
        let accounts = Accounts::new(&training(paths), &config).unwrap();
        assert_eq!(accounts.wrong, [1], "{accounts}");
        assert!(!accounts.to_string().contains("counts once"), "{accounts}");
    }

    #[test]
    fn an_outer_gradient_that_is_dropped_or_not_due_yet_is_not_lost() {
        for (drop_rate, fragments, overlap_steps) in [(0.75, 1, 0), (0.0, 4, 8)] {
            let mut config = RunConfig::default();
            (config.train.rounds, config.train.inner_steps) = (12, 20);
            (config.sync.fragments, config.sync.overlap_steps) = (fragments, overlap_steps);
            config.sync.drop_rate = drop_rate;
            let schedule = WorkerPlan::new(&config).schedule().unwrap();
            let wrong = |steps, counted: &[Vec<u64>]| {
                let record = |of_path: &Vec<u64>| {
                    let of_level = of_path.iter().map(|&steps| CountRecord { steps, tokens: steps });
                    let counted = config.topology.levels.iter().flat_map(|_| of_level.clone()).collect();
                    PathRecord { steps, counted, ..PathRecord::default() }
                };
                let training = TrainingRecord {
                    rounds: config.train.rounds,
                    inner_steps: config.train.inner_steps,
                    paths: counted.iter().map(record).collect(),
                    ..TrainingRecord::default()
                };
                Accounts::new(&training, &config).unwrap().wrong
            };
            let mut counted = vec![vec![0; fragments as usize]; 4];
            let mut step = 0;
            while step < schedule.total() {
                let next = schedule.next_stop(step);
                for (path, counted) in (0..).map(PathId).zip(&mut counted) {
                    for SchedulePoint { step, fragment } in schedule.sends(step, next) {
                        if !schedule.dropped(path, fragment, schedule.sent_through(fragment, step)) {
                            counted[fragment as usize] += schedule.steps_in(path, fragment, step);
                        }
                    }
                }
                let case = format!("rate {drop_rate}, {fragments} fragments, steps {step} to {next}");
                assert!(wrong(step, &counted).is_empty(), "{case}: the lease is out");
                assert!(wrong(next, &counted).is_empty(), "{case}: the lease is complete");
                if counted[1][0] > 0 {
                    let mut lost = counted.clone();
                    lost[1][0] -= 1;
                    assert_eq!(wrong(next, &lost), [1], "{case}: a step is lost");
                }
                step = next;
            }
            counted[2][0] += 1;
            assert_eq!(wrong(step, &counted), [2], "a step counts twice");
        }
    }
}
