//! `dipaco status --watch`: shows the status of a run again and again.

use std::io::IsTerminal;
use std::time::Duration;

use dipaco_config::RunConfig;
use dipaco_monitor::{EventTail, RunHistory};
use dipaco_pipeline::RunDirectory;
use dipaco_pipeline::store::manifest;
use dipaco_telemetry::{Align, Table};

use super::{describe, follow, nothing};
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::plain_text::without_commands;
use crate::{output, runtime};

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(2);
/// Most workers that are shown.
const MOST_WORKERS: usize = 20;
/// Moves to the top left of a terminal and clears it.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows the status until the run is complete, nobody reads it any more, or the user stops it. Prints only changes if nobody
/// sees a terminal.
pub(super) fn run(run: &RunDirectory, config: &RunConfig) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let (mut tail, mut history) = (EventTail::new(&run.events()), RunHistory::default());
    let (terminal, mut shown) = (std::io::stdout().is_terminal(), String::new());
    while !interrupt.is_set() {
        follow(run, &mut tail, &mut history)?;
        let found = runtime::run(async { Ok(manifest(run).await?) })?;
        let (text, complete) = match &found {
            None => (nothing(run), false),
            Some(manifest) => {
                let training = manifest.training.as_ref();
                (describe(&history, config, manifest), training.is_some_and(|training| training.finished()))
            }
        };
        // Reasons and names come from workers.
        let text = without_commands(&(text + &workers(&history)));
        let read = if terminal {
            output::print_while_read(&format!("{CLEAR}{text}"))?
        } else {
            // Without a change nothing is printed: also a reader that has gone is noticed only at the next change.
            text == shown || output::print_while_read(&text)?
        };
        if complete || !read {
            return Ok(());
        }
        shown = text;
        // Nothing announces a change of the store, which may be far away.
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// A table of the workers, connected ones first.
fn workers(history: &RunHistory) -> String {
    if history.workers.is_empty() {
        return String::new();
    }
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[
        ("worker", left),
        ("state", left),
        ("leases", right),
        ("seconds", right),
        ("waited", right),
        ("lost", right),
        ("last event", left),
    ]);
    let mut rows: Vec<_> = history.workers.iter().collect();
    rows.sort_by_key(|(name, worker)| (!worker.connected, *name));
    for (name, worker) in rows.iter().take(MOST_WORKERS) {
        table.row([
            (*name).clone(),
            worker.state(),
            worker.leases.to_string(),
            format!("{:.1}", worker.seconds),
            format!("{:.1}", worker.waited_seconds),
            worker.lost.to_string(),
            worker.last.clone(),
        ]);
    }
    let more = rows.len().saturating_sub(MOST_WORKERS);
    let more = if more > 0 { format!("and {more} more workers\n") } else { String::new() };
    format!("{table}{more}")
}
