//! `dipaco simulate speeds`: the cost of learners of different speeds.

use clap::Args;
use dipaco_plot::{Axis, Line, LineChart};
use dipaco_simulate::{LargeRun, Played, SimulatedScheme, play};
use dipaco_telemetry::{Align, Table};
use rayon::prelude::*;
use serde::Serialize;

use super::report::{ReportOptions, refused};
use crate::error::CliError;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco simulate speeds                               8 learners, every second takes 18 % longer, as in arXiv:2604.21428
  dipaco simulate speeds --learners 4 --gap 3 --variation 0
  dipaco simulate speeds --inner-steps 50 --fragments 5 --overlap 5 --grace-seconds 20 --out pictures";

/// Size of the synchronised model. It does not matter here, because links are not simulated.
const PARAMETERS: f64 = 1e11;
/// The largest gap in the chart, unless that of the options is larger.
const WIDEST: f64 = 1.0;
/// Number of points of a curve.
const POINTS: u32 = 11;

/// Options of `dipaco simulate speeds`.
#[derive(Debug, Args)]
pub(crate) struct SpeedsOptions {
    /// Number of learners.
    #[arg(long, value_name = "M", default_value_t = 8)]
    learners: u32,
    /// Additional time of every second learner for an inner step, as a share.
    #[arg(long, value_name = "SHARE", default_value_t = 0.18)]
    gap: f64,
    /// Standard deviation of the time of an inner step, as a share.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    variation: f64,
    /// Seconds of an inner step of the faster learners.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    step_seconds: f64,
    /// H, inner steps between two synchronisations of the same parameters.
    #[arg(long, value_name = "N", default_value_t = 24)]
    inner_steps: u32,
    /// Number of fragments, which are sent in turn.
    #[arg(long, value_name = "N", default_value_t = 24)]
    fragments: u32,
    /// Number of inner steps during the transfer of a fragment.
    #[arg(long, value_name = "N", default_value_t = 2)]
    overlap: u32,
    /// Upper bound on the time that an outer step with its quorum waits for further learners.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    grace_seconds: f64,
    /// Seed of the times of steps.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    report: ReportOptions,
}

/// A line of the table.
#[derive(Serialize)]
struct SpeedRow {
    name: String,
    run: LargeRun,
    #[serde(flatten)]
    played: Played,
    /// Mean number of outer steps of a fragment in the time in which a learner that never waits takes H inner steps.
    outer_steps_a_round: f64,
}

impl SpeedsOptions {
    /// The learners that outer steps wait for.
    fn runs(&self, gap: f64) -> Vec<(String, LargeRun)> {
        let (h, f, overlap) = (self.inner_steps, self.fragments, self.overlap);
        let run = |name: &str, overlap, quorum, grace_seconds, state_stays| {
            let mut scheme = SimulatedScheme::decoupled(h, f, overlap, grace_seconds);
            scheme.sync.quorum = quorum;
            let run = LargeRun {
                speed_gap: gap,
                step_variation: self.variation,
                state_stays,
                seed: self.seed,
                ..LargeRun::new(self.learners, scheme, PARAMETERS, self.step_seconds)
            };
            (name.to_owned(), run)
        };
        let mut throttled = run("quorum of one, grace, throttle", overlap, 1, self.grace_seconds, true);
        throttled.1.scheme.sync.throttle = 0.9;
        vec![
            run("all wait for all, no overlap", 0, 0, 0.0, true),
            run("all wait for all", overlap, 0, 0.0, true),
            run("all wait for all, paths move", overlap, 0, 0.0, false),
            run("quorum of all", overlap, self.learners, 0.0, true),
            run("quorum of one and grace", overlap, 1, self.grace_seconds, true),
            run("quorum of one", overlap, 1, 0.0, true),
            throttled,
        ]
    }

    fn rows(&self, gap: f64) -> Result<Vec<SpeedRow>, CliError> {
        let row = |(name, run): (String, LargeRun)| {
            let played = play(&run).map_err(|error| refused("speeds", &error))?;
            // Half of the learners are slower.
            let slow = f64::from(self.learners / 2) / f64::from(self.learners);
            let speed = (1.0 - slow + slow / (1.0 + gap)) / self.step_seconds;
            let rounds = played.seconds * speed / f64::from(self.inner_steps);
            let outer_steps_a_round = played.outer_steps as f64 / f64::from(self.fragments) / rounds;
            Ok(SpeedRow { name, run, played, outer_steps_a_round })
        };
        self.runs(gap).into_par_iter().map(row).collect()
    }
}

pub(crate) fn run(options: &SpeedsOptions) -> Result<(), CliError> {
    let rows = options.rows(options.gap)?;
    let mut table = Table::new(&[
        ("outer steps", Align::Left),
        ("goodput", Align::Right),
        ("learners in one", Align::Right),
        ("of a fragment in H inner steps", Align::Right),
    ]);
    for row in &rows {
        table.row([
            row.name.clone(),
            format!("{:.1} %", row.played.goodput * 100.0),
            format!("{:.2}", row.played.contributors),
            format!("{:.2}", row.outer_steps_a_round),
        ]);
    }
    let text = format!("{}:\n\n{table}", headline(options));
    options.report.report(&text, &rows, || chart(options))
}

/// The simulated learners.
fn headline(options: &SpeedsOptions) -> String {
    format!(
        "{} learners, every second one takes {:.0} % longer for a step, and steps vary by {:.0} %",
        options.learners,
        options.gap * 100.0,
        options.variation * 100.0
    )
}

/// A chart of goodput against the gap.
fn chart(options: &SpeedsOptions) -> Result<(&'static str, LineChart), CliError> {
    let mut lines: Vec<Line> = Vec::new();
    let widest = WIDEST.max(options.gap);
    for point in 0..POINTS {
        let gap = widest * f64::from(point) / f64::from(POINTS - 1);
        for (colour, row) in options.rows(gap)?.into_iter().enumerate() {
            if point == 0 {
                lines.push(Line::new(row.name, Vec::new()).in_colour(colour));
            }
            if let Some(line) = lines.get_mut(colour) {
                line.points.push((gap * 100.0, row.played.goodput * 100.0));
            }
        }
    }
    let chart = LineChart {
        title: "Goodput of learners of two speeds".into(),
        x: Axis::linear("% that a step of the slower ones takes longer"),
        y: Axis::linear("% of the chips' time"),
        lines,
    };
    Ok(("speeds", chart))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_of_three_is_a_step_that_takes_four_times_as_long() {
        let options = SpeedsOptions {
            learners: 2,
            gap: 3.0,
            variation: 0.0,
            step_seconds: 1.0,
            inner_steps: 24,
            fragments: 2,
            overlap: 2,
            grace_seconds: 0.0,
            seed: 0,
            report: ReportOptions { out: None, json: false },
        };
        let headline = headline(&options);
        assert!(headline.contains("every second one takes 300 % longer"), "{headline}");
        let (_, chart) = chart(&options).unwrap();
        let gaps = chart.lines.iter().flat_map(|line| &line.points).map(|point| point.0);
        let widest = gaps.fold(0.0, f64::max);
        assert!((widest - 300.0).abs() < 1e-9, "{widest}");
    }
}
