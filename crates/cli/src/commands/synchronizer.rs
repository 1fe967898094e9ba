//! `dipaco synchronizer`: takes the outer steps of some modules in a process of its own.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use clap::Args;
use dipaco_telemetry::human;
use dipaco_topology::{ModuleId, Topology};

use crate::commands::worker;
use crate::error::CliError;
use crate::http_address::{host_port, http_address};
use crate::interrupt::Interrupt;
use crate::run_options::RunOptions;
use crate::token_place::token_place;
use crate::{memory, output, runtime};
use dipaco_pipeline::synchronizer::{Options, synchronize};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco coordinator --run runs/big --listen 0.0.0.0:7440 --advertise host.example:7440
  dipaco synchronizer --run runs/big --modules 0 --listen 0.0.0.0:7441 --advertise host.example:7441
  dipaco synchronizer --run runs/big --modules 1/0..8,2/3 --listen 0.0.0.0:7442 --advertise host.example:7442
The coordinator takes the outer steps of all other modules, and of the modules of a synchronizer that has ended.";

/// Options of `dipaco synchronizer`.
#[derive(Debug, Args)]
pub(crate) struct SynchronizerArguments {
    #[command(flatten)]
    run: RunOptions,
    /// File of the synchronizer's token, or its https:// address; the default is secrets/synchronizer.token of the run. It is
    /// read again when the coordinator can't be reached, because the coordinator may have moved.
    #[arg(long, env = "DIPACO_JOIN", value_name = "FILE|URL", hide_env_values = true)]
    join: Option<std::path::PathBuf>,
    /// Modules whose outer steps it takes: LEVEL, LEVEL/INDEX or LEVEL/FROM..END, separated by commas.
    #[arg(long, env = "DIPACO_MODULES", value_name = "MODULES", value_delimiter = ',', required = true, value_parser = parse)]
    modules: Vec<NamedModules>,
    /// UDP address to listen on.
    #[arg(long, env = "DIPACO_LISTEN", default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Address by which workers reach it, host:port, where port 0 stands for the port that it listens on; the default is
    /// the listening address, or the loopback in the place of `0.0.0.0` and `[::]`.
    #[arg(long, env = "DIPACO_ADVERTISE", value_name = "HOST:PORT", value_parser = host_port)]
    advertise: Option<String>,
    /// Name, unique in the run; the default is `synchronizer-`, the machine's name and the process number.
    #[arg(long, env = "DIPACO_NAME")]
    name: Option<String>,
    /// Seconds to retry when the coordinator can't be reached. After them the synchronizer ends with exit code 75.
    #[arg(long, env = "DIPACO_PATIENCE", default_value_t = 600, value_name = "SECONDS")]
    patience: u64,
    /// Address with /health, /ready, /metrics and /status.json. A port alone is a port of this machine's loopback. Everybody
    /// who reaches the address can read, and nobody can change anything.
    #[arg(long, env = "DIPACO_HTTP", value_name = "[ADDRESS:]PORT", value_parser = http_address)]
    http: Option<SocketAddr>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Modules of one level; without a range all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedModules {
    level: u16,
    indices: Option<Range<u32>>,
}

fn parse(text: &str) -> Result<NamedModules, String> {
    let wrong = || {
        format!("{text:?} names no modules: write LEVEL, LEVEL/INDEX or LEVEL/FROM..END, as in 0/3 or 1/0..8")
    };
    let (level, indices) = match text.split_once('/') {
        Some((level, indices)) => (level, Some(indices)),
        None => (text, None),
    };
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
    let level = level.trim().parse().map_err(|_| wrong())?;
    let indices = match indices {
        None => None,
        Some(indices) => {
            let (from, end) = match indices.split_once("..") {
                Some((from, end)) => (number(from)?, number(end)?),
                None => (number(indices)?, number(indices)?.saturating_add(1)),
            };
            if from >= end {
                return Err(wrong());
            }
            Some(from..end)
        }
    };
    Ok(NamedModules { level, indices })
}

/// The named modules, each once, checked against the topology.
fn select(topology: &Topology, named: &[NamedModules]) -> Result<Vec<ModuleId>, CliError> {
    let mut modules = Vec::new();
    for NamedModules { level, indices } in named {
        let count =
            if usize::from(*level) < topology.levels() { topology.modules_in((*level).into()) } else { 0 };
        let indices = indices.clone().unwrap_or(0..count.max(1));
        if indices.end > count {
            let message = format!("this run has no module {level}/{}", indices.end - 1);
            let remedy = format!(
                "it has {} levels; `dipaco train --dry-run` shows how many modules each has",
                topology.levels()
            );
            return Err(CliError::Usage { message, remedy });
        }
        modules.extend(indices.map(|index| ModuleId { level: *level, index }));
    }
    modules.sort_unstable();
    modules.dedup();
    Ok(modules)
}

/// In a container every synchronizer may have the process number 1.
fn default_name() -> String {
    format!("synchronizer-{}", worker::default_name())
}

pub(crate) fn run(options: &SynchronizerArguments) -> Result<(), CliError> {
    memory::keep_freed();
    let interrupt = Interrupt::listen()?;
    let (run, config) = options.run.open()?;
    let topology = Topology::new(&config.topology, config.model.blocks).map_err(|error| CliError::Usage {
        message: error.to_string(),
        remedy: "name the run whose modules these are with --run".into(),
    })?;
    let how = Options {
        join: options.join.as_deref().map(token_place).transpose()?,
        max_workers: config.train.max_workers,
        modules: select(&topology, &options.modules)?,
        listen: options.listen,
        advertise: options.advertise.clone(),
        name: options.name.clone().unwrap_or_else(default_name),
        links: config.run.links,
        patience: Duration::from_secs(options.patience),
        http: options.http,
    };
    let summary =
        interrupt.judge(runtime::run(async { Ok(synchronize(&run, how, interrupt.token()).await?) }))?;
    if options.json {
        output::print_json(&summary)?;
    } else {
        output::print(&format!(
            "took {} outer steps; {} to the workers, {} from them\n",
            summary.outer_steps,
            human::bytes(summary.bytes_sent),
            human::bytes(summary.bytes_received)
        ))?;
    }
    if interrupt.is_set() { Err(CliError::Interrupted) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use dipaco_config::RunConfig;

    use super::*;

    #[test]
    fn each_module_that_is_named_is_selected_once() {
        let file = std::path::Path::new("a.toml");
        let config = RunConfig::from_toml(
            "topology.levels = [
                { modules = 4, blocks = \"0..2\", embedding = true },
                { modules = 2, blocks = \"2..4\", head = true },
            ]",
            file,
        )
        .unwrap();
        let topology = Topology::new(&config.topology, 4).unwrap();
        let select = |named: &[&str]| {
            let named: Vec<_> = named.iter().map(|text| parse(text).unwrap()).collect();
            let modules = select(&topology, &named).map_err(|error| error.to_string())?;
            Ok::<_, String>(modules.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(select(&["1", "0/2..4", "0/3"]).unwrap(), ["0/2", "0/3", "1/0", "1/1"]);
        assert!(select(&["0/4"]).unwrap_err().contains("no module 0/4"));
        assert!(select(&["2"]).unwrap_err().contains("no module 2/0"));
        assert!(select(&["0/0..4000000000"]).unwrap_err().contains("no module 0/3999999999"));
    }

    #[test]
    fn synchronizers_of_two_machines_have_names_of_their_own() {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let name = default_name();
        assert!(name.starts_with("synchronizer-") && name.contains(host.trim()), "{name}");
    }

    #[test]
    fn modules_are_named_by_level_index_and_range() {
        let named = |text| parse(text).map(|NamedModules { level, indices }| (level, indices));
        assert_eq!(named("1"), Ok((1, None)));
        assert_eq!(named("0/3"), Ok((0, Some(3..4))));
        assert_eq!(named("2/0..8"), Ok((2, Some(0..8))));
        for wrong in ["", "a", "0/", "0/x", "0/3..3", "0/4..2", "-1", "0/1/2"] {
            let message = parse(wrong).unwrap_err();
            assert!(message.contains("LEVEL/FROM..END"), "{message}");
        }
    }
}
