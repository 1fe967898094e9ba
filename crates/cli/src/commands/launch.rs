//! `dipaco launch`: job scripts for a scheduler, filled in from a run's configuration.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Args, Subcommand};
use dipaco_config::RunConfig;
use dipaco_topology::Topology;

use crate::error::CliError;
use crate::output;
use crate::run_options::RunOptions;

const EXAMPLES: &str = "\
Examples:
  dipaco launch slurm --run runs/mine --print                  read the scripts first: sites differ
  dipaco launch slurm --run runs/mine --workers 16 --at-once 8 --print
  dipaco launch slurm --run runs/mine --text /data/c4          write them to runs/mine/slurm";

/// The scripts for Slurm, which also work as they are.
const SLURM: [(&str, &str); 4] = [
    ("prepare.sbatch", include_str!("../../../../deploy/slurm/prepare.sbatch")),
    ("route.sbatch", include_str!("../../../../deploy/slurm/route.sbatch")),
    ("coordinator.sbatch", include_str!("../../../../deploy/slurm/coordinator.sbatch")),
    ("workers.sbatch", include_str!("../../../../deploy/slurm/workers.sbatch")),
];

/// The schedulers.
#[derive(Debug, Subcommand)]
pub(crate) enum LaunchCommand {
    /// Job scripts for Slurm, and the commands that submit them in order.
    #[command(after_help = EXAMPLES)]
    Slurm(SlurmOptions),
}

/// Options of `dipaco launch slurm`.
#[derive(Debug, Args)]
pub(crate) struct SlurmOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Text to prepare.
    #[arg(long, default_value = "text/", value_name = "PATH")]
    text: String,
    /// Number of workers; the default is one for each path.
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// Workers that run at a time; the default is all.
    #[arg(long, value_name = "N")]
    at_once: Option<u32>,
    /// Parts of `prepare` and of `route assign`.
    #[arg(long, default_value_t = 8, value_name = "N")]
    parts: u32,
    /// Threads of a worker.
    #[arg(long, default_value_t = 8, value_name = "N")]
    threads: u32,
    /// UDP port of the coordinator.
    #[arg(long, default_value_t = 7440, value_name = "PORT")]
    port: u16,
    /// Print the scripts instead of writing them to the folder `slurm` of the run.
    #[arg(long)]
    print: bool,
}

pub(crate) fn run(command: &LaunchCommand) -> Result<(), CliError> {
    let LaunchCommand::Slurm(options) = command;
    let (run, config) = options.run.open()?;
    let scripts = slurm(options, run.root(), &config)?;
    let folder = run.root().join("slurm");
    let mut text = String::new();
    for (name, script) in &scripts {
        if options.print {
            let _ = writeln!(text, "### {name}\n{script}");
        } else {
            dipaco_pipeline::files::write(&folder.join(name), script.as_bytes())?;
        }
    }
    text += &submission(&folder, run.root(), &options.text);
    output::print(&text)
}

/// The scripts with the values of a run.
fn slurm(
    options: &SlurmOptions,
    run: &Path,
    config: &RunConfig,
) -> Result<Vec<(&'static str, String)>, CliError> {
    let usage = |message: String, remedy: &str| CliError::Usage { message, remedy: remedy.into() };
    let topology = Topology::new(&config.topology, config.model.blocks)
        .map_err(|error| usage(error.to_string(), "correct the section [topology]"))?;
    let workers = options.workers.unwrap_or(topology.paths());
    if workers == 0 || options.parts == 0 || options.threads == 0 || options.at_once == Some(0) {
        let message = "--workers, --at-once, --parts and --threads need at least 1".to_owned();
        return Err(usage(message, "leave them out for the defaults"));
    }
    let at_once = options.at_once.map_or_else(String::new, |most| format!("%{most}"));
    let run = quoted(&run.display().to_string());
    let values = [
        ("RUN=runs/mine\n", format!("RUN={run}\n")),
        ("TEXT=text/\n", format!("TEXT={}\n", quoted(&options.text))),
        ("PORT=7440\n", format!("PORT={}\n", options.port)),
        ("--array=0-3\n", format!("--array=0-{}{at_once}\n", workers - 1)),
        ("--array=1-8\n", format!("--array=1-{}\n", options.parts)),
        ("--cpus-per-task=8\n", format!("--cpus-per-task={}\n", options.threads)),
    ];
    let fill =
        |script: &str| values.iter().fold(script.to_owned(), |text, (from, to)| text.replace(from, to));
    Ok(SLURM.iter().map(|(name, script)| (*name, fill(script))).collect())
}

/// The commands that submit the scripts, each after the jobs that it needs.
fn submission(folder: &Path, run: &Path, text: &str) -> String {
    let file = |name: &str| quoted(&folder.join(name).display().to_string());
    let (run, text) = (quoted(&run.display().to_string()), quoted(text));
    let wrap = |command: String| quoted(&command);
    format!(
        "### submit\n\
         tokenizer=$(sbatch --parsable --wrap {})\n\
         pieces=$(sbatch --parsable --dependency=afterok:$tokenizer {})\n\
         router=$(sbatch --parsable --dependency=afterok:$pieces --wrap {})\n\
         parts=$(sbatch --parsable --dependency=afterok:$router {})\n\
         shards=$(sbatch --parsable --dependency=afterok:$parts --wrap {})\n\
         sbatch --dependency=afterok:$shards {}\n\
         sbatch --dependency=afterok:$shards {}\n",
        wrap(format!("dipaco prepare --run {run} --tokenizer-only {text}")),
        file("prepare.sbatch"),
        wrap(format!(
            "dipaco prepare --run {run} {text} && dipaco seed --run {run} && dipaco route fit --run {run}"
        )),
        file("route.sbatch"),
        wrap(format!("dipaco route assign --run {run}")),
        file("coordinator.sbatch"),
        file("workers.sbatch"),
    )
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_the_scripts_is_filled_in() {
        let all: String = SLURM.iter().map(|(_, script)| *script).collect();
        for value in
            ["RUN=runs/mine\n", "TEXT=text/\n", "PORT=7440\n", "--array=0-3\n", "--cpus-per-task=8\n"]
        {
            assert!(all.contains(value), "no script has {value}");
        }
        let options = SlurmOptions {
            run: RunOptions { run: None, config: None, overrides: Vec::new() },
            text: "my text".to_owned(),
            workers: Some(16),
            at_once: Some(5),
            parts: 3,
            threads: 2,
            port: 1234,
            print: true,
        };
        let scripts = slurm(&options, Path::new("/runs/it's"), &RunConfig::default()).unwrap();
        let all: String = scripts.iter().map(|(_, script)| script.as_str()).collect();
        for value in [
            r"RUN='/runs/it'\''s'",
            "TEXT='my text'\n",
            "PORT=1234\n",
            "--array=0-15%5\n",
            "--array=1-3\n",
            "--cpus-per-task=2\n",
        ] {
            assert!(all.contains(value), "{value} is missing in {all}");
        }
        assert!(!all.contains("RUN=runs/mine\n") && !all.contains("--array=0-3\n"));
    }
}
