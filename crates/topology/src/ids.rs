//! Identities of modules and paths.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One copy of a level's parameters: `(level, index)`, written `level/index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModuleId {
    /// The level, counted from 0.
    pub level: u16,
    /// Which of the level's K copies, counted from 0.
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
            parsed.ok_or_else(|| format!("`{text}` is no module: write level/index, as in 0/3"))?;
        Ok(Self { level, index })
    }
}

/// One choice of a module for each level: the mixed-radix number of the choices, the first level most significant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PathId(pub u32);

impl PathId {
    /// The path's position in a list of all paths.
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
        text.parse().map(Self).map_err(|_| format!("`{text}` is no path id: write a number from 0"))
    }
}
