//! Errors of rendering a chart.

use thiserror::Error;

/// Error of rendering a chart as PNG.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The text is not SVG.
    #[error("the chart can't be rendered: it is not SVG")]
    Svg {
        /// The cause.
        #[source]
        source: Box<resvg::usvg::Error>,
    },
    /// The picture would be empty.
    #[error("a picture of {width} × {height} pixels is empty: choose another scale")]
    Size {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The picture can't be written as PNG.
    #[error("the picture can't be written as PNG: {problem}")]
    Png {
        /// The problem.
        problem: String,
    },
}
