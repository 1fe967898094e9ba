//! Charts of runs: loss, shard sizes, cosine of outer gradients.

use std::path::Path;

use dipaco_plot::{Axis, BarChart, Line, LineChart};
use dipaco_routing::ShardSet;

use super::chart::{Chart, plain};
use super::curves::RunCurves;
use crate::error::PipelineError;
use crate::run_directory::RunDirectory;

/// A quantity that the loss is drawn against.
struct Against {
    /// The end of the chart's name.
    name: &'static str,
    /// Label of the axis.
    label: &'static str,
    /// The quantity at a step of the run; `None` when the events do not tell.
    at: fn(&RunCurves, f64) -> Option<f64>,
}

const AGAINST: [Against; 4] = [
    Against {
        name: "steps",
        label: "inner steps of each path",
        at: |curves, step| Some(curves.path_steps(step)),
    },
    Against {
        name: "tokens",
        label: "training tokens of all paths together, padding included",
        at: |curves, step| Some(curves.tokens_at(step)),
    },
    Against {
        name: "seconds",
        label: "seconds of training",
        at: |curves, step| Some(curves.cost_at(step)?.seconds),
    },
    Against {
        name: "bytes",
        label: "bytes on the wire, to and from the coordinator",
        at: |curves, step| Some(curves.cost_at(step)?.wire_bytes as f64),
    },
];

/// All charts that the runs have numbers for. The loss curves of all runs are in one chart.
///
/// # Errors
/// [`PipelineError::Routing`] when the shards of a run can't be read.
pub fn of_runs(runs: &[(RunDirectory, RunCurves)]) -> Result<Vec<Chart>, PipelineError> {
    let curves: Vec<&RunCurves> = runs.iter().map(|(_, curves)| curves).collect();
    let mut charts = Vec::new();
    for against in AGAINST {
        let chart = loss(&curves, &against);
        if !chart.lines.is_empty() {
            charts.push(Chart::lines(format!("loss-{}", against.name), &chart));
        }
    }
    if curves.iter().any(|curves| !curves.seed_training.is_empty()) {
        charts.push(Chart::lines("loss-seed", &seed(&curves)));
    }
    for (run, curves) in runs {
        let name = plain(&curves.name);
        let phases = (0..).map(|phase| run.routing(phase).train());
        for (phase, folder) in phases.take_while(|folder| folder.join("shards.json").exists()).enumerate() {
            charts.extend(shards(&folder, phase, curves, &name)?);
        }
        if !curves.cosines.is_empty() {
            charts.push(Chart::lines(format!("cosine-{name}"), &cosines(curves)));
        }
    }
    Ok(charts)
}

/// The loss of all runs. A curve without points has no line.
fn loss(runs: &[&RunCurves], against: &Against) -> LineChart {
    let mut lines = Vec::new();
    for (colour, curves) in runs.iter().enumerate() {
        let line = |name: &str, points: &[(f64, f64)]| -> Line {
            let points = points.iter().filter_map(|&(step, loss)| Some(((against.at)(curves, step)?, loss)));
            Line::new(format!("{}, {name}", curves.name), points.collect()).in_colour(colour)
        };
        let of_run = [
            line("training", &curves.training),
            Line { dashed: true, ..line("held out", &curves.heldout) },
            Line { marked: true, ..line("validation", &curves.validation) },
        ];
        lines.extend(of_run.into_iter().filter(|line| !line.points.is_empty()));
    }
    LineChart {
        title: "Loss, mean over the paths".into(),
        x: Axis::linear(against.label),
        y: Axis::linear("loss in nats per token"),
        lines,
    }
}

fn seed(runs: &[&RunCurves]) -> LineChart {
    let mut lines = Vec::new();
    for (colour, curves) in runs.iter().filter(|curves| !curves.seed_training.is_empty()).enumerate() {
        let line = Line::new(format!("{}, training", curves.name), curves.seed_training.clone());
        lines.push(line.in_colour(colour));
        let line = Line::new(format!("{}, validation", curves.name), curves.seed_validation.clone());
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
fn shards(folder: &Path, phase: usize, curves: &RunCurves, name: &str) -> Result<Vec<Chart>, PipelineError> {
    let set = ShardSet::open(folder)?;
    let (name, of) = match phase {
        0 => (name.to_owned(), curves.name.clone()),
        phase => (format!("{name}-phase-{phase}"), format!("{}, phase {phase}", curves.name)),
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

/// A line for each fragment of a module, in the colour of its level.
fn cosines(curves: &RunCurves) -> LineChart {
    let mut named = std::collections::BTreeSet::new();
    let lines = curves.cosines.iter().map(|((module, _), points)| {
        let first = named.insert(module.level);
        let name = if first { format!("modules of level {}", module.level) } else { String::new() };
        Line::new(name, points.clone()).in_colour(usize::from(module.level))
    });
    LineChart {
        title: format!("How alike outer gradients are: {}", curves.name),
        x: Axis::linear("outer steps"),
        y: Axis::linear("mean cosine between two paths of a module"),
        lines: lines.collect(),
    }
}
