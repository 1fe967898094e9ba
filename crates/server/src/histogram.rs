//! A histogram in the text format of Prometheus, with the prefix `dipaco_`.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of observations per bucket, and the sum of all observations.
#[derive(Debug)]
pub(crate) struct Histogram {
    name: &'static str,
    help: &'static str,
    bounds: &'static [f64],
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(name: &'static str, help: &'static str, bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { name, help, bounds, counts, sum: AtomicU64::new(0f64.to_bits()) }
    }

    /// Counts one observation.
    pub(crate) fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // `fetch_update` fails only when the closure returns `None`.
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Appends the histogram to `out`, with `labels` in every line.
    pub(crate) fn write(&self, out: &mut String, labels: &str) {
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
        let mut out = String::new();
        histogram.write(&mut out, "m=\"x\"");
        let expected = "# HELP dipaco_h Help.\n# TYPE dipaco_h histogram\ndipaco_h_bucket{m=\"x\",le=\"1\"} 2\ndipaco_h_bucket{m=\"x\",le=\"2.5\"} 3\n\
            dipaco_h_bucket{m=\"x\",le=\"+Inf\"} 4\ndipaco_h_sum{m=\"x\"} 12.5\ndipaco_h_count{m=\"x\"} 4\n";
        assert_eq!(out, expected);
    }
}
