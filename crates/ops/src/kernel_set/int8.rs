//! Kernels for products of int8.

use super::KernelSet;

/// Kernels for products of rounded weights (q8_0, q4_0) with rounded activations. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Int8Kernels {
    /// Dot products of 512 bits (AVX-512 VNNI).
    Avx512Vnni,
    /// Dot products of 256 bits (AVX-VNNI).
    AvxVnni,
    /// AVX2, without dot products.
    Avx2,
    /// Dot products of NEON.
    NeonDot,
    /// Plain Rust.
    Portable,
}

impl Int8Kernels {
    /// All kernels, the fastest first.
    pub(crate) const ALL: [Self; 5] =
        [Self::Avx512Vnni, Self::AvxVnni, Self::Avx2, Self::NeonDot, Self::Portable];

    /// The kernels' name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512Vnni => "AVX-512 VNNI",
            Self::AvxVnni => "AVX-VNNI",
            Self::Avx2 => "AVX2",
            Self::NeonDot => "NEON dot products",
            Self::Portable => "plain Rust",
        }
    }

    /// True if a set may use these kernels: they need no wider registers than the set.
    pub(crate) fn belong_to(self, set: KernelSet) -> bool {
        let wide = matches!(set, KernelSet::Amx | KernelSet::Avx512Bf16 | KernelSet::Avx512);
        match self {
            Self::Avx512Vnni => wide,
            Self::AvxVnni | Self::Avx2 => wide || set == KernelSet::Avx2,
            Self::NeonDot => matches!(set, KernelSet::NeonBf16 | KernelSet::Neon),
            Self::Portable => true,
        }
    }

    /// True if the processor has the instructions.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn are_there(self) -> bool {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
        match self {
            Self::Avx512Vnni => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Self::AvxVnni => avx2 && is_x86_feature_detected!("avxvnni"),
            Self::Avx2 => avx2,
            Self::NeonDot => false,
            Self::Portable => true,
        }
    }

    /// True if the processor has the instructions.
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn are_there(self) -> bool {
        match self {
            Self::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
            other => other == Self::Portable,
        }
    }

    /// True if the processor has the instructions.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub(crate) fn are_there(self) -> bool {
        self == Self::Portable
    }
}

impl std::fmt::Display for Int8Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
