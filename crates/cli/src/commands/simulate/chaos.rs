//! `dipaco simulate chaos`: small runs with faults, checked against the invariants.

use clap::{Args, ValueEnum};
use dipaco_simulate::{Chaos, Peers, Violation, chaos};
use dipaco_telemetry::{Progress, ProgressUnit, human};
use rayon::prelude::*;
use serde::Serialize;

use crate::error::CliError;
use crate::output;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco simulate chaos                       10,000 small runs, each with its own schedule of faults
  dipaco simulate chaos --from 4711 --seeds 1 one of them again
  dipaco simulate chaos --peers lying         runs with peers that lie
  dipaco simulate chaos --seeds 1000000 --json";

/// Number of seeds between two updates of the progress.
const AT_ONCE: u64 = 256;
/// Number of violations that are printed; all are counted.
const TOLD: usize = 10;

/// Options of `dipaco simulate chaos`.
#[derive(Debug, Args)]
pub(crate) struct ChaosOptions {
    /// Number of runs.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10_000)]
    seeds: u64,
    /// Seed of the first run.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Peers of the runs.
    #[arg(long, value_enum, default_value_t = PeerKind::Mixed)]
    peers: PeerKind,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// Peers of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PeerKind {
    /// Half of the runs may have peers that lie.
    Mixed,
    /// All peers are honest.
    Honest,
    /// Up to a third of the peers of every run lies.
    Lying,
}

impl From<PeerKind> for Peers {
    fn from(peers: PeerKind) -> Self {
        match peers {
            PeerKind::Mixed => Self::Mixed,
            PeerKind::Honest => Self::Honest,
            PeerKind::Lying => Self::SomeLie,
        }
    }
}

/// The result.
#[derive(Debug, Default, Serialize)]
struct ChaosFindings {
    seeds: u64,
    #[serde(flatten)]
    played: Chaos,
    violated: u64,
    /// The first violations.
    violations: Vec<Told>,
}

#[derive(Debug, Serialize)]
struct Told {
    seed: u64,
    what: String,
    case: String,
}

impl ChaosFindings {
    fn add(&mut self, played: Result<Chaos, Violation>) {
        self.seeds += 1;
        match played {
            Ok(Chaos { faults, messages, events, virtual_seconds }) => {
                self.played.faults += faults;
                self.played.messages += messages;
                self.played.events += events;
                self.played.virtual_seconds += virtual_seconds;
            }
            Err(Violation { seed, what, case }) => {
                self.violated += 1;
                if self.violations.len() < TOLD {
                    self.violations.push(Told { seed, what, case });
                }
            }
        }
    }
}

pub(crate) fn run(options: &ChaosOptions, progress: &Progress) -> Result<(), CliError> {
    let task = progress.task("chaos", Some(options.seeds), ProgressUnit::Count("runs"));
    let end = options.from.saturating_add(options.seeds);
    let mut found = ChaosFindings::default();
    let mut next = options.from;
    while next < end {
        let last = next.saturating_add(AT_ONCE).min(end);
        let played: Vec<_> =
            (next..last).into_par_iter().map(|seed| chaos(seed, options.peers.into(), None)).collect();
        played.into_iter().for_each(|played| found.add(played));
        task.set(last - options.from);
        next = last;
    }
    task.finish();
    if options.json {
        output::print_json(&found)?;
    } else {
        let Chaos { faults, messages, virtual_seconds, .. } = found.played;
        output::print(&format!(
            "{} runs, {} of them with something that must not be\n{} crashes, pauses and partitions, {} messages, {:.1} virtual \
             hours\n",
            human::integer(found.seeds),
            human::integer(found.violated),
            human::integer(faults),
            human::integer(messages),
            virtual_seconds / 3600.0
        ))?;
    }
    match found.violations.as_slice() {
        [] => Ok(()),
        told => {
            let lines: Vec<_> = told
                .iter()
                .map(|told| format!("seed {}: {}\n  {}", told.seed, told.what, told.case))
                .collect();
            Err(CliError::Violated { what: lines.join("\n") })
        }
    }
}
