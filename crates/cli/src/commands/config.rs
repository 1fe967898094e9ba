//! `dipaco config`: shows, checks and explains the configuration.

use clap::{Args, Subcommand};
use dipaco_config::{KeyDoc, RunConfig};
use dipaco_telemetry::{Align, Table, human};
use dipaco_topology::{Topology, parts_in_words};
use serde::Serialize;

use crate::config_options::ConfigOptions;
use crate::error::CliError;
use crate::output;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the configuration made of defaults, file, environment and --set.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowOptions),
    /// Check the configuration and summarise it.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckOptions),
    /// List the keys with their defaults and meanings.
    #[command(after_help = KEYS_EXAMPLES)]
    Keys(KeysOptions),
}

const SHOW_EXAMPLES: &str = "\
Examples:
  dipaco config show > my.toml                         start from the defaults
  dipaco config show --config my.toml --changed        only what differs from them, and who says so";
const CHECK_EXAMPLES: &str = "\
Examples:
  dipaco config check --config my.toml --set train.rounds=20";
const KEYS_EXAMPLES: &str = "\
Examples:
  dipaco config keys train                             the keys of a section
  dipaco config keys train.inner_steps                 all about one key";

#[derive(Debug, Args)]
pub(crate) struct ShowOptions {
    #[command(flatten)]
    config: ConfigOptions,
    /// Print only the keys that differ from their defaults, each with its source.
    #[arg(long, conflicts_with = "json")]
    changed: bool,
    /// Print JSON instead of TOML.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckOptions {
    #[command(flatten)]
    config: ConfigOptions,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct KeysOptions {
    /// Beginning of the keys; the default is all keys.
    #[arg(value_name = "KEY", default_value = "")]
    prefix: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: ConfigCommand) -> Result<(), CliError> {
    match command {
        ConfigCommand::Show(options) => show(&options),
        ConfigCommand::Check(options) => check(&options),
        ConfigCommand::Keys(options) => keys(&options),
    }
}

fn show(options: &ShowOptions) -> Result<(), CliError> {
    let resolved = options.config.load()?;
    if options.json {
        return output::print_json(&resolved.config);
    }
    if options.changed {
        let mut table = Table::new(&[("key", Align::Left), ("value", Align::Left), ("from", Align::Left)]);
        let default = RunConfig::default();
        for (key, origin) in &resolved.origins {
            let value = resolved.config.value(key);
            if value != default.value(key) {
                table.row([key.clone(), value.unwrap_or_default(), origin.to_string()]);
            }
        }
        return output::print(&table.to_string());
    }
    output::print(&resolved.config.to_toml())
}

/// The summary of a configuration.
#[derive(Serialize)]
struct ConfigSummary {
    hash: String,
    paths: u32,
    levels: usize,
    modules: usize,
    inner_steps_per_path: u64,
    train_tokens_per_path: u64,
    seed_tokens: u64,
}

impl ConfigSummary {
    fn new(config: &RunConfig, topology: &Topology) -> Self {
        let tokens = |steps: u64, batch: usize, sequence: usize| {
            steps.saturating_mul(batch as u64).saturating_mul(sequence as u64)
        };
        let (train, seed) = (&config.train, &config.seed_model);
        let trained = topology.trained_paths().len() as u64;
        // With `train.paths_per_round` a path rests in some rounds: the mean of the paths.
        let rounds_of_paths = train.paths_per_round.rounds_of_paths(trained, train.rounds);
        let inner_steps_per_path = rounds_of_paths.saturating_mul(train.inner_steps) / trained.max(1);
        Self {
            hash: config.hash(),
            paths: topology.paths(),
            levels: topology.levels(),
            modules: topology.module_ids().count(),
            inner_steps_per_path,
            train_tokens_per_path: tokens(inner_steps_per_path, train.batch, train.sequence_tokens),
            seed_tokens: tokens(seed.steps, seed.batch, seed.sequence_tokens),
        }
    }
}

fn check(options: &CheckOptions) -> Result<(), CliError> {
    let config = options.config.load()?.config;
    let topology = Topology::new(&config.topology, config.model.blocks).map_err(|error| CliError::Usage {
        message: error.to_string(),
        remedy: "correct topology.levels".into(),
    })?;
    let summary = ConfigSummary::new(&config, &topology);
    if options.json {
        return output::print_json(&summary);
    }
    let mut table = Table::new(&[("the configuration is right", Align::Left), ("", Align::Right)]);
    table.row(["paths".to_owned(), human::integer(summary.paths.into())]);
    for level in 0..topology.levels() {
        let parts = parts_in_words(topology.parts(level));
        let modules = human::integer(topology.modules_in(level).into());
        let frozen = if topology.trains(level) { "" } else { " (frozen)" };
        table.row([format!("modules of level {level}: {parts}{frozen}"), modules]);
    }
    table.row(["modules in all".to_owned(), human::integer(summary.modules as u64)]);
    table.row(["tokens of the seed".to_owned(), human::integer(summary.seed_tokens)]);
    table.row(["inner steps per path".to_owned(), human::integer(summary.inner_steps_per_path)]);
    table.row(["training tokens per path".to_owned(), human::integer(summary.train_tokens_per_path)]);
    table.row(["hash".to_owned(), summary.hash.chars().take(16).collect()]);
    output::print(&table.to_string())
}

#[derive(Serialize)]
struct Key<'a> {
    key: &'a str,
    default: Option<String>,
    unit: &'a str,
    meaning: &'a str,
    affects_result: bool,
}

fn keys(options: &KeysOptions) -> Result<(), CliError> {
    let default = RunConfig::default();
    let matching: Vec<&KeyDoc> =
        dipaco_config::keys().filter(|doc| doc.key.starts_with(&options.prefix)).collect();
    if matching.is_empty() {
        return Err(CliError::Usage {
            message: format!("no key begins with `{}`", options.prefix),
            remedy: "`dipaco config keys` lists all keys".into(),
        });
    }
    let value = |doc: &KeyDoc| default.value(doc.key);
    if options.json {
        let keys: Vec<Key<'_>> = matching
            .iter()
            .map(|doc| Key {
                key: doc.key,
                default: value(doc),
                unit: doc.unit,
                meaning: doc.text,
                affects_result: doc.affects_result,
            })
            .collect();
        return output::print_json(&keys);
    }
    let mut table = Table::new(&[
        ("key", Align::Left),
        ("default", Align::Left),
        ("unit", Align::Left),
        ("meaning", Align::Left),
    ]);
    for doc in matching {
        table.row([
            doc.key.to_owned(),
            value(doc).unwrap_or_default(),
            doc.unit.to_owned(),
            doc.text.to_owned(),
        ]);
    }
    output::print(&table.to_string())
}
