//! Charts of runs: loss, shard sizes, how alike outer gradients are.

use std::path::Path;

use dipaco_plot::{Axis, BarChart, Line, LineChart};
use dipaco_routing::ShardSet;

use super::{Chart, Told, plain};
use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;

/// Every chart that the runs have numbers for; loss curves of all runs are in one chart.
pub(crate) fn of_runs(runs: &[(RunDirectory, Told)]) -> Result<Vec<Chart>, StepError> {
    let told: Vec<&Told> = runs.iter().map(|(_, told)| told).collect();
    let mut charts = Vec::new();
    if told.iter().any(|told| !told.training.is_empty()) {
        let steps = loss(&told, "inner steps of each path", |_| 1.0);
        let tokens = loss(&told, "training tokens of all paths together", |told| told.step_tokens);
        charts.push(Chart::lines("loss-steps", &steps));
        charts.push(Chart::lines("loss-tokens", &tokens));
    }
    if told.iter().any(|told| !told.seed_training.is_empty()) {
        charts.push(Chart::lines("loss-seed", &seed(&told)));
    }
    for (run, told) in runs {
        let name = plain(&told.name);
        let phases = (0..).map(|phase| run.routing(phase).train());
        for (phase, folder) in phases.take_while(|folder| folder.join("shards.json").exists()).enumerate() {
            charts.extend(shards(&folder, phase, told, &name)?);
        }
        if !told.cosines.is_empty() {
            charts.push(Chart::lines(format!("cosine-{name}"), &cosines(told)));
        }
    }
    Ok(charts)
}

/// The loss of all runs against steps, or against what a step is worth.
fn loss(runs: &[&Told], label: &str, worth: fn(&Told) -> f64) -> LineChart {
    let mut lines = Vec::new();
    for (colour, told) in runs.iter().enumerate() {
        let at = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
            points.iter().map(|&(step, loss)| (step * worth(told), loss)).collect()
        };
        lines.push(Line::new(format!("{}, training", told.name), at(&told.training)).in_colour(colour));
        if !told.heldout.is_empty() {
            let line = Line::new(format!("{}, held out", told.name), at(&told.heldout)).in_colour(colour);
            lines.push(Line { dashed: true, ..line });
        }
    }
    LineChart {
        title: "Loss, mean over the paths".into(),
        x: Axis::linear(label),
        y: Axis::linear("loss in nats per token"),
        lines,
    }
}

fn seed(runs: &[&Told]) -> LineChart {
    let mut lines = Vec::new();
    for (colour, told) in runs.iter().filter(|told| !told.seed_training.is_empty()).enumerate() {
        let line = Line::new(format!("{}, training", told.name), told.seed_training.clone());
        lines.push(line.in_colour(colour));
        let line = Line::new(format!("{}, validation", told.name), told.seed_validation.clone());
        lines.push(Line { marked: true, dashed: true, ..line.in_colour(colour) });
    }
    LineChart {
        title: "Loss of the seed model".into(),
        x: Axis::linear("steps"),
        y: Axis::linear("loss in nats per token"),
        lines,
    }
}

/// Sizes of the training shards, in documents and in tokens, largest first.
fn shards(folder: &Path, phase: usize, told: &Told, name: &str) -> Result<Vec<Chart>, StepError> {
    let set = ShardSet::open(folder)?;
    let (name, of) = match phase {
        0 => (name.to_owned(), told.name.clone()),
        phase => (format!("{name}-phase-{phase}"), format!("{}, phase {phase}", told.name)),
    };
    let sorted = |quantity: &str, size: fn(&dipaco_routing::Shard) -> u64| {
        let mut bars: Vec<(u32, u64)> =
            set.shards().iter().map(|shard| (shard.path.0, size(shard))).collect();
        bars.sort_by_key(|&(path, size)| (std::cmp::Reverse(size), path));
        BarChart {
            title: format!("Training shards of {of}"),
            x: "path, largest shard first".into(),
            y: quantity.into(),
            bars: bars.into_iter().map(|(path, size)| (path.to_string(), size as f64)).collect(),
        }
    };
    Ok(vec![
        Chart::bars(format!("shards-documents-{name}"), &sorted("documents", |shard| shard.documents)),
        Chart::bars(format!("shards-tokens-{name}"), &sorted("tokens", |shard| shard.tokens)),
    ])
}

/// A line for each module, in the colour of its level.
fn cosines(told: &Told) -> LineChart {
    let mut named = std::collections::BTreeSet::new();
    let lines = told.cosines.iter().map(|(module, points)| {
        let first = named.insert(module.level);
        let name = if first { format!("modules of level {}", module.level) } else { String::new() };
        Line::new(name, points.clone()).in_colour(usize::from(module.level))
    });
    LineChart {
        title: format!("How alike outer gradients are: {}", told.name),
        x: Axis::linear("outer steps"),
        y: Axis::linear("mean cosine between two paths of a module"),
        lines: lines.collect(),
    }
}
