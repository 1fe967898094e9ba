//! The names of a run's objects: each says what the object is.

use dipaco_topology::{ModuleId, PathId};

/// A module's weights after `version` outer steps: `modules/<level>/<index>/<version>`.
#[must_use]
pub fn module(module: ModuleId, version: u64) -> String {
    format!("modules/{module}/{version}")
}

/// All that a path needs to continue after `round` rounds: `paths/<id>/<round>`.
#[must_use]
pub fn path(path: PathId, round: u64) -> String {
    format!("paths/{path}/{round}")
}

/// The router of a phase: `router/<phase>`.
#[must_use]
pub fn router(phase: u32) -> String {
    format!("router/{phase}")
}

/// What one path contributes to one module in one round: `outer-gradients/<level>/<index>/<round>/<path>-<fence>`.
///
/// `fence` is the fencing number of the lease under which it was computed, so a worker that lost its lease can't
/// write over the contribution of the one that took it.
#[must_use]
pub fn outer_gradient(module: ModuleId, round: u64, path: PathId, fence: u64) -> String {
    format!("outer-gradients/{module}/{round}/{path}-{fence}")
}

/// What an object name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// See [`module`].
    Module {
        /// The module.
        module: ModuleId,
        /// Outer steps taken.
        version: u64,
    },
    /// See [`path`].
    Path {
        /// The path.
        path: PathId,
        /// Rounds done.
        round: u64,
    },
    /// See [`router`].
    Router {
        /// The phase.
        phase: u32,
    },
    /// See [`outer_gradient`].
    OuterGradient {
        /// The module that it is for.
        module: ModuleId,
        /// The round that it is of.
        round: u64,
        /// The path that it comes from.
        path: PathId,
        /// The fencing number of its lease.
        fence: u64,
    },
}

/// Reads a name that one of this module's functions made; `None` for any other.
#[must_use]
pub fn parse(name: &str) -> Option<Name> {
    let parts: Vec<&str> = name.split('/').collect();
    let parsed = match parts.as_slice() {
        ["modules", level, index, version] => {
            Name::Module { module: module_id(level, index)?, version: version.parse().ok()? }
        }
        ["paths", id, round] => Name::Path { path: PathId(id.parse().ok()?), round: round.parse().ok()? },
        ["router", phase] => Name::Router { phase: phase.parse().ok()? },
        ["outer-gradients", level, index, round, from] => {
            let (path, fence) = from.split_once('-')?;
            Name::OuterGradient {
                module: module_id(level, index)?,
                round: round.parse().ok()?,
                path: PathId(path.parse().ok()?),
                fence: fence.parse().ok()?,
            }
        }
        _ => return None,
    };
    // `+1` and `007` parse as numbers but are not how names are written.
    (parsed.to_string() == name).then_some(parsed)
}

fn module_id(level: &str, index: &str) -> Option<ModuleId> {
    Some(ModuleId { level: level.parse().ok()?, index: index.parse().ok()? })
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&match *self {
            Self::Module { module: id, version } => module(id, version),
            Self::Path { path: id, round } => path(id, round),
            Self::Router { phase } => router(phase),
            Self::OuterGradient { module: id, round, path, fence } => outer_gradient(id, round, path, fence),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_say_what_the_object_is() {
        let id = ModuleId { level: 1, index: 15 };
        assert_eq!(module(id, 42), "modules/1/15/42");
        assert_eq!(path(PathId(255), 7), "paths/255/7");
        assert_eq!(router(2), "router/2");
        assert_eq!(outer_gradient(id, 7, PathId(255), 3), "outer-gradients/1/15/7/255-3");
        assert_eq!(parse("modules/1/15/42"), Some(Name::Module { module: id, version: 42 }));
        assert_eq!(parse("manifest/00000000000000000001.json"), None);
        assert_eq!(parse("modules/1/+15/42"), None);
    }

    proptest! {
        #[test]
        fn parsing_undoes_writing_and_never_panics(
            level: u16, index: u32, a: u64, b: u64, id: u32, text in "\\PC{0,40}",
        ) {
            let module = ModuleId { level, index };
            for name in [
                Name::Module { module, version: a },
                Name::Path { path: PathId(id), round: a },
                Name::Router { phase: id },
                Name::OuterGradient { module, round: a, path: PathId(id), fence: b },
            ] {
                prop_assert_eq!(parse(&name.to_string()), Some(name));
            }
            if let Some(name) = parse(&text) {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
