//! What every chart over two axes has: title, frame, ticks, grid, labels.

use crate::axis::Fitted;
use crate::canvas::{Anchor, Canvas, FAINT};
use crate::font;

pub(crate) const TITLE: f64 = 16.0;
pub(crate) const LABEL: f64 = 13.0;
pub(crate) const TICK: f64 = 12.0;

/// Where the plot lies in the picture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Frame {
    /// The picture's place of a point in the plot's pixels, counted from the lower left corner.
    pub(crate) fn point(&self, x: f64, y: f64) -> (f64, f64) {
        (self.left + x, self.top + self.height - y)
    }

    pub(crate) fn title(&self, canvas: &mut Canvas, title: &str, most: f64) {
        canvas.text((self.left, self.top - 16.0), TITLE, Anchor::Start, &font::fitted(title, TITLE, most));
    }

    /// The horizontal axis below the plot.
    pub(crate) fn x_axis(&self, canvas: &mut Canvas, axis: &Fitted, label: &str) {
        let (_, bottom) = self.point(0.0, 0.0);
        for (value, text) in axis.ticks(80.0) {
            let (x, _) = self.point(axis.at(value), 0.0);
            canvas.line((x, self.top), (x, bottom), FAINT, 1.0, "");
            canvas.text((x, bottom + 18.0), TICK, Anchor::Middle, &text);
        }
        canvas.text((self.left + self.width / 2.0, bottom + 40.0), LABEL, Anchor::Middle, label);
    }

    /// The vertical axis left of the plot, whose margin is `left` pixels wide.
    pub(crate) fn y_axis(&self, canvas: &mut Canvas, axis: &Fitted, label: &str) {
        for (value, text) in axis.ticks(48.0) {
            let (x, y) = self.point(0.0, axis.at(value));
            canvas.line((x, y), (x + self.width, y), FAINT, 1.0, "");
            canvas.text((x - 7.0, y + TICK * 0.36), TICK, Anchor::End, &text);
        }
        canvas.upright((20.0, self.top + self.height / 2.0), LABEL, Anchor::Middle, label);
    }

    pub(crate) fn border(&self, canvas: &mut Canvas) {
        canvas.frame(self.left, self.top, self.width, self.height);
    }
}

/// Pixels that the labels of a vertical axis need.
pub(crate) fn margin(axis: &Fitted) -> f64 {
    let widest = axis.ticks(48.0).iter().map(|(_, text)| font::width(text, TICK)).fold(0.0, f64::max);
    44.0 + widest
}
