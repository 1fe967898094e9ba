//! Metrics in the text format of Prometheus, with the prefix `dipaco_`.
//!
//! The macros of the `metrics` crate write to one recorder per process, so two servers in one process (as in the tests)
//! would share their counts. Here each server writes its own.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// The media type of the text.
pub const EXPOSITION_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Goes up and down.
    Gauge,
    /// Only rises while the process lives.
    Counter,
}

impl MetricKind {
    fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
        }
    }
}

/// The text of all metrics of one server.
#[derive(Debug)]
pub struct Exposition {
    text: String,
    /// Labels of every line.
    labels: String,
}

impl Exposition {
    /// An empty text. `labels` stand in every line; [`label`] makes them.
    #[must_use]
    pub fn new(labels: String) -> Self {
        Self { text: String::with_capacity(16 << 10), labels }
    }

    /// Appends a metric with a line for each of `values`. Each value has labels of its own, made by [`label`] and joined
    /// by commas; they may be empty.
    pub fn metric<V: Display>(
        &mut self,
        name: &str,
        kind: MetricKind,
        help: &str,
        values: impl IntoIterator<Item = (String, V)>,
    ) {
        let kind = kind.name();
        let _ = writeln!(self.text, "# HELP dipaco_{name} {help}\n# TYPE dipaco_{name} {kind}");
        for (own, value) in values {
            let comma = if own.is_empty() || self.labels.is_empty() { "" } else { "," };
            let _ = writeln!(self.text, "dipaco_{name}{{{}{comma}{own}}} {value}", self.labels);
        }
    }

    /// Appends a metric with one value.
    pub fn value(&mut self, name: &str, kind: MetricKind, help: &str, value: impl Display) {
        self.metric(name, kind, help, [(String::new(), value)]);
    }

    /// Appends a histogram.
    pub fn histogram(&mut self, histogram: &Histogram) {
        histogram.write(&mut self.text, &self.labels);
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }
}

/// A label, with its value escaped.
#[must_use]
pub fn label(name: &str, value: impl Display) -> String {
    let value = value.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

/// Counts of observations per bucket, and the sum of all observations.
#[derive(Debug)]
pub struct Histogram {
    name: &'static str,
    help: &'static str,
    bounds: &'static [f64],
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
}

impl Histogram {
    /// A histogram without observations. `bounds` are the upper bounds of its buckets, ascending.
    #[must_use]
    pub fn new(name: &'static str, help: &'static str, bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { name, help, bounds, counts, sum: AtomicU64::new(0f64.to_bits()) }
    }

    /// Counts one observation.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // `fetch_update` fails only when the closure returns `None`.
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Appends the histogram to `out`, with `labels` in every line.
    fn write(&self, out: &mut String, labels: &str) {
        let Self { name, help, .. } = self;
        let _ = writeln!(out, "# HELP dipaco_{name} {help}\n# TYPE dipaco_{name} histogram");
        let mut below = 0;
        let bounds = self.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&self.counts) {
            below += count.load(Ordering::Relaxed);
            let _ = writeln!(out, "dipaco_{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
        }
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        let _ = writeln!(out, "dipaco_{name}_sum{{{labels}}} {sum}\ndipaco_{name}_count{{{labels}}} {below}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_bounds_inclusive() {
        let histogram = Histogram::new("h", "Help.", &[1.0, 2.5]);
        [0.5, 1.0, 2.0, 9.0].into_iter().for_each(|value| histogram.observe(value));
        let mut exposition = Exposition::new(label("m", "x"));
        exposition.histogram(&histogram);
        let expected = "# HELP dipaco_h Help.\n# TYPE dipaco_h histogram\ndipaco_h_bucket{m=\"x\",le=\"1\"} 2\ndipaco_h_bucket{m=\"x\",le=\"2.5\"} 3\n\
            dipaco_h_bucket{m=\"x\",le=\"+Inf\"} 4\ndipaco_h_sum{m=\"x\"} 12.5\ndipaco_h_count{m=\"x\"} 4\n";
        assert_eq!(exposition.finish(), expected);
    }

    #[test]
    fn labels_are_joined_and_escaped() {
        let mut exposition = Exposition::new(label("run", "a \"b\"\\\n"));
        exposition.metric("m", MetricKind::Gauge, "Help.", [(label("path", 3), 0.5)]);
        exposition.value("n_total", MetricKind::Counter, "Help.", 2);
        let expected = "# HELP dipaco_m Help.\n# TYPE dipaco_m gauge\ndipaco_m{run=\"a \\\"b\\\"\\\\\\n\",path=\"3\"} 0.5\n\
            # HELP dipaco_n_total Help.\n# TYPE dipaco_n_total counter\ndipaco_n_total{run=\"a \\\"b\\\"\\\\\\n\"} 2\n";
        assert_eq!(exposition.finish(), expected);
    }
}
