//! Heat maps: a table of numbers as colours.

use crate::canvas::{Anchor, Canvas, Point};
use crate::frame::{LABEL, TICK, TITLE};
use crate::{colour, font, number};

/// A table of numbers as colours, with a scale of the colours beside it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatMap {
    /// Title.
    pub title: String,
    /// Label of the columns.
    pub x: String,
    /// Label of the rows.
    pub y: String,
    /// Quantity and unit of the values.
    pub value: String,
    /// Label of each column.
    pub columns: Vec<String>,
    /// Label and values of each row, from top to bottom. A value that is missing or not finite stays white.
    pub rows: Vec<(String, Vec<f64>)>,
    /// Ends of the scale; without them the smallest and the largest value.
    pub range: Option<(f64, f64)>,
}

/// Maximum width of all columns together in pixels.
const WIDTH: f64 = 760.0;
/// Minimum width in pixels of a cell with its number.
const WRITTEN: f64 = 32.0;
const TOP: f64 = 50.0;
/// Maximum width of the label of a row in pixels.
const LABELS: f64 = 220.0;

/// Ends of the scale.
#[derive(Clone, Copy)]
struct Ends {
    low: f64,
    high: f64,
}

impl Ends {
    /// Returns the place of a value on the scale, from 0 to 1.
    fn share(self, value: f64) -> f64 {
        if self.high > self.low { (value - self.low) / (self.high - self.low) } else { 0.5 }
    }

    /// Returns the label of a value, precise to a hundredth of the scale.
    fn label(self, value: f64) -> String {
        number::label(value, (self.high - self.low) / 100.0)
    }
}

impl HeatMap {
    /// Draws the chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let columns = self.columns.len().max(1);
        let cell = (WIDTH / columns as f64).clamp(3.0, 44.0);
        let tall = cell.clamp(18.0, 30.0);
        let widest = self.rows.iter().map(|(label, _)| font::width(label, TICK)).fold(0.0, f64::max);
        let left = widest.min(LABELS) + 44.0;
        let (width, height) = (cell * columns as f64, tall * self.rows.len().max(1) as f64);
        let ends = self.ends();
        let mut canvas = Canvas::new((left + width + 110.0).max(420.0), TOP + height + 62.0);
        let title = font::fitted(&self.title, TITLE, (left + width + 90.0).max(400.0));
        canvas.text(Point { x: 12.0, y: TOP - 22.0 }, TITLE, Anchor::Start, &title);
        for (index, (label, values)) in self.rows.iter().enumerate() {
            let y = TOP + tall * index as f64;
            let name = font::fitted(label, TICK, LABELS);
            let at = Point { x: left - 8.0, y: y + tall / 2.0 + TICK * 0.36 };
            canvas.text(at, TICK, Anchor::End, &name);
            for (column, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
                let corner = Point { x: left + cell * column as f64, y };
                let share = ends.share(*value);
                // A little wider than the cell, so that no white lines remain between cells.
                canvas.rectangle(corner, cell + 0.3, tall + 0.3, &colour::shade(share));
                if cell >= WRITTEN {
                    let at = corner.plus(cell / 2.0, tall / 2.0 + 3.5);
                    let colour = colour::on_shade(share);
                    canvas.coloured(at, 10.0, Anchor::Middle, colour, &ends.label(*value));
                }
            }
        }
        let every = (26.0 / cell).ceil().max(1.0);
        for (index, label) in self.columns.iter().enumerate().filter(|(i, _)| *i as f64 % every == 0.0) {
            let at = Point { x: left + cell * (index as f64 + 0.5), y: TOP + height + 16.0 };
            canvas.text(at, TICK, Anchor::Middle, label);
        }
        let corner = Point { x: left, y: TOP };
        canvas.frame(corner, width, height);
        canvas.text(corner.plus(width / 2.0, height + 38.0), LABEL, Anchor::Middle, &self.x);
        canvas.upright(Point { x: 20.0, y: TOP + height / 2.0 }, LABEL, Anchor::Middle, &self.y);
        self.scale(&mut canvas, left + width + 20.0, height, ends);
        canvas.finish()
    }

    /// Draws the scale of the colours at `x`, at most `height` pixels high.
    fn scale(&self, canvas: &mut Canvas, x: f64, height: f64, ends: Ends) {
        const PARTS: u32 = 64;
        let height = height.clamp(60.0, 320.0);
        for part in 0..PARTS {
            let share = f64::from(part) / f64::from(PARTS - 1);
            let y = TOP + height * (1.0 - f64::from(part + 1) / f64::from(PARTS));
            canvas.rectangle(Point { x, y }, 16.0, height / f64::from(PARTS) + 0.3, &colour::shade(share));
        }
        let corner = Point { x, y: TOP };
        canvas.frame(corner, 16.0, height);
        let middle = f64::midpoint(ends.low, ends.high);
        for (value, y) in [(ends.low, height), (middle, height / 2.0), (ends.high, 0.0)] {
            let at = corner.plus(21.0, y + TICK * 0.36);
            canvas.text(at, TICK, Anchor::Start, &ends.label(value));
        }
        canvas.upright(corner.plus(74.0, height / 2.0), TICK, Anchor::Middle, &self.value);
    }

    fn ends(&self) -> Ends {
        let values = self.rows.iter().flat_map(|(_, values)| values).filter(|value| value.is_finite());
        let found = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &value| {
            (low.min(value), high.max(value))
        });
        let found = if found.0 <= found.1 { found } else { (0.0, 1.0) };
        let (low, high) = self.range.unwrap_or(found);
        Ends { low, high }
    }
}
