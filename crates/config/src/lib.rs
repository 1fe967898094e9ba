//! The configuration of a run: its sections, sources, checks and documentation.
//!
//! Values come from defaults, a TOML file, environment variables and overrides; later sources win. All errors are reported
//! at once, each with the place of the value. Other packages define the sections that configure them. This package joins
//! the sections and checks that they fit together. It reads one file and does nothing else.
//!
//! ```
//! use dipaco_config::{RunConfig, Sources};
//!
//! let sources = Sources { overrides: vec!["train.rounds=3".into()], ..Sources::default() };
//! assert_eq!(RunConfig::load(&sources)?.config.train.rounds, 3);
//!
//! let sources = Sources { overrides: vec!["train.ronds=3".into()], ..Sources::default() };
//! let message = RunConfig::load(&sources).unwrap_err().to_string();
//! assert_eq!(message, "--set train.ronds=3: unknown key `train.ronds` (did you mean `train.rounds`?)");
//! # Ok::<(), dipaco_config::ConfigError>(())
//! ```

#![forbid(unsafe_code)]

mod check;
mod error;
mod keys;
mod layer;
mod load;
mod origin;
mod part;
mod paths_per_round;
mod pretrained;
mod resolve;
mod run_config;
mod write;

/// Value of `train.optimizer` and `seed_model.optimizer`.
pub use dipaco_optim::Optimizer;
/// Element of `[[routing.phases]]`.
pub use dipaco_routing::PhaseConfig;
pub use error::{ConfigError, Problem};
pub use keys::{KeyDoc, SECTIONS, key_doc, keys};
pub use load::{Resolved, Sources};
pub use origin::Origin;
pub use part::ConfigPart;
pub use paths_per_round::PathsPerRound;
pub use pretrained::Pretrained;
pub use run_config::{
    OuterConfig, RunConfig, RunSection, ScheduleAtPhase, SeedConfig, TrainConfig, TransformerRouterConfig,
};
pub use write::reference;

#[cfg(test)]
mod tests;
