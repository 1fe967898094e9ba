//! Common parts of all charts over two axes: title, border, ticks, grid, labels.

use crate::axis::Fitted;
use crate::canvas::{Anchor, Canvas, FAINT, Point};
use crate::font;

/// Font sizes in pixels.
pub(crate) const TITLE: f64 = 16.0;
pub(crate) const LABEL: f64 = 13.0;
pub(crate) const TICK: f64 = 12.0;

/// Place of the plot in the picture, in pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Frame {
    /// Returns the place in the picture of a point of the plot, whose pixels count from the lower left corner.
    pub(crate) fn point(&self, x: f64, y: f64) -> Point {
        Point { x: self.left + x, y: self.top + self.height - y }
    }

    /// Draws the title above the plot, at most `most` pixels wide.
    pub(crate) fn title(&self, canvas: &mut Canvas, title: &str, most: f64) {
        let at = Point { x: self.left, y: self.top - 16.0 };
        canvas.text(at, TITLE, Anchor::Start, &font::fitted(title, TITLE, most));
    }

    /// Draws the horizontal axis below the plot.
    pub(crate) fn x_axis(&self, canvas: &mut Canvas, axis: &Fitted, label: &str) {
        let bottom = self.point(0.0, 0.0).y;
        for (value, text) in axis.ticks(80.0) {
            let x = self.point(axis.at(value), 0.0).x;
            canvas.line(Point { x, y: self.top }, Point { x, y: bottom }, FAINT, 1.0, "");
            canvas.text(Point { x, y: bottom + 18.0 }, TICK, Anchor::Middle, &text);
        }
        let at = Point { x: self.left + self.width / 2.0, y: bottom + 40.0 };
        canvas.text(at, LABEL, Anchor::Middle, label);
    }

    /// Draws the vertical axis to the left of the plot.
    pub(crate) fn y_axis(&self, canvas: &mut Canvas, axis: &Fitted, label: &str) {
        for (value, text) in axis.ticks(48.0) {
            let start = self.point(0.0, axis.at(value));
            canvas.line(start, start.plus(self.width, 0.0), FAINT, 1.0, "");
            canvas.text(start.plus(-7.0, TICK * 0.36), TICK, Anchor::End, &text);
        }
        let at = Point { x: 20.0, y: self.top + self.height / 2.0 };
        canvas.upright(at, LABEL, Anchor::Middle, label);
    }

    /// Draws the border of the plot.
    pub(crate) fn border(&self, canvas: &mut Canvas) {
        canvas.frame(Point { x: self.left, y: self.top }, self.width, self.height);
    }
}

/// Returns the margin for the labels of a vertical axis, in pixels.
pub(crate) fn margin(axis: &Fitted) -> f64 {
    let widest = axis.ticks(48.0).iter().map(|(_, text)| font::width(text, TICK)).fold(0.0, f64::max);
    44.0 + widest
}
