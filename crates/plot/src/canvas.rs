//! An SVG writer.

use std::fmt::Write as _;

use crate::font;

/// Point of the picture: pixels from the upper left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

impl Point {
    /// Returns the point `right` pixels to the right and `down` pixels down.
    pub(crate) fn plus(self, right: f64, down: f64) -> Self {
        Self { x: self.x + right, y: self.y + down }
    }
}

/// Place of a text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// SVG under construction.
pub(crate) struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

/// Colour of texts and axes.
pub(crate) const INK: &str = "#222222";
/// Colour of grid lines.
pub(crate) const FAINT: &str = "#dddddd";

impl Canvas {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    /// Draws a filled rectangle with its upper left corner at `corner`.
    pub(crate) fn rectangle(&mut self, corner: Point, width: f64, height: f64, fill: &str) {
        let Point { x, y } = corner;
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="{fill}"/>"#
        );
    }

    /// Draws the border of a rectangle.
    pub(crate) fn frame(&mut self, corner: Point, width: f64, height: f64) {
        let Point { x, y } = corner;
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="none" stroke="{INK}"/>"#
        );
    }

    /// Draws a straight line. `dash` is SVG's stroke-dasharray; empty for a solid line.
    pub(crate) fn line(&mut self, from: Point, to: Point, colour: &str, width: f64, dash: &str) {
        self.path(&[from, to], colour, width, dash);
    }

    /// Draws a line through points.
    pub(crate) fn path(&mut self, points: &[Point], colour: &str, width: f64, dash: &str) {
        let dash = if dash.is_empty() { String::new() } else { format!(r#" stroke-dasharray="{dash}""#) };
        let _ = writeln!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"{dash}/>"#,
            list(points)
        );
    }

    /// Draws a translucent area.
    pub(crate) fn area(&mut self, points: &[Point], colour: &str) {
        let _ = writeln!(
            self.body,
            r#"<polygon points="{}" fill="{colour}" fill-opacity="0.18"/>"#,
            list(points)
        );
    }

    /// Draws a circle.
    pub(crate) fn dot(&mut self, centre: Point, radius: f64, fill: &str, stroke: &str) {
        let Point { x, y } = centre;
        let _ = writeln!(
            self.body,
            r#"<circle cx="{x:.2}" cy="{y:.2}" r="{radius}" fill="{fill}" stroke="{stroke}" stroke-width="1.3"/>"#
        );
    }

    /// Draws text in the usual colour.
    pub(crate) fn text(&mut self, at: Point, size: f64, anchor: Anchor, text: &str) {
        self.coloured(at, size, anchor, INK, text);
    }

    /// Draws text in a colour.
    pub(crate) fn coloured(&mut self, at: Point, size: f64, anchor: Anchor, colour: &str, text: &str) {
        let fill = format!(r#"fill="{colour}""#);
        self.element(at, size, anchor, &fill, text);
    }

    /// Draws text that runs upwards.
    pub(crate) fn upright(&mut self, at: Point, size: f64, anchor: Anchor, text: &str) {
        let Point { x, y } = at;
        let fill = format!(r#"fill="{INK}" transform="rotate(-90 {x:.2} {y:.2})""#);
        self.element(at, size, anchor, &fill, text);
    }

    /// Writes a text element with more attributes.
    fn element(&mut self, at: Point, size: f64, anchor: Anchor, attributes: &str, text: &str) {
        let Point { x, y } = at;
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.2}" y="{y:.2}" font-size="{size}" text-anchor="{anchor}" {attributes}>{}</text>"#,
            escape(text)
        );
    }

    /// Returns the SVG.
    pub(crate) fn finish(self) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"{}\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n",
            font::FAMILY
        )
    }
}

/// Returns points as SVG lists them.
fn list(points: &[Point]) -> String {
    points.iter().map(|Point { x, y }| format!("{x:.2},{y:.2}")).collect::<Vec<_>>().join(" ")
}

/// Escapes text for XML. XML allows no control characters, so they become spaces.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}
