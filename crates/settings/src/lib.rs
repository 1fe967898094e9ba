//! Sections of the run configuration that belong to services: values, defaults and checks.
//!
//! The run configuration (`dipaco-config`) contains these sections, and the services (`dipaco-server`, `dipaco-eval`)
//! obey them. This package uses no other package of the workspace and runs nothing, so a package that reads the run
//! configuration does not build the services.
//!
//! Each field is one key of the configuration. `dipaco config keys` and `docs/configuration.md` describe the keys: unit,
//! default, meaning, and the consequence of a bad value.
//!
//! ```
//! use dipaco_settings::ServeConfig;
//!
//! let error = ServeConfig { max_choices: 0, ..ServeConfig::default() }.check().unwrap_err();
//! assert_eq!(error.to_string(), "serve.max_choices is 0: it must be from 1 to 1048576");
//! ```

#![forbid(unsafe_code)]

mod error;
mod evaluation;
mod reroute_by;
mod serve;

pub use error::SettingError;
pub use evaluation::{EvaluationConfig, RouteUnit};
pub use reroute_by::RerouteBy;
pub use serve::{KvType, Preload, ServeConfig, WeightType};
