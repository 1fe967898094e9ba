//! Writing SVG.

use std::fmt::Write as _;

use crate::font;

/// Where a text stands relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture in the making; coordinates are pixels from the upper left corner.
pub(crate) struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

/// Colour of texts and axes.
pub(crate) const INK: &str = "#222222";
/// Colour of what only helps the eye.
pub(crate) const FAINT: &str = "#dddddd";

impl Canvas {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    pub(crate) fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="{fill}"/>"#
        );
    }

    /// The same with a border and without filling.
    pub(crate) fn frame(&mut self, x: f64, y: f64, width: f64, height: f64) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="none" stroke="{INK}"/>"#
        );
    }

    /// A straight line; `dash` as in SVG's stroke-dasharray, empty for none.
    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64, dash: &str) {
        self.path(&[from, to], colour, width, dash);
    }

    /// A line through points.
    pub(crate) fn path(&mut self, points: &[(f64, f64)], colour: &str, width: f64, dash: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
        let dash = if dash.is_empty() { String::new() } else { format!(r#" stroke-dasharray="{dash}""#) };
        let _ = writeln!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"{dash}/>"#,
            points.join(" ")
        );
    }

    /// An area that shows what is below it.
    pub(crate) fn area(&mut self, points: &[(f64, f64)], colour: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
        let _ = writeln!(
            self.body,
            r#"<polygon points="{}" fill="{colour}" fill-opacity="0.18"/>"#,
            points.join(" ")
        );
    }

    pub(crate) fn dot(&mut self, (x, y): (f64, f64), radius: f64, fill: &str, stroke: &str) {
        let _ = writeln!(
            self.body,
            r#"<circle cx="{x:.2}" cy="{y:.2}" r="{radius}" fill="{fill}" stroke="{stroke}" stroke-width="1.3"/>"#
        );
    }

    pub(crate) fn text(&mut self, (x, y): (f64, f64), size: f64, anchor: Anchor, text: &str) {
        self.styled((x, y), size, anchor, INK, "", text);
    }

    /// Text that runs upwards.
    pub(crate) fn upright(&mut self, (x, y): (f64, f64), size: f64, anchor: Anchor, text: &str) {
        let turn = format!(r#" transform="rotate(-90 {x:.2} {y:.2})""#);
        self.styled((x, y), size, anchor, INK, &turn, text);
    }

    pub(crate) fn coloured(&mut self, at: (f64, f64), size: f64, anchor: Anchor, colour: &str, text: &str) {
        self.styled(at, size, anchor, colour, "", text);
    }

    fn styled(
        &mut self,
        (x, y): (f64, f64),
        size: f64,
        anchor: Anchor,
        colour: &str,
        more: &str,
        text: &str,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.2}" y="{y:.2}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{more}>{}</text>"#,
            escape(text)
        );
    }

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

/// Text as XML has it; control characters have no place there.
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
