//! Experiments as configuration: runs × routers × seeds, identities of their cells, and tables of results.
//!
//! An experiment file holds the differences between its runs; the rest is an ordinary run configuration. Each combination
//! is a [`Cell`]: one training and its evaluations. The key of a cell is a hash of everything that its weights depend on,
//! so a trained cell is found again by its experiment and by other experiments that share it. A [`Sweep`] chooses a value of
//! a run's configuration by training with several. Other packages train, evaluate and plot.
//!
//! ```
//! use dipaco_experiment::Experiment;
//!
//! let text = r#"
//!     name = "rounds"
//!     seeds = [1, 2]
//!     [[runs]]
//!     name = "short"
//!     configuration.train.rounds = 2
//!     [[runs]]
//!     name = "long"
//!     configuration.train.rounds = 4
//! "#;
//! let experiment = Experiment::parse(text, "rounds.toml".as_ref())?;
//! assert_eq!(experiment.cells()?.len(), 4);
//! # Ok::<(), dipaco_experiment::ExperimentError>(())
//! ```

#![forbid(unsafe_code)]

mod cell;
mod error;
mod experiment;
mod file;
mod key;
mod markdown;
mod merge;
mod results;
mod selection;
mod spread;
mod sweep;
mod table;

pub use cell::{Cell, CellEvaluation, EvaluatedModel};
pub use error::ExperimentError;
pub use experiment::Experiment;
pub use key::{cell_key, data_key, evaluation_key, seed_config, seed_key};
pub use results::{
    CellResult, DocumentDifference, DomainMeasurement, Facts, Heldout, Measurement, Results, Shards,
    ValidationPoint,
};
pub use selection::Selection;
pub use spread::Spread;
pub use sweep::{Sweep, SweepResult, SweptValue, Trial};
pub use table::{ExperimentTable, TableRow};
