//! The compressions of an outer gradient.

use serde::{Deserialize, Serialize};

/// Compression of the values of an outer gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// Four bytes per value, without loss. Its name is `"f32"`.
    #[default]
    F32,
    /// Two bytes per value: f32 with 8 bits of precision, rounded to nearest even. Its name is `"bf16"`.
    Bf16,
    /// One byte per value and one scale for every 256 values, whose largest magnitude becomes 127. Its name is
    /// `"int8"`.
    Int8,
    /// Half a byte per value: a sign and three bits of exponent (E3M0, arXiv:2501.18512 §2.4), relative to the largest
    /// exponent of every 256 values. A value becomes 0 or one of seven powers of two. Its name is `"e3m0"`.
    E3m0,
    /// Half a bit per value: of every 4,096 values the 128 of largest magnitude, as E3M0 with their places; all others
    /// become 0. Its name is `"top-k"`. Use it with error feedback (arXiv:2508.15706).
    TopK,
}

impl Compression {
    /// All compressions, each with its code in the header.
    const CODES: [(Self, u32); 5] =
        [(Self::F32, 0), (Self::Bf16, 1), (Self::Int8, 2), (Self::E3m0, 3), (Self::TopK, 4)];

    pub(crate) fn code(self) -> u32 {
        Self::CODES.iter().find(|(known, _)| *known == self).map_or(u32::MAX, |&(_, code)| code)
    }

    pub(crate) fn of_code(code: u32) -> Option<Self> {
        Self::CODES.iter().find(|(_, known)| *known == code).map(|&(compression, _)| compression)
    }
}
