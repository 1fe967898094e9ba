//! Axes: scales, ranges, ticks.

use crate::number;

/// Mapping of values to places on an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences have equal lengths.
    #[default]
    Linear,
    /// Equal ratios have equal lengths. Values that are not positive are left out.
    Logarithmic,
}

/// Axis of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// Mapping of values to places.
    pub scale: Scale,
    /// Ends of the axis; without them the range of the values.
    pub range: Option<(f64, f64)>,
    /// Values of the ticks; if empty, round numbers.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// Returns a linear axis over the range of the values.
    #[must_use]
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), ..Self::default() }
    }

    /// Returns a logarithmic axis over the range of the values.
    #[must_use]
    pub fn logarithmic(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Logarithmic, ..Self::default() }
    }

    /// Returns the same axis with these ticks.
    #[must_use]
    pub fn with_ticks(self, ticks: Vec<f64>) -> Self {
        Self { ticks, ..self }
    }

    /// Returns true if the value has a place on the axis.
    pub(crate) fn takes(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::Linear || value > 0.0)
    }

    /// Fits the axis to these values, with some space at both ends, over `length` pixels.
    pub(crate) fn over(&self, values: impl Iterator<Item = f64>, length: f64) -> Fitted {
        let (mut low, mut high) = self.range.unwrap_or((f64::INFINITY, f64::NEG_INFINITY));
        if self.range.is_none() {
            for value in values.filter(|value| self.takes(*value)) {
                (low, high) = (low.min(value), high.max(value));
            }
        }
        if low > high {
            (low, high) = if self.scale == Scale::Linear { (0.0, 1.0) } else { (1.0, 10.0) };
        }
        let (mut from, mut to) = (place(self.scale, low), place(self.scale, high));
        if to - from < 1e-12 {
            (from, to) = (from - 0.5, to + 0.5);
        }
        if self.range.is_none() {
            let space = 0.03 * (to - from);
            // An axis of values from 0 starts at 0 exactly.
            from -= if self.scale == Scale::Linear && low == 0.0 { 0.0 } else { space };
            to += space;
        }
        Fitted { scale: self.scale, from, to, length, wanted: self.ticks.clone() }
    }
}

fn place(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Logarithmic => value.log10(),
    }
}

/// Axis with its ends and its length.
#[derive(Clone, Debug)]
pub(crate) struct Fitted {
    scale: Scale,
    from: f64,
    to: f64,
    length: f64,
    wanted: Vec<f64>,
}

impl Fitted {
    /// Returns the distance of a value from the start of the axis in pixels.
    pub(crate) fn at(&self, value: f64) -> f64 {
        (place(self.scale, value) - self.from) / (self.to - self.from) * self.length
    }

    /// Returns the values and labels of the ticks: the given ticks, or round values about `spacing` pixels apart.
    pub(crate) fn ticks(&self, spacing: f64) -> Vec<(f64, String)> {
        if !self.wanted.is_empty() {
            return self
                .wanted
                .iter()
                .map(|&value| (value, number::label(value, steps(&self.wanted))))
                .collect();
        }
        let count = (self.length / spacing).max(2.0);
        match self.scale {
            Scale::Linear => self.linear(count),
            Scale::Logarithmic => self.logarithmic(count),
        }
    }

    fn linear(&self, count: f64) -> Vec<(f64, String)> {
        let rough = (self.to - self.from) / count;
        let power = 10f64.powf(rough.log10().floor());
        let step = power * [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| m * power >= rough).unwrap_or(10.0);
        let first = (self.from / step).ceil();
        // Multiples of the step instead of a running sum, so that rounding errors do not add up.
        (0..1000)
            .map(|i| (first + f64::from(i)) * step)
            .take_while(|&value| value <= self.to + 1e-9 * step)
            .map(|value| (value, number::label(value, step)))
            .collect()
    }

    fn logarithmic(&self, count: f64) -> Vec<(f64, String)> {
        let decades = self.to - self.from;
        // From dense to sparse, each with the smallest distance of two ticks in decades.
        let sets: [(&[f64], f64); 5] = [
            (&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 0.0457),
            (&[1.0, 1.5, 2.0, 3.0, 5.0, 7.0], 0.1249),
            (&[1.0, 2.0, 5.0], 0.301),
            (&[1.0, 3.0], 0.477),
            (&[1.0], 1.0),
        ];
        if decades <= 0.3 {
            // Over so short a range a logarithm is nearly a straight line.
            let (from, to) = (10f64.powf(self.from), 10f64.powf(self.to));
            return Self { scale: Scale::Linear, from, to, length: self.length, wanted: Vec::new() }
                .linear(count);
        }
        let apart = |&(_, gap): &(&[f64], f64)| gap / decades * count >= 0.8;
        let multiples = sets.into_iter().find(apart).map_or(&[1.0][..], |(multiples, _)| multiples);
        // Exponents of an f64 are between -324 and 308.
        let powers = (self.from.floor() as i32)..=(self.to.ceil() as i32);
        powers
            .flat_map(|power| multiples.iter().map(move |&multiple| (10f64.powi(power), multiple)))
            .map(|(decade, multiple)| {
                (multiple * decade, if multiple == 1.5 { decade / 2.0 } else { decade })
            })
            .filter(|(value, _)| (self.from..=self.to).contains(&value.log10()))
            .map(|(value, step)| (value, number::label(value, step)))
            .collect()
    }
}

/// Returns the smallest difference of two ticks, for their labels; 1 at most, and 1 if all are whole numbers.
fn steps(ticks: &[f64]) -> f64 {
    let gaps = ticks.windows(2).map(|pair| (pair[1] - pair[0]).abs()).filter(|gap| *gap > 0.0);
    let whole = ticks.iter().all(|tick| tick.fract() == 0.0);
    if whole { 1.0 } else { gaps.fold(f64::INFINITY, f64::min).min(1.0) }
}
