//! Ids of modules and paths.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Id of a module, one copy of the parameters of a level. Its text is `level/index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModuleId {
    /// Level, from 0.
    pub level: u16,
    /// Number of the copy within the level, from 0 to K - 1.
    pub index: u32,
}

impl fmt::Display for ModuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.level, self.index)
    }
}

impl FromStr for ModuleId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('/').and_then(|(l, i)| Some((l.parse().ok()?, i.parse().ok()?)));
        let (level, index) =
            parsed.ok_or_else(|| format!("`{text}` is not a module: write level/index, such as 0/3"))?;
        Ok(Self { level, index })
    }
}

/// Id of a path, which picks one module of each level: the mixed-radix number of the picks. The first level is the most
/// significant digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PathId(pub u32);

impl PathId {
    /// Returns the position of the path in a list of all paths.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for PathId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| format!("`{text}` is not a path id: write a number from 0"))
    }
}

/// Returns a level as it stands in a [`ModuleId`]. A run has far fewer than 65,536 levels.
pub(crate) fn level_number(level: usize) -> u16 {
    u16::try_from(level).unwrap_or(u16::MAX)
}
