//! `dipaco doctor`: checks whether this machine can train and serve.

mod directory;
mod finding;
mod gpu;
mod machine;
mod network;

use std::path::PathBuf;

use clap::Args;

use self::finding::{Finding, FindingStatus};
use crate::error::CliError;
use crate::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dipaco doctor                      check this machine, and the folder runs/
  dipaco doctor --run /data/my-run   check the place of a run")]
pub(crate) struct DoctorOptions {
    /// Directory for runs. It need not exist yet.
    #[arg(long, env = "DIPACO_RUN", default_value = "runs", value_name = "DIR")]
    run: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &DoctorOptions) -> Result<(), CliError> {
    let mut findings = machine::check();
    findings.push(gpu::check());
    findings.extend(directory::check(&options.run));
    findings.extend(network::check());
    if options.json {
        output::print_json(&findings)?;
    } else {
        output::print(&findings.iter().map(line).collect::<String>())?;
    }
    match findings.iter().filter(|finding| finding.status == FindingStatus::Fail).count() {
        0 => Ok(()),
        failed => Err(CliError::Doctor { failed }),
    }
}

fn line(finding: &Finding) -> String {
    let status = match finding.status {
        FindingStatus::Ok => "ok  ",
        FindingStatus::Warn => "warn",
        FindingStatus::Fail => "fail",
    };
    let remedy = finding.remedy.as_ref().map_or_else(String::new, |remedy| format!("      try: {remedy}\n"));
    format!("{status}  {:<15} {}\n{remedy}", finding.check, finding.found)
}
