//! Bars side by side: sizes of many things of one kind.

use crate::axis::Axis;
use crate::canvas::{Anchor, Canvas, INK};
use crate::frame::{Frame, TICK, margin};
use crate::{colour, number};

/// Bars from 0 upwards, with the mean as a line across.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarChart {
    /// What it shows.
    pub title: String,
    /// What the bars are.
    pub x: String,
    /// Quantity and unit of their heights.
    pub y: String,
    /// Label and height of each; values that are not finite are shown as 0.
    pub bars: Vec<(String, f64)>,
}

const WIDTH: f64 = 700.0;
const HEIGHT: f64 = 340.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
/// Pixels between two labels.
const APART: f64 = 34.0;

impl BarChart {
    /// The picture as SVG.
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
        // A label for every bar, or for as many as have room.
        let every = (APART / step).ceil().max(1.0);
        for (index, ((label, _), height)) in self.bars.iter().zip(&heights).enumerate() {
            let left = index as f64 * step;
            let (x, top) = frame.point(left + step * 0.1, y.at(*height));
            canvas.rectangle(x, top, step * 0.8, y.at(*height), colour::line(0));
            if index as f64 % every == 0.0 {
                let (x, bottom) = frame.point(left + step / 2.0, 0.0);
                canvas.text((x, bottom + 18.0), TICK, Anchor::Middle, label);
            }
        }
        let (left, level) = frame.point(0.0, y.at(mean));
        canvas.line((left, level), (left + WIDTH, level), INK, 1.2, "5 4");
        canvas.text((left + WIDTH + 8.0, level + TICK * 0.36), TICK, Anchor::Start, &mean_label);
        frame.border(&mut canvas);
        let (_, bottom) = frame.point(0.0, 0.0);
        canvas.text((frame.left + WIDTH / 2.0, bottom + 40.0), crate::frame::LABEL, Anchor::Middle, &self.x);
        canvas.finish()
    }
}
