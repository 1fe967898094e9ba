//! Experiments as configuration: runs × routers × seeds, what identifies each cell, and tables of the results.
//!
//! An experiment file says what differs between its runs; everything else is a run configuration. Each combination is a
//! [`Cell`]: one training and its evaluations. A cell's key is a hash of what its weights depend on, so cells that were
//! trained once are found again, by this experiment and by others that share them. Training, evaluating and drawing are
//! done elsewhere.
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

mod cell;
mod error;
mod experiment;
mod file;
mod key;
mod markdown;
mod merge;
mod results;
mod spread;
mod table;

pub use cell::{Cell, Evaluation};
pub use error::ExperimentError;
pub use experiment::Experiment;
pub use key::{cell_key, data_key, evaluation_key, seed_config, seed_key};
pub use results::{CellResult, Facts, Heldout, Measurement, Results, Shards};
pub use spread::Spread;
pub use table::{Table, TableRow};
