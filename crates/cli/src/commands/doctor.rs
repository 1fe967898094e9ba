//! `dipaco doctor`: checks whether this machine can train and serve.

mod directory;
mod finding;
mod gpu;
mod machine;
mod network;
mod store;

use std::path::PathBuf;

use clap::Args;

use self::finding::{Finding, FindingStatus};
use crate::error::CliError;
use crate::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dipaco doctor                      check this machine, and the folder runs/
  dipaco doctor --run /data/my-run   check the place of a run
  dipaco doctor --store s3://bucket/my-run   check that an object store can hold a run")]
pub(crate) struct DoctorOptions {
    /// Directory for runs. It need not exist yet.
    #[arg(long, env = "DIPACO_RUN", default_value = "runs", value_name = "DIR")]
    run: PathBuf,
    /// Address of a run's store to check: a directory, s3://, az:// or gs://. The check writes and deletes an object.
    #[arg(long, value_name = "ADDRESS")]
    store: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &DoctorOptions) -> Result<(), CliError> {
    let mut findings = machine::check();
    findings.extend(gpu::check());
    findings.extend(directory::check(&options.run));
    findings.extend(network::check());
    if !options.json {
        output::print(&findings.iter().map(line).collect::<String>())?;
    }
    // A store out of reach takes seconds or minutes.
    if let Some(address) = &options.store {
        let finding = store::check(address)?;
        if !options.json {
            output::print(&line(&finding))?;
        }
        findings.push(finding);
    }
    if options.json {
        output::print_json(&findings)?;
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
