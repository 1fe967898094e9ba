//! The number of simulated runs that find each planted bug, honest peers and runs with liars.
//!
//! ```sh
//! cargo run --release -p dipaco-simulate --example planted_bugs [SEEDS]
//! ```
//!
//! SEEDS: number of runs for each bug and kind of peers, 200 unless given.
#![allow(clippy::print_stdout, reason = "the counts are this program's output")]

use std::num::ParseIntError;

use dipaco_simulate::{Bug, Peers, chaos};

const BUGS: [Bug; 10] = [
    Bug::DoubleCount,
    Bug::StaleBase,
    Bug::LostMomentum,
    Bug::ForeignLease,
    Bug::OverwrittenObject,
    Bug::UncheckedState,
    Bug::RecordedFirst,
    Bug::EarlyDelete,
    Bug::IgnoredPin,
    Bug::OldFence,
];

fn main() -> Result<(), ParseIntError> {
    let seeds = std::env::args().nth(1).map_or(Ok(200), |text| text.parse::<u64>())?;
    println!("{:20} honest  lying  (of {seeds} runs)", "planted bug");
    for bug in BUGS {
        let found = |peers| (0..seeds).filter(|&seed| chaos(seed, peers, Some(bug)).is_err()).count();
        let (honest, lying) = (found(Peers::Honest), found(Peers::SomeLie));
        println!("{:20} {honest:6} {lying:6}", format!("{bug:?}"));
    }
    Ok(())
}
