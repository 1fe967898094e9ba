//! `dipaco simulate`: simulates large runs in virtual time.

mod bandwidth;
mod chaos;
mod goodput;
mod report;
mod serve;
mod speeds;

use clap::Subcommand;
use dipaco_telemetry::Progress;

use self::bandwidth::BandwidthOptions;
use self::chaos::ChaosOptions;
use self::goodput::GoodputOptions;
use self::serve::ServingOptions;
use self::speeds::SpeedsOptions;
use crate::error::CliError;

#[derive(Debug, Subcommand)]
pub(crate) enum SimulateCommand {
    /// Compute the bandwidth between sites that each synchronisation scheme needs.
    #[command(after_help = bandwidth::EXAMPLES)]
    Bandwidth(BandwidthOptions),
    /// Compute the share of the chips' time that remains for training when chips fail.
    #[command(after_help = goodput::EXAMPLES)]
    Goodput(GoodputOptions),
    /// Compute the cost of learners of different speeds, by whom outer steps wait for.
    #[command(after_help = speeds::EXAMPLES)]
    Speeds(SpeedsOptions),
    /// Compute what a server of many paths gains when it batches sequences by module.
    #[command(after_help = serve::EXAMPLES)]
    Serve(ServingOptions),
    /// Play small runs in which processes die, messages get lost and disks are slow, and check each of them.
    #[command(after_help = chaos::EXAMPLES)]
    Chaos(ChaosOptions),
}

pub(crate) fn run(command: &SimulateCommand, progress: &Progress) -> Result<(), CliError> {
    match command {
        SimulateCommand::Bandwidth(options) => bandwidth::run(options),
        SimulateCommand::Goodput(options) => goodput::run(options, progress),
        SimulateCommand::Speeds(options) => speeds::run(options),
        SimulateCommand::Serve(options) => serve::run(options),
        SimulateCommand::Chaos(options) => chaos::run(options, progress),
    }
}
