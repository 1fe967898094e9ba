//! What can go wrong when a chart is rendered.

use thiserror::Error;

/// Why there is no picture.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The text is no SVG.
    #[error("a chart can't be rendered: it is no SVG")]
    Svg {
        /// What is wrong.
        #[source]
        source: Box<resvg::usvg::Error>,
    },
    /// The picture would be empty or too large.
    #[error("a picture of {width} × {height} pixels can't be made: choose another scale")]
    Size {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
    },
    /// The picture can't be written as PNG.
    #[error("a picture can't be written as PNG: {problem}")]
    Png {
        /// What is wrong.
        problem: String,
    },
}
