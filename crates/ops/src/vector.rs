//! Loops compiled for several kinds of vector units. The chosen set of kernels decides which version runs.

#[cfg(target_arch = "x86_64")]
use pulp::x86::V3;
use pulp::{Arch, NullaryFnOnce};

use crate::KernelSet;
use crate::element::{Element, narrow};
use crate::kernel_set::chosen;

/// Instructions of the processor that do not depend on the width of its vector units.
#[derive(Clone, Copy)]
pub(crate) struct Units {
    /// True if `a · b + c` is one instruction. Otherwise [`f32::mul_add`] is a slow function.
    fused: bool,
}

impl Units {
    /// `a · b + c`: rounded once where it is one instruction, otherwise twice.
    #[inline(always)]
    pub(crate) fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        if self.fused { a.mul_add(b, c) } else { a * b + c }
    }
}

/// The version of a loop for a set of kernels, or the next narrower one that the processor has.
#[inline]
fn version(set: KernelSet) -> Arch {
    match set {
        #[cfg(target_arch = "x86_64")]
        KernelSet::Avx2 => V3::try_new().map_or(Arch::Scalar, Arch::V3),
        KernelSet::Portable | KernelSet::AmxModel => Arch::Scalar,
        _ => Arch::new(),
    }
}

/// Runs a loop compiled for the vector units of the chosen set of kernels: AVX-512, AVX2, NEON or the target's baseline.
/// Functions that `f` calls must be `#[inline(always)]`, or they are compiled for the baseline. `f` gets the processor's
/// units as a value that is a constant in each compiled version.
#[inline(always)]
pub(crate) fn dispatch_with<R>(f: impl FnOnce(Units) -> R) -> R {
    struct Loop<F>(F);

    impl<R, F: FnOnce() -> R> NullaryFnOnce for Loop<F> {
        type Output = R;

        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }

    match version(chosen()) {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(v4) => v4.vectorize(Loop(
            #[inline(always)]
            || f(Units { fused: true }),
        )),
        #[cfg(target_arch = "x86_64")]
        Arch::V3(v3) => v3.vectorize(Loop(
            #[inline(always)]
            || f(Units { fused: true }),
        )),
        arch => arch.dispatch(Loop(
            #[inline(always)]
            || f(Units { fused: cfg!(target_arch = "aarch64") }),
        )),
    }
}

/// Runs a loop compiled for the vector units of the chosen set of kernels: AVX-512, AVX2, NEON or the target's baseline.
/// Functions that `f` calls must be `#[inline(always)]`, or they are compiled for the baseline. Every version gives the
/// same bits: the compiler fuses or reorders no operations of the loop.
#[inline(always)]
pub fn dispatch<R>(f: impl FnOnce() -> R) -> R {
    dispatch_with(
        #[inline(always)]
        |_| f(),
    )
}

/// [`narrow`], compiled for the processor's vector units. For callers that are not within [`dispatch`].
pub(crate) fn convert<E: Element>(from: &[f32], to: &mut [E]) {
    dispatch(
        #[inline(always)]
        || narrow(from, to),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_set::{available, with_set};

    /// The product is 1 + 2^-11 + 2^-24. Rounded on its own it loses the last bit.
    #[test]
    fn loops_are_compiled_for_the_forced_set() {
        let (a, c) = (1.0 + 1.0 / 4096.0, -(1.0 + 1.0 / 2048.0));
        for set in available() {
            let found = with_set(Some(set), || dispatch_with(|units| units.mul_add(a, a, c)));
            let plain = matches!(set, KernelSet::Portable | KernelSet::AmxModel);
            let fused = cfg!(target_arch = "aarch64") || !plain;
            assert_eq!(found, if fused { 1.0 / 16_777_216.0 } else { 0.0 }, "{set}");
        }
    }
}
