//! PNG from SVG, with the built-in font.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};

use crate::{PlotError, font};

/// Maximum width and height in pixels.
const LARGEST: u32 = 16_384;

/// Renders an SVG as PNG, with `scale` pixels for each pixel of the SVG. A scale of 2 is sharp on most screens. A picture that would
/// have more than 16,384 pixels on a side gets as many.
///
/// # Errors
/// The text is not SVG, or the picture is empty.
pub fn png(svg: &str, scale: f32) -> Result<Vec<u8>, PlotError> {
    let mut fonts = Database::new();
    fonts.load_font_data(font::FILE.to_vec());
    let family = fonts.faces().next().and_then(|face| face.families.first()).map(|(name, _)| name.clone());
    let family = family.unwrap_or_default();
    fonts.set_sans_serif_family(family.clone());
    let options = Options { fontdb: Arc::new(fonts), font_family: family, ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|source| PlotError::Svg { source: Box::new(source) })?;
    let fits = LARGEST as f32 / tree.size().width().max(tree.size().height());
    let scale = if scale > fits { fits } else { scale };
    // `as` makes 0 of NaN, which is refused below. Rounding may add a pixel.
    let pixels = |length: f32| ((length * scale).ceil() as u32).min(LARGEST);
    let (width, height) = (pixels(tree.size().width()), pixels(tree.size().height()));
    let mut picture = Pixmap::new(width, height).ok_or(PlotError::Size { width, height })?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut picture.as_mut());
    picture.encode_png().map_err(|error| PlotError::Png { problem: error.to_string() })
}
