//! Running experiments: every cell is prepared, trained and evaluated by the steps of this package.
//!
//! `dipaco-experiment` reads the experiment file, gives each cell its identity and makes the tables. [`run`] does the
//! work in an [`ExperimentFolder`], where prepared text, seed models and cells that several experiments share are made
//! once.

mod cell;
mod check;
mod driver;
mod facts;
mod folder;
mod options;
mod record;

pub use check::check;
pub use driver::{ExperimentOutcome, results_file, run};
pub use folder::ExperimentFolder;
pub use options::{Cancel, ExperimentOptions};
