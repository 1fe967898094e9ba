//! A chart and its files.

use std::path::{Path, PathBuf};

use dipaco_plot::{BarChart, DotChart, HeatMap, LineChart, png};

use crate::error::PipelineError;
use crate::files;

/// Pixels of the PNG per pixel of the SVG: sharp on most screens.
const SCALE: f32 = 2.0;

/// A chart.
pub struct Chart {
    /// Name of its files, without ending.
    pub name: String,
    /// The picture.
    pub svg: String,
}

impl Chart {
    /// A line chart.
    pub fn lines(name: impl Into<String>, chart: &LineChart) -> Self {
        Self { name: name.into(), svg: chart.svg() }
    }

    /// A bar chart.
    pub fn bars(name: impl Into<String>, chart: &BarChart) -> Self {
        Self { name: name.into(), svg: chart.svg() }
    }

    /// A heat map.
    pub fn heat(name: impl Into<String>, chart: &HeatMap) -> Self {
        Self { name: name.into(), svg: chart.svg() }
    }

    /// A dot chart.
    pub fn dots(name: impl Into<String>, chart: &DotChart) -> Self {
        Self { name: name.into(), svg: chart.svg() }
    }

    /// Writes NAME.svg and NAME.png into a folder. Returns the name of the PNG.
    ///
    /// # Errors
    /// [`PipelineError::Io`] when a file can't be written, [`PipelineError::Plot`] when the picture can't be drawn.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, PipelineError> {
        let picture = folder.join(format!("{}.png", self.name));
        files::write(&folder.join(format!("{}.svg", self.name)), self.svg.as_bytes())?;
        files::write(&picture, &png(&self.svg, SCALE)?)?;
        Ok(picture)
    }
}

/// The parts of a name that are not empty.
pub(super) fn joined(parts: &[&str]) -> String {
    parts.iter().copied().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

/// A name in the letters that file names may have.
pub(super) fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}
