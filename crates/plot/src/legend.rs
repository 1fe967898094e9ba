//! The legend: the names of the lines, to the right of the plot.

use crate::canvas::{Anchor, Canvas, Point};
use crate::font;
use crate::frame::TICK;

/// Maximum width of a name in pixels.
const WIDEST: f64 = 260.0;
const SWATCH: f64 = 26.0;
const HEIGHT: f64 = 20.0;

/// Line of a legend.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    pub(crate) colour: &'a str,
    pub(crate) dash: &'a str,
    pub(crate) marked: bool,
}

/// Returns the width of a legend in pixels, with its margins. Without names only the margin remains.
pub(crate) fn width(entries: &[Entry<'_>]) -> f64 {
    let widest = entries.iter().map(|entry| font::width(entry.name, TICK).min(WIDEST)).fold(0.0, f64::max);
    if entries.is_empty() { 16.0 } else { widest + SWATCH + 34.0 }
}

/// Returns the height of a legend in pixels.
pub(crate) fn height(entries: &[Entry<'_>]) -> f64 {
    HEIGHT * entries.len() as f64
}

/// Draws a legend with its upper left corner at `corner`.
pub(crate) fn draw(canvas: &mut Canvas, corner: Point, entries: &[Entry<'_>]) {
    let Point { x, y } = corner;
    for (index, entry) in entries.iter().enumerate() {
        let middle = y + HEIGHT * (index as f64 + 0.5);
        canvas.line(
            Point { x, y: middle },
            Point { x: x + SWATCH, y: middle },
            entry.colour,
            2.2,
            entry.dash,
        );
        if entry.marked {
            canvas.dot(Point { x: x + SWATCH / 2.0, y: middle }, 3.5, entry.colour, "#ffffff");
        }
        let name = font::fitted(entry.name, TICK, WIDEST);
        let at = Point { x: x + SWATCH + 8.0, y: middle + TICK * 0.36 };
        canvas.text(at, TICK, Anchor::Start, &name);
    }
}
