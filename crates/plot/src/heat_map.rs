//! A table of numbers as colours.

use crate::canvas::{Anchor, Canvas};
use crate::frame::{LABEL, TICK, TITLE};
use crate::{colour, font, number};

/// A table of numbers as colours, with their scale beside it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatMap {
    /// What it shows.
    pub title: String,
    /// What the columns are.
    pub x: String,
    /// What the rows are.
    pub y: String,
    /// Quantity and unit of the values.
    pub value: String,
    /// Labels of the columns.
    pub columns: Vec<String>,
    /// Labels of the rows with their values, from top to bottom; a value that is missing or not finite stays white.
    pub rows: Vec<(String, Vec<f64>)>,
    /// The ends of the scale; those of the values when they are not given.
    pub range: Option<(f64, f64)>,
}

/// Pixels that the columns together may take.
const WIDTH: f64 = 760.0;
/// From this width on a cell shows its number.
const WRITTEN: f64 = 32.0;
const TOP: f64 = 50.0;
/// The most pixels of a row's label.
const LABELS: f64 = 220.0;

impl HeatMap {
    /// The picture as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let columns = self.columns.len().max(1);
        let cell = (WIDTH / columns as f64).clamp(3.0, 44.0);
        let tall = cell.clamp(18.0, 30.0);
        let widest = self.rows.iter().map(|(label, _)| font::width(label, TICK)).fold(0.0, f64::max);
        let left = widest.min(LABELS) + 44.0;
        let (width, height) = (cell * columns as f64, tall * self.rows.len().max(1) as f64);
        let (low, high) = self.ends();
        let share = |value: f64| if high > low { (value - low) / (high - low) } else { 0.5 };
        let mut canvas = Canvas::new((left + width + 110.0).max(420.0), TOP + height + 62.0);
        let title = font::fitted(&self.title, TITLE, (left + width + 90.0).max(400.0));
        canvas.text((12.0, TOP - 22.0), TITLE, Anchor::Start, &title);
        for (index, (label, values)) in self.rows.iter().enumerate() {
            let y = TOP + tall * index as f64;
            let name = font::fitted(label, TICK, LABELS);
            canvas.text((left - 8.0, y + tall / 2.0 + TICK * 0.36), TICK, Anchor::End, &name);
            for (column, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
                let x = left + cell * column as f64;
                // A little wider, so that no white lines remain between cells.
                canvas.rectangle(x, y, cell + 0.3, tall + 0.3, &colour::shade(share(*value)));
                if cell >= WRITTEN {
                    let text = number::label(*value, (high - low) / 100.0);
                    let at = (x + cell / 2.0, y + tall / 2.0 + 3.5);
                    canvas.coloured(at, 10.0, Anchor::Middle, colour::on_shade(share(*value)), &text);
                }
            }
        }
        let every = (26.0 / cell).ceil().max(1.0);
        for (index, label) in self.columns.iter().enumerate().filter(|(i, _)| *i as f64 % every == 0.0) {
            let x = left + cell * (index as f64 + 0.5);
            canvas.text((x, TOP + height + 16.0), TICK, Anchor::Middle, label);
        }
        canvas.frame(left, TOP, width, height);
        canvas.text((left + width / 2.0, TOP + height + 38.0), LABEL, Anchor::Middle, &self.x);
        canvas.upright((20.0, TOP + height / 2.0), LABEL, Anchor::Middle, &self.y);
        self.scale(&mut canvas, left + width + 20.0, height, (low, high));
        canvas.finish()
    }

    /// The scale of the colours, `height` pixels high at most.
    fn scale(&self, canvas: &mut Canvas, x: f64, height: f64, (low, high): (f64, f64)) {
        const PARTS: u32 = 64;
        let height = height.clamp(60.0, 320.0);
        for part in 0..PARTS {
            let share = f64::from(part) / f64::from(PARTS - 1);
            let y = TOP + height * (1.0 - f64::from(part + 1) / f64::from(PARTS));
            canvas.rectangle(x, y, 16.0, height / f64::from(PARTS) + 0.3, &colour::shade(share));
        }
        canvas.frame(x, TOP, 16.0, height);
        for (value, y) in [(low, TOP + height), (f64::midpoint(low, high), TOP + height / 2.0), (high, TOP)] {
            let text = number::label(value, (high - low) / 100.0);
            canvas.text((x + 21.0, y + TICK * 0.36), TICK, Anchor::Start, &text);
        }
        canvas.upright((x + 74.0, TOP + height / 2.0), TICK, Anchor::Middle, &self.value);
    }

    fn ends(&self) -> (f64, f64) {
        let values = self.rows.iter().flat_map(|(_, values)| values).filter(|value| value.is_finite());
        let found = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &value| {
            (low.min(value), high.max(value))
        });
        let found = if found.0 <= found.1 { found } else { (0.0, 1.0) };
        self.range.unwrap_or(found)
    }
}
