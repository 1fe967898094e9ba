//! `dipaco status --data`: the text that each path has used, and its share in the weights.

use dipaco_config::RunConfig;
use dipaco_protocol::{PlanError, WorkerPlan};
use dipaco_store::{PathRecord, TrainingRecord};
use dipaco_sync::Schedule;
use dipaco_telemetry::{Align, Table, human};
use dipaco_topology::PathId;
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
    /// Inner steps of complete leases, without those of rounds in which the path rests. A kept path has none.
    steps: u64,
    /// Sequences drawn from the shard in this phase. They are drawn in turn: every sequence is used once before any is used
    /// again.
    sequences: u64,
    /// Inner steps in the outer gradients that count, for the fragment with the fewest and the fragment with the most.
    counted_steps: [u64; 2],
    /// Inner steps in outer gradients that wait for an outer step, for the fragment with the most.
    waiting_steps: u64,
    /// Tokens in the outer gradients of the fragment with the most.
    counted_tokens: u64,
    /// True if the outer gradients of each fragment hold every inner step once. Within a phase they may be a round behind.
    balanced: bool,
}

impl Accounts {
    pub(super) fn new(training: &TrainingRecord, config: &RunConfig) -> Result<Self, PlanError> {
        let schedule = WorkerPlan::new(config).schedule()?;
        let account = |(path, record)| Account::new(path, record, training, config, &schedule);
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
        schedule: &Schedule,
    ) -> Self {
        let begin = training.phase_begin_step();
        // The record's steps go on while the path rests, and those of a kept path, which nobody trains, are those of the run.
        let kept = path < config.topology.kept_paths;
        let taken_since = |step| if kept { 0 } else { schedule.trained(PathId(path), step, record.steps) };
        let steps = taken_since(0);
        // A frozen level has no outer gradients.
        let fragments = config.sync.fragments.max(1) as usize;
        let frozen =
            |slot: usize| config.topology.levels.get(slot / fragments).is_some_and(|level| level.frozen);
        let trained = record.counted.iter().enumerate().filter(|(slot, _)| !frozen(*slot));
        let counted = trained.map(|(_, counted)| counted.steps);
        let most = counted.clone().max().unwrap_or(0);
        let least = counted.clone().min().unwrap_or(0);
        let waiting = record.gradients.iter().map(|g| (g.module.level, g.fragment, g.steps));
        let mut by_fragment = std::collections::BTreeMap::new();
        waiting
            .for_each(|(level, fragment, steps)| *by_fragment.entry((level, fragment)).or_insert(0) += steps);
        // A lease that is out may have sent gradients of steps beyond the last complete lease.
        let ahead = config.sync.overlap_steps.max(config.train.inner_steps);
        let end = u64::from(training.phase_end()) * training.inner_steps;
        let at_end = record.steps == end || record.steps == begin;
        let behind = if at_end { 0 } else { config.train.inner_steps };
        // The steps of a path in quarantine go on without training.
        let quarantined = record.quarantine.is_some();
        let balanced = (quarantined || least + behind >= steps) && most <= steps + ahead;
        Self {
            path,
            steps,
            sequences: taken_since(begin) * config.train.batch as u64,
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
        match self.wrong.as_slice() {
            [] => writeln!(f, "every inner step counts once"),
            wrong => writeln!(f, "does not balance: paths {wrong:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use dipaco_config::PathsPerRound;
    use dipaco_store::CountRecord;

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
        config.topology.kept_paths = 1;
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
}
