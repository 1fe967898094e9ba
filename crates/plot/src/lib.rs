//! Charts from numbers, as SVG and PNG.
//!
//! Each chart is a plain value, and its `svg` method draws it. [`png`] renders the SVG with a built-in font. Values
//! that are not finite are left out. This package reads and writes no files and has no notion of a run.
//!
//! ```
//! use dipaco_plot::{Axis, Line, LineChart, png};
//!
//! let chart = LineChart {
//!     title: "Loss".into(),
//!     x: Axis::linear("inner steps"),
//!     y: Axis::linear("nats per token"),
//!     lines: vec![Line::new("training", vec![(1.0, 7.2), (2.0, 6.1)])],
//! };
//! let svg = chart.svg();
//! assert!(svg.starts_with("<svg"));
//! assert!(!png(&svg, 1.0)?.is_empty());
//! # Ok::<(), dipaco_plot::PlotError>(())
//! ```

#![forbid(unsafe_code)]

mod axis;
mod bar_chart;
mod canvas;
mod colour;
mod dot_chart;
mod error;
mod font;
mod frame;
mod heat_map;
mod legend;
mod line_chart;
mod number;
mod png;

pub use axis::{Axis, Scale};
pub use bar_chart::BarChart;
pub use dot_chart::{DotChart, DotMark, DotRow};
pub use error::PlotError;
pub use heat_map::HeatMap;
pub use line_chart::{Line, LineChart};
pub use png::png;

#[cfg(test)]
mod tests;
