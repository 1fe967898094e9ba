//! `dipaco launch`: job scripts for a scheduler, filled in from a run's configuration.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Args, Subcommand};
use dipaco_config::RunConfig;
use dipaco_pipeline::train::useful_workers;

use crate::error::CliError;
use crate::output;
use crate::run_options::RunOptions;

const EXAMPLES: &str = "\
Examples:
  dipaco launch slurm --run runs/mine --print                  read the scripts first: sites differ
  dipaco launch slurm --run runs/mine --workers 16 --at-once 8 --print
  dipaco launch slurm --run runs/mine --text /data/c4          write them to runs/mine/slurm";

/// The scripts for Slurm, which also work as they are.
const SLURM: [(&str, &str); 6] = [
    ("prepare.sbatch", include_str!("../../../../deploy/slurm/prepare.sbatch")),
    ("seed.sbatch", include_str!("../../../../deploy/slurm/seed.sbatch")),
    (FEATURES, include_str!("../../../../deploy/slurm/features.sbatch")),
    ("route.sbatch", include_str!("../../../../deploy/slurm/route.sbatch")),
    ("coordinator.sbatch", include_str!("../../../../deploy/slurm/coordinator.sbatch")),
    ("workers.sbatch", include_str!("../../../../deploy/slurm/workers.sbatch")),
];

/// The array that computes features of the seed, for runs that need them.
const FEATURES: &str = "features.sbatch";

/// The beginning of comments that help only who reads the scripts as examples: how to submit them, which [`submission`] says for a
/// run, for which runs they are, and a page of the sources.
const OF_EXAMPLES: &str = "## ";

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
    /// Number of workers; the default is one for each path that trains in a round.
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// Workers that run at a time; the default is all.
    #[arg(long, value_name = "N")]
    at_once: Option<u32>,
    /// Parts of `prepare` and `route assign`, and of `route features` where the seed gives the features.
    #[arg(long, default_value_t = 8, value_name = "N")]
    parts: u32,
    /// Threads of a worker, of the seed and of the steps that one job does.
    #[arg(long, default_value_t = 8, value_name = "N")]
    threads: u32,
    /// UDP port of the coordinator; 0 is any free one.
    #[arg(long, default_value_t = 0, value_name = "PORT")]
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
    text += &submission(options, &folder, run.root(), &config);
    output::print(&text)
}

/// The scripts with the values of a run.
fn slurm(
    options: &SlurmOptions,
    run: &Path,
    config: &RunConfig,
) -> Result<Vec<(&'static str, String)>, CliError> {
    let useful = u32::try_from(useful_workers(config, usize::MAX)?).unwrap_or(u32::MAX);
    // A run that only keeps paths is complete, and its one worker leaves at once.
    let workers = options.workers.unwrap_or(useful.max(1));
    if workers == 0 || options.parts == 0 || options.threads == 0 || options.at_once == Some(0) {
        return Err(CliError::Usage {
            message: "--workers, --at-once, --parts and --threads need at least 1".into(),
            remedy: "leave them out for the defaults".into(),
        });
    }
    let at_once = options.at_once.map_or_else(String::new, |most| format!("%{most}"));
    let run = quoted(&run.display().to_string());
    let values = [
        ("RUN=runs/mine\n", format!("RUN={run}\n")),
        ("TEXT=text/\n", format!("TEXT={}\n", quoted(&options.text))),
        ("\nPORT=0\n", format!("\nPORT={}\n", options.port)),
        ("--array=0-3\n", format!("--array=0-{}{at_once}\n", workers - 1)),
        ("--array=1-8\n", format!("--array=1-{}\n", options.parts)),
        ("--cpus-per-task=8\n", format!("--cpus-per-task={}\n", options.threads)),
    ];
    let fill = |script: &str| {
        let own = script.split_inclusive('\n').filter(|line| !line.starts_with(OF_EXAMPLES)).collect();
        values.iter().fold(own, |text: String, (from, to)| text.replace(from, to))
    };
    let wanted = |name: &str| name != FEATURES || needs_features(config);
    Ok(SLURM.iter().filter(|(name, _)| wanted(name)).map(|(name, script)| (*name, fill(script))).collect())
}

/// Returns whether the features of documents take a pass of the seed, which is worth an array.
fn needs_features(config: &RunConfig) -> bool {
    config.routing.needs_seed(config.routing.kind)
}

/// The commands that submit the scripts, each after the jobs that it needs.
fn submission(options: &SlurmOptions, folder: &Path, run: &Path, config: &RunConfig) -> String {
    let file = |name: &str| quoted(&folder.join(name).display().to_string());
    let (run, text) = (quoted(&run.display().to_string()), quoted(&options.text));
    // The first command saves the configuration with the run.
    let given = options.run.config.iter().map(|file| ("--config", file.display().to_string()));
    let set = options.run.overrides.iter().map(|value| ("--set", value.clone()));
    let settings: String =
        given.chain(set).map(|(option, value)| format!(" {option} {}", quoted(&value))).collect();
    let mut lines = format!(
        "### submit\none='sbatch --parsable --requeue --open-mode=append --cpus-per-task={}'\n",
        options.threads
    );
    let mut before: Option<&str> = None;
    let mut add = |name: &'static str, job: String| {
        let after = before.map_or_else(String::new, |before| format!(" --dependency=afterok:${before}"));
        let _ = match job.strip_prefix("dipaco ") {
            Some(_) => writeln!(lines, "{name}=$($one{after} --wrap {})", quoted(&job)),
            None => writeln!(lines, "{name}=$(sbatch --parsable{after} {})", file(&job)),
        };
        before = Some(name);
    };
    add("tokenizer", format!("dipaco prepare --run {run}{settings} --tokenizer-only {text}"));
    add("pieces", "prepare.sbatch".to_owned());
    add("text", format!("dipaco prepare --run {run} {text}"));
    add("seed", "seed.sbatch".to_owned());
    if needs_features(config) {
        add("features", FEATURES.to_owned());
    }
    add("router", format!("dipaco route fit --run {run}"));
    add("parts", "route.sbatch".to_owned());
    add("shards", format!("dipaco route assign --run {run}"));
    add("coordinator", "coordinator.sbatch".to_owned());
    // Not earlier, because a worker without a coordinator would only hold its cores.
    let _ = writeln!(lines, "sbatch --dependency=after:$coordinator {}", file("workers.sbatch"));
    lines
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
    use dipaco_config::PathsPerRound;
    use dipaco_routing::FeatureKind;
    use dipaco_topology::{AddedPaths, PathId, Topology};

    use super::*;

    #[test]
    fn every_value_of_the_scripts_is_filled_in() {
        let all: String = SLURM.iter().map(|(_, script)| *script).collect();
        for value in ["RUN=runs/mine\n", "TEXT=text/\n", "\nPORT=0\n", "--array=0-3\n", "--cpus-per-task=8\n"]
        {
            assert!(all.contains(value), "no script has {value}");
        }
        let options = options();
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

    #[test]
    fn the_comments_of_a_script_speak_of_its_run_and_not_of_the_examples() {
        let of_examples =
            SLURM.iter().filter(|(_, script)| script.lines().any(|line| line.starts_with(OF_EXAMPLES)));
        assert_eq!(of_examples.count(), 4, "an example has changed");
        let mut config = RunConfig::default();
        config.routing.features = FeatureKind::Seed;
        let scripts = slurm(&options(), Path::new("/runs/big"), &config).unwrap();
        assert_eq!(scripts.len(), SLURM.len());
        let comments = |script: &str| -> Vec<String> {
            let lines = script.lines().filter(|line| line.starts_with("# "));
            lines.map(|line| line.trim_start_matches("# ").to_owned()).collect()
        };
        for (name, script) in &scripts {
            for of_examples in ["runs/mine", "text/", "deploy/", "docs/", "$("] {
                let found = comments(script).into_iter().find(|comment| comment.contains(of_examples));
                assert_eq!(found, None, "{name}");
            }
        }
        let first = |wanted: &str| {
            let script = scripts.iter().find(|(name, _)| *name == wanted).unwrap();
            comments(&script.1).into_iter().take(2).collect::<Vec<_>>()
        };
        let repeated = "A part that is done is not repeated, so a failed task can be submitted again with the whole array.";
        assert_eq!(first("prepare.sbatch"), ["Tokenises one part of the text per task.", repeated]);
        assert_eq!(first("route.sbatch"), ["Divides one part of the documents per task.", repeated]);
        assert_eq!(
            first(FEATURES),
            [
                "Computes one part of the features that the router is fitted on per task.",
                "A failed task can be submitted again with the whole array."
            ]
        );
        assert!(first("coordinator.sbatch")[0].ends_with("Works from a store that all its nodes reach."));
    }

    #[test]
    fn features_of_the_seed_are_an_array_before_the_router() {
        let mut config = RunConfig::default();
        for (features, wanted) in [(FeatureKind::Lsa, false), (FeatureKind::Seed, true)] {
            config.routing.features = features;
            let scripts = slurm(&options(), Path::new("run"), &config).unwrap();
            assert_eq!(scripts.iter().any(|(name, _)| *name == FEATURES), wanted);
            let text = submission(&options(), Path::new("run/slurm"), Path::new("run"), &config);
            assert_eq!(text.contains("afterok:$seed run/slurm/features.sbatch"), wanted, "{text}");
            assert_eq!(
                text.contains("afterok:$features --wrap 'dipaco route fit --run run'"),
                wanted,
                "{text}"
            );
        }
    }

    #[test]
    fn kept_paths_and_paths_that_rest_have_no_workers() {
        let config = RunConfig::default();
        let topology = Topology::new(&config.topology, config.model.blocks).unwrap();
        let added = AddedPaths { like: vec![PathId(1), PathId(2)], ..AddedPaths::default() };
        let more = topology.with_paths(&config.topology, &added).unwrap().config;
        let less = topology.without_paths(&config.topology, &[PathId(0)]).unwrap().config;
        let options = SlurmOptions { workers: None, at_once: None, ..options() };
        let all = config.topology;
        for (topology, in_a_round, array) in
            [(all.clone(), 0, "0-3"), (all, 3, "0-2"), (more, 0, "0-1"), (less, 0, "0-0")]
        {
            let mut config = RunConfig { topology, ..RunConfig::default() };
            config.train.paths_per_round = PathsPerRound::Always(in_a_round);
            let scripts = slurm(&options, Path::new("run"), &config).unwrap();
            let (_, workers) = scripts.iter().find(|(name, _)| *name == "workers.sbatch").unwrap();
            assert!(workers.contains(&format!("--array={array}\n")), "{workers}");
        }
    }

    #[test]
    fn the_first_command_gets_the_configuration() {
        let mut options = options();
        options.run.config = Some("my run.toml".into());
        options.run.overrides = vec!["train.rounds=2".to_owned()];
        let text = submission(&options, Path::new("run/slurm"), Path::new("run"), &RunConfig::default());
        let (first, others) = text.split_once("pieces=").unwrap();
        assert!(
            first.contains(r"--config '\''my run.toml'\'' --set '\''train.rounds=2'\'' --tokenizer-only"),
            "{text}"
        );
        assert!(!others.contains("--config") && !others.contains("--set"), "{text}");
    }

    fn options() -> SlurmOptions {
        SlurmOptions {
            run: RunOptions { run: None, config: None, overrides: Vec::new() },
            text: "my text".to_owned(),
            workers: Some(16),
            at_once: Some(5),
            parts: 3,
            threads: 2,
            port: 1234,
            print: true,
        }
    }
}
