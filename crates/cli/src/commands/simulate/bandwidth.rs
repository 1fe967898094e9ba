//! `dipaco simulate bandwidth`: the bandwidth that each synchronisation scheme needs.

use clap::Args;
use dipaco_plot::{Axis, Line, LineChart};
use dipaco_simulate::{LargeRun, Link, SimulateError, SimulatedScheme, play, required_bandwidth};
use dipaco_telemetry::{Align, Table};
use rayon::prelude::*;
use serde::Serialize;

use super::report::{ReportOptions, refused};
use crate::error::CliError;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco simulate bandwidth                            1B, 10B and 100B parameters, Llama 405B and DeepSeek-V3 671B
  dipaco simulate bandwidth --parameters 2e9 --step-seconds 1.5 --inner-steps 50 --fragments 10 --overlap 2
  dipaco simulate bandwidth --sites 8 --latency 0.05 --out pictures --json";

/// Shares of compute time whose bandwidth is computed.
const SHARES: [f64; 5] = [0.5, 0.8, 0.9, 0.95, 0.99];
/// The sizes of arXiv:2501.18512: table 4, Llama 405B and DeepSeek-V3.
const PAPER: [ModelSize; 5] = [
    ModelSize { parameters: 1e9, step_seconds: 0.1 },
    ModelSize { parameters: 1e10, step_seconds: 0.8 },
    ModelSize { parameters: 1e11, step_seconds: 4.9 },
    ModelSize { parameters: 4.05e11, step_seconds: 26.9 },
    ModelSize { parameters: 6.71e11, step_seconds: 20.1 },
];
/// A bandwidth in bit/s for a run whose bandwidth is searched.
const ANY: f64 = 1e9;
/// Number of points of a curve.
const POINTS: u32 = 60;

/// Options of `dipaco simulate bandwidth`.
#[derive(Debug, Args)]
pub(crate) struct BandwidthOptions {
    /// Number of synchronised parameters. The default is 1e9, 1e10, 1e11, 4.05e11 and 6.71e11, one after the other.
    #[arg(long, value_name = "N", requires = "step_seconds")]
    parameters: Option<f64>,
    /// Seconds of an inner step at a site.
    #[arg(long, value_name = "SECONDS", requires = "parameters")]
    step_seconds: Option<f64>,
    /// H, inner steps between two synchronisations of the same parameters.
    #[arg(long, value_name = "N", default_value_t = 100)]
    inner_steps: u32,
    /// Number of fragments, which are sent in turn; the default is 8 to 40 by the number of parameters, as in the paper.
    #[arg(long, value_name = "N")]
    fragments: Option<u32>,
    /// Number of inner steps during the transfer of a fragment.
    #[arg(long, value_name = "N", default_value_t = 1)]
    overlap: u32,
    /// Bits of a compressed value.
    #[arg(long, value_name = "N", default_value_t = 4.0)]
    bits: f64,
    /// Number of sites.
    #[arg(long, value_name = "N", default_value_t = 2)]
    sites: u32,
    /// Latency of each message in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    latency: f64,
    #[command(flatten)]
    report: ReportOptions,
}

/// A row of the table.
#[derive(Serialize)]
struct BandwidthRow {
    parameters: f64,
    step_seconds: f64,
    scheme: String,
    settings: SimulatedScheme,
    /// Bits per second for each share of [`SHARES`]; `None` where no bandwidth is enough.
    required: Vec<Option<f64>>,
}

/// Number of fragments of a model, by its number of parameters.
fn fragments(parameters: f64) -> u32 {
    match parameters {
        ..=2e9 => 8,
        ..=1.5e10 => 16,
        ..=1.5e11 => 36,
        _ => 40,
    }
}

/// The size of a model.
#[derive(Clone, Copy, Debug)]
struct ModelSize {
    parameters: f64,
    /// Seconds of an inner step.
    step_seconds: f64,
}

impl BandwidthOptions {
    /// The sizes of models that are simulated.
    fn sizes(&self) -> Vec<ModelSize> {
        match (self.parameters, self.step_seconds) {
            (Some(parameters), Some(step_seconds)) => vec![ModelSize { parameters, step_seconds }],
            _ => PAPER.to_vec(),
        }
    }

    fn run(&self, size: ModelSize, scheme: SimulatedScheme, bits_per_second: f64) -> LargeRun {
        let link = Some(Link { bits_per_second, latency_seconds: self.latency });
        LargeRun { link, ..LargeRun::new(self.sites, scheme, size.parameters, size.step_seconds) }
    }

    fn schemes(&self, parameters: f64) -> Vec<(String, SimulatedScheme)> {
        let (h, overlap) = (self.inner_steps, self.overlap);
        let p = self.fragments.unwrap_or_else(|| fragments(parameters).min(h));
        vec![
            ("data parallel".into(), SimulatedScheme::data_parallel()),
            (format!("DiLoCo, H = {h}"), SimulatedScheme::diloco(h)),
            (format!("streaming, {p} fragments"), SimulatedScheme::streaming(h, p, 0, 16.0)),
            (format!("streaming, overlap {overlap}"), SimulatedScheme::streaming(h, p, overlap, 16.0)),
            (
                format!("streaming, overlap {overlap}, {} bits", self.bits),
                SimulatedScheme::streaming(h, p, overlap, self.bits),
            ),
            (format!("eager, {} bits", self.bits), SimulatedScheme::eager(h, self.bits)),
        ]
    }
}

pub(crate) fn run(options: &BandwidthOptions) -> Result<(), CliError> {
    let mut rows = Vec::new();
    for size in options.sizes() {
        for (scheme, settings) in options.schemes(size.parameters) {
            let run = options.run(size, settings.clone(), ANY);
            let required = SHARES.into_par_iter().map(|share| required_bandwidth(&run, share));
            let required = required.collect::<Result<_, _>>().map_err(wrong)?;
            let ModelSize { parameters, step_seconds } = size;
            rows.push(BandwidthRow { parameters, step_seconds, scheme, settings, required });
        }
    }
    let heads = SHARES.map(|share| format!("{:.0} %", share * 100.0));
    let mut columns = vec![("parameters", Align::Right), ("step", Align::Right), ("scheme", Align::Left)];
    columns.extend(heads.iter().map(|head| (head.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    for row in &rows {
        let mut cells = vec![size(row.parameters), format!("{} s", row.step_seconds), row.scheme.clone()];
        cells.extend(row.required.iter().map(|bits| bits.map_or_else(|| "none".into(), gigabits)));
        table.row(cells);
    }
    let text = format!("Gbit/s between sites that keep compute busy for a share of the time:\n\n{table}");
    options.report.report(&text, &rows, || chart(options, chart_begin(&rows)))
}

/// The usage error of a setting. The simulation calls the sites learners.
fn wrong(error: SimulateError) -> CliError {
    let named = match error {
        SimulateError::Setting { what: "learners", value, problem } => {
            SimulateError::Setting { what: "sites", value, problem }
        }
        error => error,
    };
    refused("bandwidth", &named)
}

/// The smallest bandwidth of a chart in Gbit/s: that of the paper's tables, or a smaller one that is enough for a row.
fn chart_begin(rows: &[BandwidthRow]) -> f64 {
    let required = rows.iter().flat_map(|row| &row.required).flatten().copied();
    required.filter(|bits| *bits > 0.0).fold(1e8, f64::min) / 1e9
}

/// A chart of utilisation against bandwidth from `begin` Gbit/s on, for the last size.
fn chart(options: &BandwidthOptions, begin: f64) -> Result<(&'static str, LineChart), CliError> {
    // Ends of the logarithm; the upper one is that of 1,000 Gbit/s.
    let (from, to) = (begin.log10(), 3.0);
    let mut lines = Vec::new();
    let mut title = String::new();
    for size_and_step in options.sizes().into_iter().rev().take(1) {
        let ModelSize { parameters, step_seconds } = size_and_step;
        title = format!("{} parameters, {step_seconds} s a step", size(parameters));
        for (colour, (name, scheme)) in options.schemes(parameters).into_iter().enumerate() {
            let point = |point: u32| {
                let gigabits = 10f64.powf(from + (to - from) * f64::from(point) / f64::from(POINTS - 1));
                let run = options.run(size_and_step, scheme.clone(), gigabits * 1e9);
                let played = play(&run).map_err(wrong)?;
                Ok((gigabits, played.utilisation * 100.0))
            };
            let points = (0..POINTS).into_par_iter().map(point).collect::<Result<_, CliError>>()?;
            lines.push(Line::new(name, points).in_colour(colour));
        }
    }
    let chart = LineChart {
        title: format!("Time that is spent computing: {title}"),
        x: Axis::logarithmic("Gbit/s between sites"),
        y: Axis::linear("% of the time"),
        lines,
    };
    Ok(("bandwidth", chart))
}

/// A number of parameters, as 1.5B.
fn size(parameters: f64) -> String {
    match parameters {
        1e9.. => format!("{}B", parameters / 1e9),
        1e6.. => format!("{}M", parameters / 1e6),
        _ => format!("{parameters}"),
    }
}

/// A bandwidth in Gbit/s, with at least two significant digits.
fn gigabits(bits: f64) -> String {
    let gigabits = bits / 1e9;
    if gigabits >= 10.0 {
        format!("{gigabits:.1}")
    } else if gigabits > 0.0 {
        let digits = (1.0 - gigabits.log10().floor()).clamp(2.0, 12.0) as usize;
        format!("{gigabits:.digits$}")
    } else {
        "0".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_of_any_size_have_two_significant_digits() {
        let shown = [0.0, 3.2e6, 6.3e7, 1e8, 2.04e9, 8.29e11].map(gigabits);
        assert_eq!(shown, ["0", "0.0032", "0.063", "0.10", "2.04", "829.0"]);
    }

    #[test]
    fn a_chart_begins_where_the_smallest_bandwidth_is_enough() {
        let row = |required| BandwidthRow {
            parameters: 1e9,
            step_seconds: 1.0,
            scheme: String::new(),
            settings: SimulatedScheme::data_parallel(),
            required,
        };
        let rows = [row(vec![Some(5e9), None]), row(vec![Some(0.0), Some(3e6)])];
        assert_eq!(chart_begin(&rows[..1]), 0.1);
        assert_eq!(chart_begin(&rows), 0.003);
    }
}
