//! PNG from SVG, with the built-in font.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};

use crate::{PlotError, font};

/// Maximum width and height in pixels.
const LARGEST: u32 = 16_384;

/// Renders an SVG as PNG, with `scale` pixels for each pixel of the SVG. A scale of 2 is sharp on most screens.
///
/// # Errors
/// The text is not SVG, or the picture is empty or too large.
pub fn png(svg: &str, scale: f32) -> Result<Vec<u8>, PlotError> {
    let mut fonts = Database::new();
    fonts.load_font_data(font::FILE.to_vec());
    let family = fonts.faces().next().and_then(|face| face.families.first()).map(|(name, _)| name.clone());
    let family = family.unwrap_or_default();
    fonts.set_sans_serif_family(family.clone());
    let options = Options { fontdb: Arc::new(fonts), font_family: family, ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|source| PlotError::Svg { source: Box::new(source) })?;
    // `as` saturates: a float that is too large or NaN becomes a size that is refused below.
    let pixels = |length: f32| (length * scale).ceil() as u32;
    let (width, height) = (pixels(tree.size().width()), pixels(tree.size().height()));
    if width.max(height) > LARGEST {
        return Err(PlotError::Size { width, height });
    }
    let mut picture = Pixmap::new(width, height).ok_or(PlotError::Size { width, height })?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut picture.as_mut());
    picture.encode_png().map_err(|error| PlotError::Png { problem: error.to_string() })
}
