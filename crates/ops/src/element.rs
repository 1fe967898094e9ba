//! The element types of activations.

use bytemuck::Pod;
use half::bf16;

/// How products are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// f32 throughout.
    #[default]
    F32,
    /// bf16 operands of products and bf16 activations saved for the backward pass. Sums, norms, softmax, the residual
    /// stream, weights, gradients and the optimizer stay f32.
    Bf16,
}

/// The element type of activations: f32 or bf16.
pub(crate) trait Element: Pod + Send + Sync + std::fmt::Debug + Default {
    /// Number of elements that fit one f32.
    const PER_F32: usize;
    /// The precision of products on this type.
    const PRECISION: Precision;

    fn from_f32(value: f32) -> Self;
    fn to_f32(self) -> f32;

    /// The bits of a pair of bf16, as products of pairs read them.
    #[inline(always)]
    fn pair(low: Self, high: Self) -> u32 {
        u32::from(bf16_bits(low.to_f32())) | u32::from(bf16_bits(high.to_f32())) << 16
    }

    /// This memory as elements.
    fn of(memory: &[f32]) -> &[Self] {
        bytemuck::cast_slice(memory)
    }

    /// This memory as elements, to read and write.
    fn of_mut(memory: &mut [f32]) -> &mut [Self] {
        bytemuck::cast_slice_mut(memory)
    }

    /// Number of f32 that hold `elements` elements.
    fn room(elements: usize) -> usize {
        elements.div_ceil(Self::PER_F32)
    }
}

impl Element for f32 {
    const PER_F32: usize = 1;
    const PRECISION: Precision = Precision::F32;

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl Element for bf16 {
    const PER_F32: usize = 2;
    const PRECISION: Precision = Precision::Bf16;

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self::from_bits(bf16_bits(value))
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16_value(self.to_bits())
    }

    #[inline(always)]
    fn pair(low: Self, high: Self) -> u32 {
        u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16
    }
}

/// The bits of the nearest bf16, ties to even; of an infinity beyond the largest bf16. It has no branch, so that a loop over
/// it becomes vector code.
#[inline(always)]
#[must_use]
pub fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // Cutting off the low bits could turn a NaN into an infinity, so one bit of the payload is set.
    let nan = bits >> 16 | 0x40;
    (if value.is_nan() { nan } else { rounded }) as u16
}

/// The value of the bits of a bf16.
#[inline(always)]
#[must_use]
pub fn bf16_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds a slice to E.
#[inline(always)]
pub(crate) fn narrow<E: Element>(from: &[f32], to: &mut [E]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = E::from_f32(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_the_half_crate() {
        for bits in (0..u32::MAX).step_by(65_521 * 7) {
            let value = f32::from_bits(bits);
            let (ours, theirs) = (<bf16 as Element>::from_f32(value), bf16::from_f32(value));
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{value}");
        }
        for (value, bits) in [
            (f32::NAN, 0x7fc0),
            (f32::INFINITY, 0x7f80),
            (f32::MAX, 0x7f80),
            (1.0 + 1.0 / 256.0, 0x3f80),
            (1.0 + 3.0 / 256.0, 0x3f82),
        ] {
            assert_eq!(<bf16 as Element>::from_f32(value).to_bits(), bits, "{value}");
        }
    }
}
