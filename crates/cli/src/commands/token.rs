//! `dipaco token`: issues and revokes the tokens with which workers join a run.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use dipaco_net::JoinToken;
use dipaco_protocol::WORKER;
use dipaco_telemetry::{Align, Table, human};
use dipaco_train::{Revocations, TokenContributions};

use crate::error::CliError;
use crate::http_address::known_host_port;
use crate::run_options::RunOptions;
use crate::{output, runtime};
use dipaco_pipeline::authority::{helper_token, known_authority};
use dipaco_pipeline::files;
use dipaco_pipeline::rollback::contributions_of_token;
use dipaco_pipeline::store::manifest;
use dipaco_pipeline::{PipelineError, RunDirectory};

const DAY: Duration = Duration::from_secs(86_400);

pub(crate) const ISSUE_EXAMPLES: &str = "\
Examples:
  dipaco token issue gpu-3 --run runs/big --days 30 --out gpu-3.token
  dipaco worker --join gpu-3.token                     on the machine that it is for
  dipaco token revoke gpu-3 --run runs/big             it is refused from its next request on";

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token for one worker, or one group of workers.
    #[command(after_help = ISSUE_EXAMPLES)]
    Issue(IssueOptions),
    /// Refuse a token from now on; its workers lose their leases.
    Revoke(RevokeOptions),
    /// List what the bearer of a token contributed, and the round to go back to.
    #[command(after_help = CONTRIBUTIONS_EXAMPLES)]
    Contributions(ContributionsOptions),
}

pub(crate) const CONTRIBUTIONS_EXAMPLES: &str = "\
Examples:
  dipaco token contributions gpu-3 --run runs/big
  dipaco token contributions gpu-3 --run runs/big --json";

/// Options of `dipaco token contributions`.
#[derive(Debug, Args)]
pub(crate) struct ContributionsOptions {
    /// Name of the token; "worker" is the name of join.token.
    name: String,
    #[command(flatten)]
    run: RunOptions,
    /// Print the contributions as JSON.
    #[arg(long)]
    json: bool,
}

/// Options of `dipaco token issue`.
#[derive(Debug, Args)]
pub(crate) struct IssueOptions {
    /// Name of the token, for its revocation: 1 to 40 lower-case letters, digits or `-`.
    name: String,
    #[command(flatten)]
    run: RunOptions,
    /// Make a token for a synchronizer instead of a worker.
    #[arg(long)]
    synchronizer: bool,
    /// Lifetime of the token in days. A connected process renews its token.
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Address of the coordinator, host:port; may be repeated. The default is the address in join.token.
    #[arg(long, value_name = "HOST:PORT", value_parser = known_host_port)]
    advertise: Vec<String>,
    /// File to write the token to, readable by its owner only; the default is standard output.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Options of `dipaco token revoke`.
#[derive(Debug, Args)]
pub(crate) struct RevokeOptions {
    /// Name of the token; "worker" is the name of join.token.
    name: String,
    #[command(flatten)]
    run: RunOptions,
}

pub(crate) fn run(command: &TokenCommand) -> Result<(), CliError> {
    match command {
        TokenCommand::Issue(options) => issue(options),
        TokenCommand::Revoke(options) => revoke(options),
        TokenCommand::Contributions(options) => contributions(options),
    }
}

fn issue(options: &IssueOptions) -> Result<(), CliError> {
    let (run, _) = options.run.open_existing()?;
    let revocations = Revocations::of(&run.revoked());
    if revocations.names()?.contains(&options.name) {
        return Err(CliError::Usage {
            message: format!("the name {:?} has been revoked", options.name),
            remedy:
                "take another name: a new token of this name would let the holder of the old one in again"
                    .into(),
        });
    }
    let mut addresses = options.advertise.clone();
    if addresses.is_empty() {
        let file = run.join_token();
        if !file.exists() {
            return Err(CliError::Usage {
                message: "the address of the coordinator is not known".into(),
                remedy: "give it with --advertise HOST:PORT, or start the coordinator first".into(),
            });
        }
        addresses = JoinToken::read_from(&file)?.addresses;
        if addresses.iter().all(|address| is_of_this_machine(address)) {
            tracing::warn!(
                "the token holds {}, which only this machine reaches: give the address of the coordinator with --advertise",
                addresses.join(", ")
            );
        }
    }
    let manifest = runtime::run(async { Ok(manifest(&run).await?) })?;
    let id = manifest.ok_or(PipelineError::NoSeed)?.run;
    let now = SystemTime::now();
    let authority = known_authority(&run, &id, now)?;
    let lifetime = DAY * options.days;
    let line = if options.synchronizer {
        format!("{}\n", helper_token(&authority, &options.name, addresses, now, lifetime)?)
    } else {
        format!("{}\n", authority.issue(WORKER, &options.name, addresses, now, lifetime)?)
    };
    match &options.out {
        Some(file) => Ok(files::write_private(file, line.as_bytes())?),
        None => output::print(&line),
    }
}

/// True if no other machine reaches the address: the loopback, or no address at all.
fn is_of_this_machine(address: &str) -> bool {
    match address.parse::<SocketAddr>() {
        Ok(address) => address.ip().is_loopback() || address.ip().is_unspecified(),
        Err(_) => address.starts_with("localhost:"),
    }
}

fn revoke(options: &RevokeOptions) -> Result<(), CliError> {
    let (run, _) = options.run.open_existing()?;
    dipaco_net::check_token_name(&options.name)?;
    let new = Revocations::of(&run.revoked()).revoke(&options.name)?;
    let name = &options.name;
    output::print(&if new {
        format!("{name}: refused from the next request on\n")
    } else {
        format!("{name}: had been revoked before\n")
    })
}

fn contributions(options: &ContributionsOptions) -> Result<(), CliError> {
    let (run, config) = options.run.open_existing()?;
    let found = runtime::run(async { Ok(contributions_of_token(&run, &config, &options.name).await?) })?;
    if options.json { output::print_json(&found) } else { output::print(&describe(&found, &run)) }
}

/// The contributions in words.
fn describe(found: &TokenContributions, run: &RunDirectory) -> String {
    let TokenContributions { token, paths, undone_by_round, kept_rounds, set_numerics } = found;
    if paths.is_empty() {
        return format!("{token}: no contributions\n");
    }
    let right = Align::Right;
    let mut table = Table::new(&[
        ("path", right),
        ("rounds", right),
        ("outer gradients", right),
        ("tokens", right),
        ("fragments", Align::Left),
        ("devices", Align::Left),
    ]);
    for path in paths {
        let fragments = path.fragments.iter().map(|of| format!("{}/{}", of.module, of.fragment));
        table.row([
            path.path.to_string(),
            format!("{}–{}", path.first_round, path.last_round),
            human::integer(path.outer_gradients),
            human::integer(path.tokens),
            fragments.collect::<Vec<_>>().join(" "),
            path.numerics.join(" "),
        ]);
    }
    let run = run.root().display();
    let undo = match (undone_by_round, kept_rounds.first()) {
        (Some(round), _) => format!("dipaco rollback --run {run} --round {round}   undoes them"),
        (None, Some(oldest)) => format!(
            "every kept checkpoint has contributions of {token}; the oldest is that of round {oldest} (train.checkpoints \
             sets how many are kept)"
        ),
        (None, None) => "the run keeps no checkpoint to go back to".to_owned(),
    };
    let set = set_numerics.as_ref().map(|numerics| {
        format!("{token} set the fingerprint {numerics} of the run; its revocation lets the next contribution set it\n")
    });
    format!("{table}{undo}\n{}", set.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn a_token_names_a_port_at_which_somebody_listens() {
        let issued =
            |address| Cli::try_parse_from(["dipaco", "token", "issue", "gpu-3", "--advertise", address]);
        issued("lead:7440").unwrap();
        let refused = issued("lead:0").unwrap_err().to_string();
        assert!(refused.contains("port 0, which reaches nobody"), "{refused}");
    }

    #[test]
    fn the_loopback_is_of_this_machine_and_names_are_of_others() {
        for address in ["127.0.0.1:7440", "[::1]:7440", "0.0.0.0:7440", "localhost:7440"] {
            assert!(is_of_this_machine(address), "{address}");
        }
        for address in ["10.0.0.1:7440", "[2001:db8::1]:7440", "lead:7440"] {
            assert!(!is_of_this_machine(address), "{address}");
        }
    }
}
