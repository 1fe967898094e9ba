//! The font that is built in, and how wide text is in it.

use skrifa::instance::{LocationRef, Size};
use skrifa::{FontRef, MetadataProvider};

/// DejaVu Sans, cut down to Latin and Greek.
pub(crate) const FILE: &[u8] = include_bytes!("../font/DejaVuSans-subset.ttf");

/// What an SVG names; programs without it take one of the same widths.
pub(crate) const FAMILY: &str = "DejaVu Sans, Verdana, sans-serif";

/// Share of the size that a letter takes which the font does not have.
const USUAL: f32 = 0.6;

/// The width of a line of text in pixels.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    #[allow(clippy::cast_possible_truncation)]
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

/// Text that fits into a width, cut with an ellipsis when it is longer.
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
