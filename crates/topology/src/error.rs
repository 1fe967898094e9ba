//! Errors of building a topology.

use thiserror::Error;

use crate::{ModuleId, PathId};

/// Error of building a topology.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopologyError {
    /// The configuration has no level.
    #[error(
        "topology.levels is empty: give at least one level that holds the embedding, all blocks and the head"
    )]
    NoLevels,
    /// A level has no copies, or there are no replicas.
    #[error("{what} is 0: it must be at least 1")]
    Zero {
        /// Key with the value 0.
        what: String,
    },
    /// An entry of `blocks` is malformed.
    #[error(
        "`{entry}` in topology.levels.blocks is not a block: write half-open ranges and numbers, such as \"0..6, 8\""
    )]
    Blocks {
        /// Text of the entry.
        entry: String,
    },
    /// A level names a block outside of the model.
    #[error("topology.levels[{level}] names block {block}, but the model has {blocks} blocks (0 to {})", blocks.saturating_sub(1))]
    NoSuchBlock {
        /// Index of the level.
        level: usize,
        /// Number of the block.
        block: usize,
        /// Value of `model.blocks`.
        blocks: usize,
    },
    /// No level or more than one level holds a part.
    #[error(
        "{part} is held by {holders} levels of topology.levels: every part of the model belongs to exactly one"
    )]
    Part {
        /// Name of the part.
        part: String,
        /// Number of levels that hold it.
        holders: usize,
    },
    /// No level trains.
    #[error(
        "every level of topology.levels is frozen, so there is nothing to train: leave `frozen` out of at least one"
    )]
    Frozen,
    /// Listed paths have replicas.
    #[error(
        "topology.replicas is {replicas} but topology.paths lists the paths: list a path several times instead"
    )]
    ListedReplicas {
        /// Value of `topology.replicas`.
        replicas: u32,
    },
    /// Listed paths have a level of path-specific modules.
    #[error(
        "topology.levels[{level}].modules is \"paths\" but topology.paths lists the paths: give the number of modules"
    )]
    ListedPathSpecific {
        /// Index of the level.
        level: usize,
    },
    /// A listed path does not name a module of each level.
    #[error(
        "topology.paths[{path}] names {named} modules, but there are {levels} levels: name one of each level"
    )]
    ListedLength {
        /// Index of the path.
        path: usize,
        /// Number of modules that it names.
        named: usize,
        /// Number of levels.
        levels: usize,
    },
    /// A listed path names a module that does not exist.
    #[error("topology.paths[{path}] goes through module {module}, but level {} has {modules} modules", module.level)]
    ListedModule {
        /// Index of the path.
        path: usize,
        /// The module.
        module: ModuleId,
        /// Number of modules of the level.
        modules: u32,
    },
    /// No listed path goes through a module.
    #[error(
        "no path of topology.paths goes through module {module}: remove the module or list a path through it"
    )]
    Unused {
        /// The module.
        module: ModuleId,
    },
    /// More paths are kept than there are.
    #[error("topology.kept_paths is {kept} but there are {paths} paths")]
    TooManyKept {
        /// Value of `topology.kept_paths`.
        kept: u32,
        /// Number of paths.
        paths: u32,
    },
    /// A path that trains would change a module of a kept path.
    #[error(
        "path {path} would train module {module}, which path {kept} of topology.kept_paths keeps: freeze level {} or give \
         path {path} a module of its own there", module.level
    )]
    KeptModule {
        /// The path that trains.
        path: PathId,
        /// The module.
        module: ModuleId,
        /// The kept path.
        kept: PathId,
    },
    /// A path does not exist.
    #[error("there is no path {path}: the paths are 0 to {}", paths.saturating_sub(1))]
    NoSuchPath {
        /// The path.
        path: PathId,
        /// Number of paths.
        paths: u32,
    },
    /// A level does not exist.
    #[error("there is no level {level}: the levels are 0 to {}", levels.saturating_sub(1))]
    NoSuchLevel {
        /// The level.
        level: usize,
        /// Number of levels.
        levels: usize,
    },
    /// All paths are removed.
    #[error("no path is left: keep at least one")]
    NoPathLeft,
    /// There are too many paths.
    #[error("the levels multiply to more than {limit} paths: lower `modules` or `replicas`")]
    TooManyPaths {
        /// Maximum number of paths.
        limit: u32,
    },
}
