//! Charts of runs and of experiments.

mod domains;
mod experiment;
mod run;
mod told;

use std::path::{Path, PathBuf};

use dipaco_plot::{BarChart, DotChart, HeatMap, LineChart, png};

pub(crate) use self::domains::domains;
pub(crate) use self::experiment::of_results;
pub(crate) use self::run::of_runs;
pub(crate) use self::told::Told;
use crate::steps::error::StepError;
use crate::steps::files;

/// Pixels of a PNG for each of its SVG: sharp on most screens.
const SCALE: f32 = 2.0;

/// A picture and what its files are called.
pub(crate) struct Chart {
    pub(crate) name: String,
    pub(crate) svg: String,
}

impl Chart {
    pub(crate) fn lines(name: impl Into<String>, chart: &LineChart) -> Self {
        Self { name: name.into(), svg: chart.svg() }
    }

    fn bars(name: impl Into<String>, chart: &BarChart) -> Self {
        Self { name: name.into(), svg: chart.svg() }
    }

    fn heat(name: impl Into<String>, chart: &HeatMap) -> Self {
        Self { name: name.into(), svg: chart.svg() }
    }

    fn dots(name: impl Into<String>, chart: &DotChart) -> Self {
        Self { name: name.into(), svg: chart.svg() }
    }

    /// Writes NAME.svg and NAME.png into a folder; returns the latter.
    pub(crate) fn write(&self, folder: &Path) -> Result<PathBuf, StepError> {
        let picture = folder.join(format!("{}.png", self.name));
        files::write(&folder.join(format!("{}.svg", self.name)), self.svg.as_bytes())?;
        files::write(&picture, &png(&self.svg, SCALE)?)?;
        Ok(picture)
    }
}

/// A name in the letters that files may have.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}
