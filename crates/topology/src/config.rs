//! The topology in the configuration.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::TopologyError;

/// Section `[topology]`: the division of the transformer into modules, and the modules that paths share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyConfig {
    /// Paths through each combination of modules (default 1). With more than 1, each combination is a DiLoCo group: 8
    /// replicas of a single level with one module are DiLoCo with 8 workers.
    #[serde(default = "one")]
    pub replicas: u32,
    /// The paths, each as the index of its module in every level. Empty, the default, for all combinations of modules, with
    /// `replicas` paths each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<Vec<u32>>,
    /// The first so many paths are kept as they are: nobody trains them, and none of their modules changes (default 0). A level
    /// does not train if all other paths share modules of kept paths there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kept_paths: u32,
    /// Levels, first to last. Each block, the embedding and the head belong to exactly one level.
    pub levels: Vec<LevelConfig>,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl TopologyConfig {
    /// Returns the topology of a dense model: one path through one module.
    #[must_use]
    pub fn dense(blocks: usize) -> Self {
        let level = LevelConfig {
            modules: Modules::Count(1),
            blocks: format!("0..{blocks}"),
            embedding: true,
            head: true,
            frozen: false,
        };
        Self::grid(1, vec![level])
    }

    /// Returns the topology of all combinations of modules, with `replicas` paths each.
    #[must_use]
    pub fn grid(replicas: u32, levels: Vec<LevelConfig>) -> Self {
        Self { replicas, paths: Vec::new(), kept_paths: 0, levels }
    }
}

/// Entry of `[[topology.levels]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LevelConfig {
    /// K, number of alternative copies, or `"paths"` for a copy per path (path-specific modules).
    pub modules: Modules,
    /// Transformer blocks of this level: half-open ranges and single numbers, such as `"0..6, 8"`. May be empty.
    #[serde(default)]
    pub blocks: String,
    /// True if this level holds the token embedding.
    #[serde(default)]
    pub embedding: bool,
    /// True if this level holds the final norm and the output projection.
    #[serde(default)]
    pub head: bool,
    /// True if the level does not train: its weights stay those of the seed. Left out of the written configuration when
    /// false, so that configurations without frozen levels keep their hashes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
}

/// Number of copies of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modules {
    /// K copies. Each such level multiplies the number of paths by K.
    Count(u32),
    /// One copy per path. Such a level does not multiply the number of paths.
    Paths,
}

impl Serialize for Modules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(k) => serializer.serialize_u32(*k),
            Self::Paths => serializer.serialize_str("paths"),
        }
    }
}

impl<'de> Deserialize<'de> for Modules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Modules;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of modules from 1, or \"paths\" for one per path")
            }
            fn visit_u64<E: serde::de::Error>(self, k: u64) -> Result<Modules, E> {
                u32::try_from(k)
                    .map(Modules::Count)
                    .map_err(|_| E::invalid_value(serde::de::Unexpected::Unsigned(k), &self))
            }
            fn visit_i64<E: serde::de::Error>(self, k: i64) -> Result<Modules, E> {
                u32::try_from(k)
                    .map(Modules::Count)
                    .map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(k), &self))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Modules, E> {
                if text == "paths" {
                    Ok(Modules::Paths)
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Reads a list of blocks such as `"0..6, 8"`: half-open ranges and single numbers, in any order.
///
/// # Errors
/// An entry is neither a range nor a number, or a range is empty or longer than 65,536.
pub(crate) fn parse_blocks(text: &str) -> Result<Vec<usize>, TopologyError> {
    let wrong = |entry: &str| TopologyError::Blocks { entry: entry.to_owned() };
    let mut blocks = Vec::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let number = |part: &str| part.trim().parse::<usize>().map_err(|_| wrong(entry));
        match entry.split_once("..") {
            Some((from, to)) => {
                let (from, to) = (number(from)?, number(to)?);
                if from >= to || to - from > 65_536 {
                    return Err(wrong(entry));
                }
                blocks.extend(from..to);
            }
            None => blocks.push(number(entry)?),
        }
    }
    Ok(blocks)
}
