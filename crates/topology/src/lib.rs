//! Levels, modules and paths of the model, and the modules that paths share (arXiv:2403.10616 §2.3, §2.6).
//!
//! The transformer is cut into *levels*. Level `l` has `K_l` alternative copies, its *modules*. A *path* picks one
//! module of each level. Every parameter belongs to exactly one module. All paths share a level with `K = 1`; a level
//! with `K = P` is path-specific. Dense models, DiLoCo, flat mixtures of experts and DiPaCo are all values of
//! [`TopologyConfig`].
//!
//! ```
//! use dipaco_topology::{LevelConfig, Modules, PathId, Topology, TopologyConfig};
//!
//! let level = |blocks: &str, embedding, head| LevelConfig { modules: Modules::Count(2), blocks: blocks.into(), embedding, head, frozen: false };
//! let config = TopologyConfig::grid(1, vec![level("0..2", true, false), level("2..4", false, true)]);
//! let grid = Topology::new(&config, 4)?;
//! assert_eq!(grid.paths(), 4);
//! assert_eq!(grid.modules_of(PathId(2)).iter().map(ToString::to_string).collect::<Vec<_>>(), ["0/1", "1/0"]);
//! # Ok::<(), dipaco_topology::TopologyError>(())
//! ```
//!
//! This package has no I/O and no tensors.

#![forbid(unsafe_code)]

mod config;
mod error;
mod extension;
mod ids;
mod listed;
mod parts;
mod topology;

pub use config::{LevelConfig, Modules, TopologyConfig};
pub use error::TopologyError;
pub use extension::{AddedPaths, DerivedTopology};
pub use ids::{ModuleId, PathId};
pub use parts::parts_in_words;
pub use topology::{Part, Topology};
