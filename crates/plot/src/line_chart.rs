//! Line charts.

use crate::axis::Axis;
use crate::canvas::{Canvas, Point};
use crate::frame::{Frame, margin};
use crate::legend::Entry;
use crate::{colour, legend};

/// Lines over two axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineChart {
    /// Title.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines. A line is drawn over the lines before it.
    pub lines: Vec<Line>,
}

/// Line of a [`LineChart`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Name in the legend. A line without a name is not in the legend.
    pub name: String,
    /// Points (x, y) from left to right. A point that is not finite leaves a gap.
    pub points: Vec<(f64, f64)>,
    /// Lower and upper end of a band around each point; empty for no band.
    pub band: Vec<(f64, f64)>,
    /// Number of the colour. Lines with the same number look the same.
    pub colour: usize,
    /// True if the line is dashed.
    pub dashed: bool,
    /// True if the points are marked.
    pub marked: bool,
}

impl Line {
    /// Returns a line without a band, in the first colour.
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, ..Self::default() }
    }

    /// Returns the same line in another colour.
    #[must_use]
    pub fn in_colour(self, colour: usize) -> Self {
        Self { colour, ..self }
    }

    fn dash(&self) -> &'static str {
        if self.dashed { "6 4" } else { colour::dash(self.colour) }
    }
}

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 380.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;

impl LineChart {
    /// Draws the chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let entries: Vec<Entry<'_>> = self
            .lines
            .iter()
            .filter(|line| !line.name.is_empty())
            .map(|line| Entry {
                name: &line.name,
                colour: colour::line(line.colour),
                dash: line.dash(),
                marked: line.marked,
            })
            .collect();
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let bands = self.lines.iter().flat_map(|line| &line.band).flat_map(|&(low, high)| [low, high]);
        let x = self.x.over(points().map(|point| point.0), WIDTH);
        let height = HEIGHT.max(legend::height(&entries));
        let y = self.y.over(points().map(|point| point.1).chain(bands), height);
        let frame = Frame { left: margin(&y), top: TOP, width: WIDTH, height };
        let legend_width = legend::width(&entries);
        let mut canvas = Canvas::new(frame.left + WIDTH + legend_width, TOP + height + BOTTOM);
        frame.title(&mut canvas, &self.title, WIDTH + legend_width - 8.0);
        frame.x_axis(&mut canvas, &x, &self.x.label);
        frame.y_axis(&mut canvas, &y, &self.y.label);
        let place = |(a, b): (f64, f64)| {
            // A given range may leave points outside.
            frame.point(x.at(a).clamp(0.0, WIDTH), y.at(b).clamp(0.0, height))
        };
        for line in &self.lines {
            let shown = |(a, b): (f64, f64)| self.x.takes(a) && self.y.takes(b);
            if !line.band.is_empty() {
                let ends = line.points.iter().zip(&line.band);
                let ends: Vec<_> = ends.map(|(&(at, _), &(low, high))| ((at, low), (at, high))).collect();
                let kept = ends.iter().filter(|(low, high)| shown(*low) && shown(*high));
                let upper = kept.clone().map(|(_, high)| place(*high));
                let lower = kept.rev().map(|(low, _)| place(*low));
                canvas.area(&upper.chain(lower).collect::<Vec<_>>(), colour::line(line.colour));
            }
            for part in line.points.split(|point| !shown(*point)).filter(|part| !part.is_empty()) {
                let part: Vec<_> = part.iter().map(|point| place(*point)).collect();
                let (colour, dash) = (colour::line(line.colour), line.dash());
                canvas.path(&part, colour, if line.name.is_empty() { 1.0 } else { 1.8 }, dash);
                if line.marked || part.len() == 1 {
                    part.iter().for_each(|point| canvas.dot(*point, 3.5, colour, "#ffffff"));
                }
            }
        }
        frame.border(&mut canvas);
        legend::draw(&mut canvas, Point { x: frame.left + WIDTH + 16.0, y: TOP }, &entries);
        canvas.finish()
    }
}
