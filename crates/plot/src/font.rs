//! The built-in font and the width of text in it.

use skrifa::instance::{LocationRef, Size};
use skrifa::{FontRef, MetadataProvider};

/// DejaVu Sans, reduced to Latin and Greek.
pub(crate) const FILE: &[u8] = include_bytes!("../font/DejaVuSans-subset.ttf");

/// Fonts that an SVG names. Programs without the first use the next, which has similar widths.
pub(crate) const FAMILY: &str = "DejaVu Sans, Verdana, sans-serif";

/// Width of a letter that is not in the font, as a share of the size.
const USUAL: f32 = 0.6;

/// Returns the width of a line of text in pixels.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    let size = size as f32;
    let Ok(font) = FontRef::new(FILE) else {
        return f64::from(size * USUAL) * text.chars().count() as f64;
    };
    let (letters, metrics) = (font.charmap(), font.glyph_metrics(Size::new(size), LocationRef::default()));
    let wide = |letter: char| {
        letters.map(letter).and_then(|glyph| metrics.advance_width(glyph)).unwrap_or(size * USUAL)
    };
    text.chars().map(|letter| f64::from(wide(letter))).sum()
}

/// Returns the text, cut with an ellipsis if it is wider than `most` pixels.
pub(crate) fn fitted(text: &str, size: f64, most: f64) -> String {
    if width(text, size) <= most {
        return text.to_owned();
    }
    let mut cut: String = text.to_owned();
    while !cut.is_empty() && width(&format!("{cut}…"), size) > most {
        cut.pop();
    }
    format!("{}…", cut.trim_end())
}
