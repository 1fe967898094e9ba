//! Numbers for the versions of paths and of their first stages.

use std::collections::BTreeMap;

use crate::{ModuleKey, PathVersion, RoutedModel, ServedPath};

/// Versions that have a number.
const VERSIONS: usize = 1 << 14;

/// The version of weights that keys and values depend on, besides their tokens.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    /// A path as a whole.
    Path(PathVersion),
    /// The modules of the first stages.
    Stages(Vec<ModuleKey>),
}

/// A number for the modules of each path and of its first stages. Sequences of one client with one number share what the
/// stages have left in pages.
#[derive(Default)]
pub(crate) struct Versions {
    numbers: BTreeMap<Version, u32>,
    next: u32,
}

impl Versions {
    /// The numbers of a path: that of its first stage, that of its first two, and so on. The last is that of the path.
    pub(crate) fn numbers(&mut self, path: &ServedPath, model: &dyn RoutedModel) -> Vec<u32> {
        let mut stages = model.stages(&path.keys).into_iter().map(Version::Stages).peekable();
        match stages.peek() {
            Some(_) => stages.map(|version| self.number(version)).collect(),
            None => vec![self.number(Version::Path(path.version))],
        }
    }

    fn number(&mut self, version: Version) -> u32 {
        // A forgotten version gets another number, and no page of its first one: a miss of the cache, never a wrong hit.
        if self.numbers.len() >= VERSIONS {
            self.numbers.clear();
        }
        *self.numbers.entry(version).or_insert_with(|| {
            self.next = self.next.wrapping_add(1);
            self.next
        })
    }
}
