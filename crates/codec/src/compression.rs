//! How values are written.

use serde::{Deserialize, Serialize};

/// How the values of an outer gradient are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// Four bytes a value, without loss. Written `"f32"`.
    #[default]
    F32,
    /// Two bytes a value: f32 with 8 bits of mantissa, rounded to nearest even. Written `"bf16"`.
    Bf16,
    /// One byte a value, and a scale for every 256 of them: the largest becomes 127. Written `"int8"`.
    Int8,
    /// Half a byte a value: a sign and three bits of exponent (E3M0, arXiv:2501.18512 §2.4), and the largest exponent of
    /// every 256 of them. A value becomes the nearest of 0 and seven powers of two. Written `"e3m0"`.
    E3m0,
    /// Half a bit a value: of 4,096 values the 128 of largest magnitude, as E3M0 with their places; the others become 0.
    /// Written `"top-k"`. Meant to go with error feedback (arXiv:2508.15706).
    TopK,
}

impl Compression {
    /// All of them, each with the number that stands for it in bytes.
    const CODES: [(Self, u32); 5] =
        [(Self::F32, 0), (Self::Bf16, 1), (Self::Int8, 2), (Self::E3m0, 3), (Self::TopK, 4)];

    pub(crate) fn code(self) -> u32 {
        Self::CODES.iter().find(|(known, _)| *known == self).map_or(u32::MAX, |&(_, code)| code)
    }

    pub(crate) fn of_code(code: u32) -> Option<Self> {
        Self::CODES.iter().find(|(_, known)| *known == code).map(|&(compression, _)| compression)
    }
}
