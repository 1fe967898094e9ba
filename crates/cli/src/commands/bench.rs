//! `dipaco bench`: measures training, transfers, coordination and serving on this machine.

mod available_memory;
mod lease;
mod outer_step;
mod serve;
mod step;
mod transfer;
mod trial_coordinator;
mod workers;

use clap::Subcommand;
use dipaco_telemetry::Progress;

use crate::error::CliError;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure the training step of one path, on random tokens.
    #[command(after_help = step::EXAMPLES)]
    Step(step::StepOptions),
    /// Measure what a lease costs a worker: time, processor time, page faults, bytes and memory of each part.
    ///
    /// A coordinator process leads a run with one path. This process is its worker: it fetches the inputs of a lease over
    /// loopback, takes the inner steps, and uploads the results, with the code of `dipaco worker`.
    #[command(after_help = lease::EXAMPLES)]
    Lease(lease::LeaseOptions),
    /// Measure transfers between two processes of this machine, and the outer step.
    ///
    /// A worker process fetches modules and uploads as many outer gradients over loopback, with mutual TLS and verified
    /// hashes. In the same round plain QUIC streams move the same number of bytes without verification.
    #[command(after_help = TRANSFER_EXAMPLES)]
    Transfer(transfer::TransferOptions),
    /// Measure the answer times of a coordinator with many workers (load test).
    ///
    /// A coordinator process serves 2,048 paths of a tiny model, or those of --grid. Workers with real connections ask for
    /// leases, fetch weights, wait instead of training, and upload outer gradients. Only requests that get a lease at once
    /// are timed.
    #[command(after_help = WORKERS_EXAMPLES)]
    Workers(workers::WorkersOptions),
    /// Measure a server of completions under load: latencies of tokens, throughput and refusals.
    ///
    /// Requests go to an address, so any server with OpenAI's completions can be measured. A closed loop shows what the server
    /// can do, an open loop shows what its users get. Run the load generator on another machine where you can: it shares the
    /// cores with the server otherwise, and reports how much of them it used.
    #[command(after_help = serve::EXAMPLES)]
    Serve(serve::ServeLoadArguments),
}

const WORKERS_EXAMPLES: &str = "\
Examples:
  dipaco bench workers                              1,000 workers for a minute
  dipaco bench workers --seconds 600 --json         as in docs/results";

const TRANSFER_EXAMPLES: &str = "\
Examples:
  dipaco bench transfer                        32 modules of 40 MB
  dipaco bench transfer --modules 8 --megabytes 5 --rounds 3 --json";

pub(crate) fn run(command: &BenchCommand, progress: &Progress) -> Result<(), CliError> {
    match command {
        BenchCommand::Step(options) => step::run(options, progress),
        BenchCommand::Lease(options) => lease::run(options, progress),
        BenchCommand::Transfer(options) => transfer::run(options, progress),
        BenchCommand::Workers(options) => workers::run(options, progress),
        BenchCommand::Serve(arguments) => serve::run(arguments, progress),
    }
}
