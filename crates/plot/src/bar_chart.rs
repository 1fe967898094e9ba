//! Bar charts: one quantity of many things.

use crate::axis::Axis;
use crate::canvas::{Anchor, Canvas, INK, Point};
use crate::frame::{Frame, LABEL, TICK, margin};
use crate::{colour, number};

/// Bars from 0 upwards, with a line at their mean.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarChart {
    /// Title.
    pub title: String,
    /// Label of the horizontal axis.
    pub x: String,
    /// Quantity and unit of the heights.
    pub y: String,
    /// Label and height of each bar. A height that is not finite is shown as 0.
    pub bars: Vec<(String, f64)>,
}

const WIDTH: f64 = 700.0;
const HEIGHT: f64 = 340.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
/// Minimum distance of two labels in pixels.
const APART: f64 = 34.0;

impl BarChart {
    /// Draws the chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let heights: Vec<f64> = self
            .bars
            .iter()
            .map(|(_, height)| if height.is_finite() { height.max(0.0) } else { 0.0 })
            .collect();
        let count = heights.len().max(1) as f64;
        let mean = heights.iter().sum::<f64>() / count;
        let y = Axis::linear(&*self.y).over(heights.iter().copied().chain([0.0]), HEIGHT);
        let frame = Frame { left: margin(&y), top: TOP, width: WIDTH, height: HEIGHT };
        let mean_label = format!("mean {}", number::label(mean, mean / 100.0));
        let right = crate::font::width(&mean_label, TICK) + 20.0;
        let mut canvas = Canvas::new(frame.left + WIDTH + right, TOP + HEIGHT + BOTTOM);
        frame.title(&mut canvas, &self.title, WIDTH);
        frame.y_axis(&mut canvas, &y, &self.y);
        let step = WIDTH / count;
        // Every bar has a label, or only every n-th bar if there is too little room.
        let every = (APART / step).ceil().max(1.0);
        for (index, ((label, _), height)) in self.bars.iter().zip(&heights).enumerate() {
            let left = index as f64 * step;
            let corner = frame.point(left + step * 0.1, y.at(*height));
            canvas.rectangle(corner, step * 0.8, y.at(*height), colour::line(0));
            if index as f64 % every == 0.0 {
                let at = frame.point(left + step / 2.0, 0.0).plus(0.0, 18.0);
                canvas.text(at, TICK, Anchor::Middle, label);
            }
        }
        let start = frame.point(0.0, y.at(mean));
        canvas.line(start, start.plus(WIDTH, 0.0), INK, 1.2, "5 4");
        canvas.text(start.plus(WIDTH + 8.0, TICK * 0.36), TICK, Anchor::Start, &mean_label);
        frame.border(&mut canvas);
        let at = Point { x: frame.left + WIDTH / 2.0, y: frame.point(0.0, 0.0).y + 40.0 };
        canvas.text(at, LABEL, Anchor::Middle, &self.x);
        canvas.finish()
    }
}
