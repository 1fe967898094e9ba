//! Loops compiled for several kinds of vector units, one of which is chosen at run time.

use pulp::{Arch, NullaryFnOnce};

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

/// Runs a loop compiled for the widest vector units of this processor (AVX-512, AVX2, or the target's baseline).
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

    match Arch::new() {
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

/// Runs a loop compiled for the widest vector units of this processor (AVX-512, AVX2, or the target's baseline).
/// Functions that `f` calls must be `#[inline(always)]`, or they are compiled for the baseline. Every version gives the
/// same bits: the compiler fuses or reorders no operations of the loop.
#[inline(always)]
pub fn dispatch<R>(f: impl FnOnce() -> R) -> R {
    dispatch_with(
        #[inline(always)]
        |_| f(),
    )
}
