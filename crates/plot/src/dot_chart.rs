//! Dot charts: a few measurements of each of many things, of one kind or of several kinds.

use crate::axis::{Axis, Fitted};
use crate::canvas::{Anchor, Canvas, FAINT, Point};
use crate::colour;
use crate::font;
use crate::frame::{Frame, TICK, TITLE};
use crate::legend::{self, Entry};

/// A column of labels on the left, and the measurements of each on a common axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DotChart {
    /// Title.
    pub title: String,
    /// Axis of the measurements.
    pub x: Axis,
    /// Rows from top to bottom.
    pub rows: Vec<DotRow>,
    /// Names of the colours from number 0 on, for a legend; may be empty.
    pub names: Vec<String>,
}

/// Row of a [`DotChart`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DotRow {
    /// Name of the measured thing.
    pub label: String,
    /// Its marks. The number of a single mark is written beside it.
    pub marks: Vec<DotMark>,
}

/// Measurements of one kind in a [`DotRow`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DotMark {
    /// Measurements, for example one per seed. Values that are not finite are left out.
    pub values: Vec<f64>,
    /// Number of the colour.
    pub colour: usize,
}

const WIDTH: f64 = 520.0;
/// Minimum height of a row in pixels.
const ROW: f64 = 28.0;
/// Distance of two marks of a row in pixels.
const APART: f64 = 9.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
/// Maximum width of a label in pixels.
const LABELS: f64 = 560.0;

impl DotChart {
    /// Draws the chart as SVG. Small circles are the measurements, the bar spans them, and the filled dot is their
    /// mean.
    #[must_use]
    pub fn svg(&self) -> String {
        let widest = self.rows.iter().map(|row| font::width(&row.label, TICK)).fold(0.0, f64::max);
        let most = self.rows.iter().map(|row| row.marks.len()).max().unwrap_or(0);
        let tall = ROW.max(APART * (most + 1) as f64);
        let height = tall * self.rows.len().max(1) as f64;
        let left = widest.min(LABELS) + 24.0;
        let frame = Frame { left, top: TOP, width: WIDTH, height };
        let values = self.rows.iter().flat_map(|row| &row.marks).flat_map(|mark| mark.values.iter().copied());
        let x = self.x.over(values, WIDTH);
        let named: Vec<Entry<'_>> = self
            .names
            .iter()
            .enumerate()
            .map(|(number, name)| Entry { name, colour: colour::line(number), dash: "", marked: true })
            .collect();
        let right = if named.is_empty() { 84.0 } else { legend::width(&named) };
        let inner = height.max(legend::height(&named));
        let mut canvas = Canvas::new(left + WIDTH + right, TOP + inner + BOTTOM);
        let title = font::fitted(&self.title, TITLE, left + WIDTH);
        canvas.text(Point { x: 12.0, y: TOP - 16.0 }, TITLE, Anchor::Start, &title);
        frame.x_axis(&mut canvas, &x, &self.x.label);
        for (index, row) in self.rows.iter().enumerate() {
            let level = height - tall * (index as f64 + 0.5);
            let edge = frame.point(0.0, level);
            canvas.line(edge, edge.plus(WIDTH, 0.0), FAINT, 1.0, "2 3");
            let label = font::fitted(&row.label, TICK, LABELS);
            canvas.text(edge.plus(-8.0, TICK * 0.36), TICK, Anchor::End, &label);
            let middle = row.marks.len().saturating_sub(1) as f64 / 2.0;
            for (number, mark) in row.marks.iter().enumerate() {
                let level = level + APART * (middle - number as f64);
                self.draw_mark(&mut canvas, frame, &x, mark, Place { level, alone: row.marks.len() == 1 });
            }
        }
        frame.border(&mut canvas);
        legend::draw(&mut canvas, Point { x: left + WIDTH + 16.0, y: TOP }, &named);
        canvas.finish()
    }

    fn draw_mark(&self, canvas: &mut Canvas, frame: Frame, x: &Fitted, mark: &DotMark, place: Place) {
        let Place { level, alone } = place;
        let shown: Vec<f64> = mark.values.iter().copied().filter(|value| self.x.takes(*value)).collect();
        let Some(first) = shown.first() else { return };
        let (low, high) =
            shown.iter().fold((*first, *first), |(low, high), value| (low.min(*value), high.max(*value)));
        let mean = shown.iter().sum::<f64>() / shown.len() as f64;
        let at = |value: f64| frame.point(x.at(value).clamp(0.0, WIDTH), level);
        let colour = colour::line(mark.colour);
        canvas.line(at(low), at(high), colour, 2.0, "");
        if shown.len() > 1 {
            shown.iter().for_each(|value| canvas.dot(at(*value), 3.0, "#ffffff", colour));
        }
        canvas.dot(at(mean), if alone { 5.0 } else { 4.0 }, colour, "#ffffff");
        if alone {
            let text = match mean.abs() {
                1000.0.. => format!("{mean:.0}"),
                1.0.. => format!("{mean:.2}"),
                _ => format!("{mean:.3}"),
            };
            let at = frame.point(WIDTH + 8.0, level).plus(0.0, TICK * 0.36);
            canvas.text(at, TICK, Anchor::Start, &text);
        }
    }
}

/// The place of a mark.
#[derive(Clone, Copy)]
struct Place {
    /// Height above the lower edge of the plot in pixels.
    level: f64,
    /// True for the only mark of its row.
    alone: bool,
}
